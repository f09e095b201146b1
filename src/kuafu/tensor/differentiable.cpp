// SPDX-License-Identifier: Apache-2.0
#include "kuafu/tensor/differentiable.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "kuafu/base/errors.h"

namespace kuafu {
namespace {

using torch::autograd::SavedVariable;

/// One call in the autograd graph.
class Call : public torch::autograd::Node {
 public:
  explicit Call(Backward backward) : backward_(std::move(backward)) {}

  /// @pre outputs have their history set: a saved output must not hold this node alive.
  void save(const Tensors& tensors, const Tensors& outputs) {
    saved_.reserve(tensors.size());
    for (const Tensor& t : tensors) {
      const bool is_output =
          t.defined() && std::any_of(outputs.begin(), outputs.end(),
                                     [&](const Tensor& o) { return o.is_same(t); });
      saved_.emplace_back(t, is_output);
    }
  }

  torch::autograd::variable_list apply(torch::autograd::variable_list&& grads) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    KUAFU_REQUIRE(backward_ != nullptr, "backward ran twice through the same graph");
    KUAFU_CHECK(std::this_thread::get_id() == made_on_,
                "the backward of an op ran on another thread than its forward, where neither the "
                "books of its rank are nor what it was told of this backward");
    const at::NoGradGuard no_grad;
    Tensors saved;
    saved.reserve(saved_.size());
    for (const SavedVariable& s : saved_) saved.push_back(s.unpack(shared_from_this()));
    std::vector<bool> needs(num_outputs());
    for (size_t i = 0; i < needs.size(); ++i) needs[i] = task_should_compute_output(i);
    Tensors result = backward_(saved, grads, needs);
    KUAFU_CHECK(result.size() == needs.size(), "backward gave ", result.size(), " gradients for ",
                needs.size(), " inputs");
    for (size_t i = 0; i < needs.size(); ++i) {
      if (!needs[i]) result[i].reset();
    }
    return result;
  }

  void release_variables() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (SavedVariable& s : saved_) s.reset_data();
    backward_ = nullptr;  // its closure may hold tensors too
  }

  std::string name() const override { return "kuafu::differentiable"; }

 private:
  Backward backward_;
  std::vector<SavedVariable> saved_;
  const std::thread::id made_on_ = std::this_thread::get_id();
};

/// An output that is an input, or a view of one, gets an identity of its own, as the history is
/// attached to the tensor object.
Tensor own(const Tensor& output, const Tensors& inputs) {
  const bool is_shared = output.requires_grad() || output.is_view() ||
                         std::any_of(inputs.begin(), inputs.end(),
                                     [&](const Tensor& in) { return in.is_same(output); });
  return is_shared ? output.detach() : output;
}

}  // namespace

Tensors differentiable(const Tensors& inputs, const Forward& forward, Backward backward) {
  const bool is_recording =
      at::GradMode::is_enabled() && std::any_of(inputs.begin(), inputs.end(), [](const Tensor& t) {
        return t.defined() && t.requires_grad();
      });
  ForwardResult result;
  {
    const at::NoGradGuard no_grad;
    result = forward(inputs);
    if (!is_recording) return std::move(result.outputs);
    for (Tensor& output : result.outputs) {
      KUAFU_CHECK(output.defined(), "a forward gave an undefined output");
      const Tensor distinct = own(output, inputs);
      if (distinct.is_same(output)) continue;
      // A saved output stays the output; a saved input stays the input.
      const bool is_input = std::any_of(inputs.begin(), inputs.end(),
                                        [&](const Tensor& in) { return in.is_same(output); });
      for (Tensor& s : result.saved) {
        if (!is_input && s.is_same(output)) s = distinct;
      }
      output = distinct;
    }
  }
  const std::shared_ptr<Call> node(new Call(std::move(backward)), torch::autograd::deleteNode);
  node->set_next_edges(torch::autograd::collect_next_edges(inputs));
  torch::autograd::set_history(result.outputs, node);
  node->save(result.saved, result.outputs);
  return std::move(result.outputs);
}

namespace {

/// Nobody but the holder of `t` can see its memory, and each element has a place of its own.
bool is_sole_owner(const Tensor& t) {
  return t.use_count() == 1 && t.storage().use_count() == 1 && t.is_non_overlapping_and_dense();
}

}  // namespace

Tensors fan_out(const Tensor& x, int64_t uses) {
  KUAFU_CHECK(uses > 0, "a fan-out to ", uses, " users");
  const Forward forward = [uses](const Tensors& in) -> ForwardResult {
    return {Tensors(static_cast<size_t>(uses), in[0]), {}};
  };
  const Backward backward = [](const Tensors&, const Tensors& grads,
                               const std::vector<bool>&) -> Tensors {
    Tensor sum;
    bool is_ours = false;
    for (const Tensor& g : grads) {
      if (!g.defined()) continue;
      if (!sum.defined()) {
        is_ours = is_sole_owner(g);  // before `sum` holds it too
        sum = g;
      } else if (is_ours) {
        sum.add_(g);
      } else {
        sum = sum + g;
        is_ours = true;
      }
    }
    return {sum};
  };
  return differentiable({x}, forward, backward);
}

}  // namespace kuafu
