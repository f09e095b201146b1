// SPDX-License-Identifier: Apache-2.0
//
// An update rule by itself, and under everything that a plan may put beside it.

#include "kuafu/conformance/optimizers.h"

#include <algorithm>
#include <set>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "kuafu/base/suggest.h"
#include "kuafu/conformance/models.h"
#include "kuafu/conformance/samples.h"
#include "kuafu/conformance/trial_runs.h"
#include "kuafu/meter/book.h"
#include "kuafu/meter/op_kinds.h"
#include "kuafu/meter/op_trace.h"
#include "kuafu/optim/optimizer.h"
#include "kuafu/plan/kind_names.h"

namespace kuafu::conformance {
namespace {

constexpr int64_t kRows = 13, kColumns = 20, kSteps = 3;
/// Of trainings: as long as those of schemes, for what goes wrong late.
constexpr int64_t kTrained = 12;

/// A matrix and its gradients, the elements [from, to) of it as one flat piece.
class Piece {
 public:
  Piece(const OptimizerPlan& plan, const OptimizerRules& rules, int64_t from, int64_t to)
      : from_(from), to_(to), param_(normal("matrix")), optimizer_(plan, rules) {
    value_ = flat(param_.value);
    optimizer_.begin(shards(0));
  }

  void step(int64_t t) {
    std::vector<ParamShard> held = shards(t);
    step(held);
  }
  void step(std::vector<ParamShard>& held) { optimizer_.step(held, 0.01); }
  std::vector<ParamShard> shards(int64_t t) const {
    return {{.value = value_,
             .grad = flat(normal(text("gradient ", t)).value),
             .param = &param_,
             .split_axes = {},
             .first_element = from_,
             .grad_factor = 0.5}};
  }
  const Tensor& value() const { return value_; }
  OptimizerState state() const { return optimizer_.state(); }
  /// Takes over what another one has come to.
  void go_on_from(const Piece& other) {
    value_.copy_(other.value_);
    optimizer_.restore(shards(0), other.state());
  }

 private:
  static Param normal(const std::string& name) {
    const Mesh alone({}, 0);
    return shard(name, {kRows, kColumns}, Layout{{Axes{}, Axes{}}}, alone);
  }
  Tensor flat(const Tensor& whole) const {
    return whole.detach().flatten().slice(0, from_, to_).clone();
  }

  int64_t from_, to_;
  Param param_;
  Optimizer optimizer_;
  Tensor value_;
};

/// Every slot and the value.
std::vector<Tensor> held_by(const Piece& piece) {
  std::vector<Tensor> all = {piece.value()};
  for (const auto& slot : piece.state().tensors) all.push_back(slot.tensor);
  return all;
}

/// ZeRO cuts anywhere: pieces of a step have the bits of the whole.
void check_pieces(const OptimizerPlan& plan, const OptimizerRules& rules, Notes& notes) {
  if (make_rule(plan, rules).has_ratios()) return;  // norms of half a matrix are others
  constexpr int64_t kCut = 3 * kColumns + 7, kAll = kRows * kColumns;
  Piece whole(plan, rules, 0, kAll), front(plan, rules, 0, kCut), back(plan, rules, kCut, kAll);
  for (int64_t t = 0; t < kSteps; ++t) {
    for (Piece* piece : {&whole, &front, &back}) piece->step(t);
  }
  const auto expected = held_by(whole), a = held_by(front), b = held_by(back);
  for (size_t i = 0; i < expected.size(); ++i) {
    notes.expect_same(at::cat({a[i], b[i]}), expected[i],
                      i == 0 ? "the weight of two pieces" : "a slot of two pieces");
  }
}

/// All that a step depends on is in slots and the number of steps.
void check_state(const OptimizerPlan& plan, const OptimizerRules& rules, Notes& notes) {
  Piece through(plan, rules, 0, kRows * kColumns), resumed(plan, rules, 0, kRows * kColumns);
  for (int64_t t = 0; t < kSteps; ++t) through.step(t);
  resumed.go_on_from(through);
  for (Piece* piece : {&through, &resumed}) piece->step(kSteps);
  const auto expected = held_by(through), found = held_by(resumed);
  for (size_t i = 0; i < expected.size(); ++i) {
    notes.expect_same(found[i], expected[i],
                      i == 0 ? "the weight after a step from a saved state" : "a slot after it");
  }
}

/// Every op of a step counts in traces, budgets and FLOPs.
void check_ops(const OptimizerPlan& plan, const OptimizerRules& rules, Notes& notes) {
  RankBook book(0, 0);  // own ops tell it their FLOPs and bytes
  const BookScope booked(&book);
  Piece piece(plan, rules, 0, kRows * kColumns);
  std::vector<ParamShard> held = piece.shards(0);
  TraceRecorder recorder;
  {
    const OpTraceScope traced(recorder);
    piece.step(held);
  }
  for (const std::string& op : unbooked_ops(recorder.trace())) {
    notes.fail(op + " is booked by nothing; make it of ops that are (kuafu/meter/op_kinds.cpp)");
  }
}

/// A GPT trained under a variant. Shapes are small: a rule knows no matrix by its size.
void check_training(const Variant& variant, const Registries& registries, const std::string& name,
                    Notes& notes, const ModelShape& shape) {
  const bool has_experts =
      std::any_of(variant.settings.begin(), variant.settings.end(),
                  [](const auto& setting) { return setting.first == "parallel.expert.size"; });
  Overrides settings = settings_of(has_experts ? model_kinds::kMoeGpt : model_kinds::kGpt, shape);
  settings.emplace_back("optimizer.kind", name);
  settings.emplace_back("train.steps", text(kTrained));
  settings.insert(settings.end(), variant.settings.begin(), variant.settings.end());
  expect_certified(placed_plan(registries, settings), registries, notes);
}

}  // namespace

std::vector<Finding> check_optimizer(const Registries& registries, const std::string& name,
                                     const std::vector<int64_t>& sizes, const Tell& tell) {
  registries.optimizers.find(name);  // throws NotFound
  const at::NoGradGuard no_grad;
  Findings findings(tell);
  const auto add = [&](const char* check, const std::string& where, const std::string& shape,
                       const auto& body) {
    findings.run_or_refuse(
        {.kind = "optimizer", .name = name, .check = check, .where = where, .shape = shape}, body);
  };
  OptimizerPlan plan;
  plan.kind = name;
  const std::string matrix = text(kRows, " x ", kColumns);
  add("pieces", "one rank", matrix,
      [&](Notes& notes) { check_pieces(plan, registries.optimizers, notes); });
  add("state", "one rank", matrix,
      [&](Notes& notes) { check_state(plan, registries.optimizers, notes); });
  add("ops", "one rank", matrix,
      [&](Notes& notes) { check_ops(plan, registries.optimizers, notes); });
  for (const auto& [where, tier] :
       {std::pair{"slots on the host", SlotsOn::kHost}, {"slots on a disk", SlotsOn::kDisk}}) {
    if (findings.has_failed()) break;
    add("tiers", where, "one rank",
        [&](Notes& notes) { check_optimizer_tiers(registries, name, tier, notes); });
  }
  std::set<int64_t> there;
  bool has_any = false;
  for (const Variant& variant : model_variants(registries)) {
    const int64_t ranks = ranks_of(variant);
    there.insert(ranks);
    if (std::find(sizes.begin(), sizes.end(), ranks) == sizes.end()) continue;
    has_any = true;
    const ModelShape shape = model_shapes(model_kinds::kGpt, Shapes::kSmall).front();
    add("training", variant.name, to_string(shape),
        [&](Notes& notes) { check_training(variant, registries, name, notes, shape); });
    if (findings.has_failed()) break;
    if (!variant.settings.empty()) continue;
    Overrides settings = settings_of(model_kinds::kGpt, shape);
    settings.emplace_back("optimizer.kind", name);
    const Variant other{"one rank, numbers that are not the defaults",
                        other_numbers(registries, settings)};
    add("training", other.name, to_string(shape),
        [&](Notes& notes) { check_training(other, registries, name, notes, shape); });
    if (findings.has_failed()) break;
  }
  std::vector<std::string> words;
  for (const int64_t ranks : there) words.push_back(text(ranks));
  KUAFU_REQUIRE(has_any, "an optimizer is checked on ", join(words),
                " ranks; --sizes has none of them");
  return std::move(findings).all();
}

}  // namespace kuafu::conformance
