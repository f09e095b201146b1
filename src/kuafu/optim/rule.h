// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "kuafu/base/registry.h"
#include "kuafu/plan/plan.h"
#include "kuafu/tensor/ops.h"
#include "kuafu/tensor/param.h"

// An optimizer as its paper has it: data and arithmetic on the elements of a piece. Who holds the
// other pieces of a layer, how norms come together, masters, saving: apply.cpp, once for all rules.
namespace kuafu {

/// What a rule reads and changes: some elements of a parameter, whole layers or not, on some ranks
/// none.
struct RulePiece {
  Tensor value;               ///< f32 or f64; of a half-precision parameter its master copy
  Tensor grad;                ///< of any type, to be multiplied by grad_factor; may be used up
  std::vector<Tensor> slots;  ///< like the value, in the order of Rule::slots
  double grad_factor = 1;
  double weight_decay = 0;    ///< 0 for layers that are left out
  ops::LayerRun layers = {};  ///< where the elements lie among them
  bool is_matrix = false;     ///< a piece of hidden matrices, of a rule with matrix_slots
  Tensor step = {};           ///< of these elements, for the update of a piece of matrices
  /// A pass may leave as many numbers of the value's type in the gradient for the next pass to read.
  bool is_grad_spare = false;
};

/// Of one step.
struct Rates {
  double lr = 0;
  int64_t step = 1;  ///< from 1
};

/// What a pass over a piece does with its slots.
enum class SlotUse : uint8_t {
  kNone,  ///< nothing: they are undefined tensors there
  kRead,
  kChange,
};
struct SlotUses {
  SlotUse measure = SlotUse::kChange, update = SlotUse::kChange;
};

/// One update rule. A rule without ratios is elementwise: update alone. With ratios a step is
///
///   measure   elementwise: moments, and sums of squares by layer over the piece, (layers, k) f64
///             (sums of all pieces of a layer, then norms: not the rule's)
///   ratios    norms (layers, k) f64 -> (layers) f64, those of layers without a norm 1
///   update    elementwise, with the ratio of each element's layer
///
/// With matrix_slots hidden matrices have a step that follows from all of each:
///
///   direction  elementwise: what the step is made of, like the piece
///              (all pieces of a matrix come to one rank, and its step goes back: not the rule's)
///   whole      the direction of one matrix (R, C), or of several side by side (q, k, v) -> the step
///   update     elementwise, with RulePiece::step
struct Rule {
  /// Zero at first; a checkpoint calls them "kind.slot.parameter".
  std::vector<std::string> slots = {};
  /// Of hidden matrices instead, where the rule updates those as wholes; else empty.
  std::vector<std::string> matrix_slots = {};
  std::function<Tensor(RulePiece& piece, const Rates& rates)> direction = {};
  /// Whether that is a tensor of its own, no slot: a skipped step, which makes none, holds as much.
  bool has_own_direction = false;
  /// Of a piece, its slots aside: what comes from a disk, and goes back, for each pass. Empty: both
  /// change them.
  std::function<SlotUses(const RulePiece& piece)> slot_uses = {};
  std::function<Tensor(const Tensor& direction, const LayerSplit& layers)> whole = {};
  std::function<Tensor(RulePiece& piece, const Rates& rates)> measure = {};
  int64_t num_norms = 2;  ///< k
  std::function<Tensor(const Tensor& norms, const Rates& rates)> ratios = {};
  /// `ratios` is undefined where there are none.
  std::function<void(RulePiece& piece, const Rates& rates, const Tensor& ratios)> update;

  bool has_ratios() const { return static_cast<bool>(ratios); }
  bool has_matrices() const { return !matrix_slots.empty(); }
  /// The step of an element follows from its whole layer.
  bool is_by_layers() const { return has_ratios() || has_matrices(); }
};

/// A rule of a registry.
struct OptimizerRule {
  /// Keys of [optimizer] that it reads besides those that all read: "momentum".
  std::vector<std::string> keys = {};
  /// Throws ConfigError for coefficients that no key allows.
  std::function<Rule(const OptimizerPlan& plan)> make = {};
};
using OptimizerRules = Registry<OptimizerRule>;

/// Those of builtin_optimizer_kinds(), in their order.
void register_optimizers(OptimizerRules& rules);
const OptimizerRules& builtin_optimizers();

/// Throws ConfigError where it cannot be a rule: no update, ratios that nothing measures, slots
/// without a name, of one name, or of a name that checkpoints cannot have.
void check_rule(const std::string& name, const Rule& rule);

/// Each in the file of its name. Throw ConfigError for coefficients that no key allows.
#define KUAFU_OPTIMIZER(constant, name, rule, ...) Rule rule(const OptimizerPlan& plan);
#include "kuafu/plan/optimizers.def"

/// By plan.kind; throws ConfigError listing the kinds, or for a rule that is none.
Rule make_rule(const OptimizerPlan& plan, const OptimizerRules& rules = builtin_optimizers());

/// Whether a parameter holds matrices of blocks: none that embeds, none of the head, no vectors.
bool holds_hidden_matrices(const Param& p);

/// A trust ratio, (layers) f64, kept in the bounds of plan.bounded(), those of "weights" apart.
Tensor within_bounds(const OptimizerPlan& plan, const Tensor& ratio, const Rates& rates);

/// sqrt(1 - beta2^t) / (1 - beta1^t): what a rate makes up for where moments are not corrected.
double correction_of_rate(const OptimizerPlan& plan, int64_t t);

/// What rules share: betas and momentum below 1. Throw ConfigError.
void check_betas(const OptimizerPlan& plan);
void check_momentum(const OptimizerPlan& plan);

/// (layers): 1 where either norm, column 0 or 1 of (layers, 2), is zero, else 0. Such a layer has the
/// ratio 1: of zeros it could never leave them. By arithmetic that meta tensors have too.
Tensor is_zero_layer(const Tensor& norms);

}  // namespace kuafu
