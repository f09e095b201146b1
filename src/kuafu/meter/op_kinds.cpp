// SPDX-License-Identifier: Apache-2.0
#include "kuafu/meter/op_kinds.h"

#include <initializer_list>
#include <set>
#include <unordered_map>
#include <unordered_set>

namespace kuafu {
namespace {

using Kinds = std::unordered_map<std::string_view, OpKind>;

const Kinds& kinds() {
  static const Kinds all = [] {
    Kinds kinds;
    const auto are = [&kinds](OpKind kind, std::initializer_list<std::string_view> names) {
      for (const std::string_view name : names) kinds.emplace(name, kind);
    };
    are(OpKind::kMatmul,
        {"kuafu::matmul", "kuafu::matmul_bias", "kuafu::matmul_add", "kuafu::newton_schulz"});
    are(OpKind::kAttention, {"kuafu::attention", "kuafu::attention_backward"});
    are(OpKind::kNorm,
        {"kuafu::layer_norm", "kuafu::layer_norm_backward", "kuafu::rms_norm",
         "kuafu::rms_norm_backward", "kuafu::norm_moments", "kuafu::norm_apply",
         "kuafu::norm_backward_moments", "kuafu::norm_backward_apply", "kuafu::rms_moments",
         "kuafu::rms_apply", "kuafu::rms_backward_moments", "kuafu::rms_backward_apply"});
    are(OpKind::kElementwise, {"kuafu::gelu",
                               "kuafu::gelu_backward",
                               "kuafu::gelu_exact",
                               "kuafu::gelu_exact_backward",
                               "kuafu::relu",
                               "kuafu::relu_backward",
                               "kuafu::swiglu",
                               "kuafu::swiglu_backward",
                               "kuafu::attention_merge",
                               "kuafu::document_mask",
                               "kuafu::rope",
                               "kuafu::dropout",
                               "kuafu::adam",
                               "kuafu::adamw",
                               "kuafu::sgd",
                               "kuafu::nesterov",
                               "kuafu::lars",
                               "kuafu::lars_norms",
                               "kuafu::lamb",
                               "kuafu::lamb_norms",
                               "kuafu::layer_step",
                               "kuafu::momentum",
                               "kuafu::momentum_ahead",
                               "kuafu::decayed_step",
                               "kuafu::cross_entropy_backward",
                               "kuafu::add_bias",
                               "aten::add",
                               "aten::add_",
                               "aten::sub",
                               "aten::sub_",
                               "aten::mul",
                               "aten::mul_",
                               "aten::div",
                               "aten::div_",
                               "aten::neg",
                               "aten::sign",
                               "aten::exp",
                               "aten::exp_",
                               "aten::log",
                               "aten::sqrt",
                               "aten::pow",
                               "aten::maximum",
                               "aten::minimum",
                               "aten::tanh_backward",
                               "aten::where",
                               "aten::eq",
                               "aten::ne",
                               "aten::lt",
                               "aten::le",
                               "aten::gt",
                               "aten::ge",
                               "aten::logical_and",
                               "aten::clamp",
                               "aten::clamp_max",
                               "aten::clamp_min",
                               "aten::tanh",
                               "aten::threshold_backward"});
    are(OpKind::kReduction,
        {"kuafu::sum_rows", "kuafu::sum_of_squares", "kuafu::cross_entropy_stats", "aten::sum",
         "aten::mean", "aten::max", "aten::amax", "aten::any", "look for a gradient"});
    are(OpKind::kSort, {"kuafu::route", "kuafu::route_backward", "aten::sort", "aten::topk"});
    are(OpKind::kGather,
        {"kuafu::embedding", "kuafu::embedding_backward", "kuafu::local_rows", "kuafu::take_slots",
         "kuafu::sum_slots", "kuafu::combine", "kuafu::combine_backward", "aten::index_select",
         "aten::index", "aten::gather", "aten::bincount"});
    are(OpKind::kCopy, {"kuafu::split_heads", "kuafu::join_heads", "aten::copy_", "aten::clone",
                        "aten::_to_copy", "aten::cat", "aten::stack", "aten::constant_pad_nd",
                        "aten::repeat", "aten::roll", "aten::flip"});
    are(OpKind::kFill, {"aten::zero_", "aten::fill_", "aten::zeros", "aten::zeros_like",
                        "aten::new_zeros", "aten::ones", "aten::ones_like", "aten::full",
                        "aten::full_like", "aten::arange", "aten::scalar_tensor"});
    are(OpKind::kLoad, {"load"});
    return kinds;
  }();
  return all;
}

/// Whether an op on "f32 2x0, i64 3" has anything to do: its first tensor is what it works on, and
/// others may stand beside an empty one (an update of no element by the rates of its layers).
bool has_work(const std::string& shapes) {
  const std::string first = shapes.substr(0, shapes.find(", ")) + "x";
  return first.find(" 0x") == std::string::npos && first.find("x0x") == std::string::npos;
}

}  // namespace

OpKind kind_of_op(std::string_view name) {
  const auto found = kinds().find(name);
  return found == kinds().end() ? OpKind::kUnbooked : found->second;
}

bool moves_nothing(std::string_view name) {
  static const std::unordered_set<std::string_view> names = {
      // memory
      "aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty",
      "aten::new_empty_strided", "aten::set_", "aten::set_data", "aten::data", "aten::from_blob",
      // views
      "aten::view", "aten::_unsafe_view", "aten::_reshape_alias", "aten::permute",
      "aten::transpose", "aten::t", "aten::numpy_T", "aten::narrow", "aten::slice", "aten::select",
      "aten::detach", "aten::detach_", "detach", "aten::unsqueeze", "aten::squeeze", "aten::expand",
      "aten::as_strided", "aten::alias", "aten::split", "aten::split_with_sizes", "aten::unbind",
      "aten::movedim", "aten::unfold", "aten::lift_fresh",
      // facts about a tensor
      "aten::is_same_size", "aten::requires_grad_", "aten::_version", "aten::output_nr",
      "aten::_has_compatible_shallow_copy_type",
      // one number is read
      "aten::item", "aten::is_nonzero", "aten::_local_scalar_dense",
      // made of others
      "aten::to", "aten::cpu", "aten::contiguous", "aten::reshape", "aten::view_as",
      "aten::expand_as", "aten::flatten", "aten::unflatten", "aten::chunk", "aten::type_as",
      "aten::resolve_conj", "aten::resolve_neg", "aten::sum_to_size", "aten::pad", "aten::square"};
  return names.contains(name);
}

namespace {

/// Ops of a trace that `is_it` picks, by name with their tensors.
template <class F>
std::vector<std::string> ops_of(const Trace& trace, const F& is_it) {
  std::set<std::string> found;
  for (const TraceRecord& r : trace.records) {
    if (r.kind != TraceKind::kOp) continue;
    const std::string& name = trace.names[static_cast<size_t>(r.name)];
    const std::string& shape = trace.shapes[static_cast<size_t>(r.payload[0])];
    if (is_it(r, name, shape)) found.insert(name + " (" + shape + ")");
  }
  return {found.begin(), found.end()};
}

bool is_unknown(const TraceRecord& r) { return r.op == OpKind::kUnbooked; }

}  // namespace

std::vector<std::string> unknown_ops(const Trace& trace) {
  return ops_of(trace,
                [](const TraceRecord& r, const auto&, const auto&) { return is_unknown(r); });
}

std::vector<std::string> unbooked_ops(const Trace& trace) {
  return ops_of(trace, [](const TraceRecord& r, const std::string& name, const std::string& shape) {
    const bool is_own = name.starts_with("kuafu::");
    const bool is_silent = is_own && r.payload[1] == 0 && r.payload[2] == 0 && has_work(shape);
    return is_unknown(r) || is_silent;
  });
}

}  // namespace kuafu
