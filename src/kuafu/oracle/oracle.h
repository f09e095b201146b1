// SPDX-License-Identifier: Apache-2.0
//
// What a plan should compute, written a second time: after the papers' listings, in plain ATen with
// its own autograd, whole tensors on one rank, in the type that the weights have (f64 for a
// reference). Shares nothing with the library's ops, engine, mesh or optimizers but the
// counter-based generator (base/philox.h), so that a wrong kernel of theirs is not also wrong here.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "kuafu/base/errors.h"
#include "kuafu/base/registry.h"
#include "kuafu/dataset/dataset.h"
#include "kuafu/plan/plan.h"

namespace kuafu::oracle {

/// Whole tensors by the name of their parameter, without padding.
using Tensors = std::map<std::string, at::Tensor>;

/// What travels from block to block: (B, S, H) each.
using Flow = std::vector<at::Tensor>;

/// Samples of one micro-batch of one replica, and where they stand in the step.
struct Samples {
  Tokens tokens;
  int64_t first = 0;  ///< index of the first in the global batch: dropout and coins follow it
  int64_t step = 0;   ///< from 0
  int64_t batch = 0;  ///< samples of the whole global batch: losses are means over them
  bool is_training = true;
};

/// What a router decided, by mixture block ("blocks.1.moe"): handed to the oracle where rounding
/// may decide otherwise. (B, E, C) i64: the position in its sample that a slot holds, -1 = none; C
/// may be padded. Where tokens choose, "blocks.1.moe.choices" may stand beside it, (B, S, k) i64:
/// the experts each token chose, best first, also those that had no slot left; without it the
/// choices that no slot shows are taken to be the oracle's own.
using Routes = std::map<std::string, at::Tensor>;

/// How far handed decisions are from the oracle's own: largest (best score - chosen score). Infinite
/// where they break a rule that no rounding excuses: a token twice in an expert's slots, a slot left
/// empty, an order of filling them that is not the paper's.
struct Regret {
  double most = 0;
  std::string where = {};  ///< the mixture that is furthest

  void add(const Regret& other);
};

/// Routes of other extents, or with numbers that name nothing.
class WrongRoutes : public ConfigError {
 public:
  using ConfigError::ConfigError;
};

/// What a call of a block gives besides its output.
struct Extra {
  at::Tensor loss = {};  ///< auxiliary loss, scaled like the model's own; may be undefined
  const Routes* routes = nullptr;  ///< in: decisions to take; null: its own
  Routes* routed = nullptr;        ///< out: decisions taken; may be null
  Regret* regret = nullptr;        ///< out: of handed decisions; may be null
  Tensors* scores = nullptr;     ///< out: the scores decided by, (B, S, E), by mixture; may be null
  at::Tensor* logits = nullptr;  ///< out: (B, S, V), of causal models, before the loss; may be null
  /// out: sum of the absolute terms of each weight gradient, filled in while backward runs
  /// (|x|^T |dy| for a product, sum |dy| for a bias); may be null.
  Tensors* absolute = nullptr;
};

/// A parameter's extents and first value, as a function of the global index.
struct Weight {
  std::vector<int64_t> shape;
  enum class Init : uint8_t { kNormal, kZeros, kOnes } init = Init::kNormal;
  double std = 0.02;
  /// Tensors of the papers that it holds, each a layer to an optimizer: one an index of dim 0 where
  /// they are stacked (experts); `fused` of them share the last dim, `run` columns of each in turns.
  bool is_stacked = false;
  int64_t fused = 1, run = 1;
};

/// A model as a list of blocks, named as the library names them. Threads call its methods at once.
class Model {
 public:
  virtual ~Model() = default;
  virtual std::vector<std::string> blocks() const = 0;
  /// Names of the parameters a block reads, borrowed ones too.
  virtual std::vector<std::string> params_of(size_t block) const = 0;
  virtual std::map<std::string, Weight> weights() const = 0;
  /// Differentiable by ATen's autograd in `in` and `weights`. The first block takes nothing, the
  /// last gives {loss}: this micro-batch's part of the mean over the global batch.
  virtual Flow forward(size_t block, const Flow& in, const Tensors& weights, const Samples& samples,
                       Extra& extra) const = 0;
};

/// By plan.kind; null for a kind it does not know.
std::unique_ptr<Model> make_model(const ModelPlan& plan, uint64_t seed);

/// Makes the oracle of one kind of model; `seed`: train.seed.
using MakeModel = std::function<std::unique_ptr<Model>(const ModelPlan& plan, uint64_t seed)>;

/// Those of make_model, by kind.
void register_models(Registry<MakeModel>& models);

/// The first values of all weights: element i is Philox(seed, name, i), as f64.
Tensors initial_weights(const Model& model, uint64_t seed);

/// Loss and gradients of a step: the sum over its micro-batches.
struct Gradients {
  double loss = 0;    ///< of the model alone; auxiliary losses reach the gradients
  Tensors gradients;  ///< before clipping; of every weight that was used
  Tensors absolute;   ///< sums of the absolute terms of each
  /// Where terms are not known but guessed by the gradients themselves: the largest of all gradients,
  /// by which it is judged whether rounding is all there is. 0: terms are known.
  double largest = 0;
  Regret regret;
  Tensors scores;  ///< of routers, by mixture, (B, S, E) of all micro-batches
};
/// `routes`, where not empty: one a micro-batch. `scale`: the loss is multiplied by it in backward
/// and the gradients are left so.
Gradients gradients(const Model& model, const Tensors& weights, const std::vector<Samples>& micro,
                    const std::vector<Routes>& routes = {}, double scale = 1);

/// The loss alone: the sum over micro-batches, as of gradients().
double loss_of(const Model& model, const Tensors& weights, const std::vector<Samples>& micro);

/// The logits of a causal model, (B, S, V).
at::Tensor logits_of(const Model& model, const Tensors& weights, const Samples& samples);

/// What passes the boundaries of a block, (B, S, H) of a whole batch; undefined before the first
/// block, and where the last gives a loss.
struct BlockFlow {
  at::Tensor input, output, output_gradient, input_gradient;
};
using BlockFlows = std::map<std::string, BlockFlow>;

/// Every block by itself, from the inputs and output gradients of `given`: its output and input
/// gradient, and the gradients of all weights, summed over the blocks that use them. So no error of
/// one block reaches another. Losses are multiplied by `scale` in backward, as the output gradients
/// given are; the gradients are left so. `which`: indices of the blocks that are looked at; empty: all.
struct BlockGradients {
  Gradients sums;
  BlockFlows flows;
};
BlockGradients block_gradients(const Model& model, const Tensors& weights, const Samples& batch,
                               const BlockFlows& given, const Routes* routes = nullptr,
                               double scale = 1, const std::vector<size_t>& which = {});

/// Optimizer state of every weight by slot: "m" and "v" of Adam, AdamW and LAMB, "velocity" of SGD
/// and LARS, and of weights in half precision "master", their f32 originals; all in the type of the
/// update.
struct State {
  int64_t num_steps = 0;  ///< updates made
  std::map<std::string, Tensors> slots;
};

/// Euclidean norm over all gradients, in f64.
double norm_of(const Tensors& gradients);
/// The rate of step t (from 0) of a schedule of `steps` steps; `batch`: samples of a step, for rates
/// that follow it.
double learning_rate(const OptimizerPlan& plan, int64_t t, int64_t steps, int64_t batch = 0);

/// Extents and layers of weights, by name; a weight that is not there is one layer.
using Weights = std::map<std::string, Weight>;

/// At every element the Euclidean norm of the layer it belongs to, in f64.
at::Tensor norms_of_layers(const at::Tensor& t, const Weight& weight);
/// What LARS and LAMB scale each layer's step by, at every element: the ratio (1 where they scale
/// nothing), and LAMB's step before it.
struct Trust {
  Tensors ratio, direction;
};
/// What a formula reads of one weight in one step, and the state it goes on with. Letters are those of
/// the papers.
struct Step {
  const OptimizerPlan& plan;
  double alpha;   ///< the rate
  double lambda;  ///< weight decay; 0 where the weight is left out of it
  int64_t t;      ///< from 1
  Weight shape;
  bool is_scaled;  ///< by a trust ratio
  State& state;
  const std::string& name;
  Trust* trust;

  /// State of the weight, which the formula replaces or changes: zeros at first.
  at::Tensor& slot(const std::string& kind, const at::Tensor& theta) const;
  void note(const at::Tensor& ratio, const at::Tensor& direction) const;
};

/// What the derivation of certificates (engine/proof/certificate_update.cpp) has to know of a
/// formula. Without it they measure how rounding travels through the formula.
struct Rounding {
  enum class Decay : uint8_t { kInGradient, kOfWeight, kInDirection };
  enum class Ratio : uint8_t { kNone, kOfGradient, kOfDirection };

  int64_t per_element = 0;  ///< roundings of an element on its way, at most; 0 = not derived
  Decay decay = Decay::kInGradient;
  Ratio ratio = Ratio::kNone;  ///< the layer's norms that its step is scaled by
  bool has_root = false;       ///< divides by the root of a second moment: slots "m" and "v"
  /// Of steps of whole matrices, whose only slot is "velocity" and whose rate is that of the plan
  /// (all else has `adam_lr`): orthogonal_error.
  std::function<at::Tensor(const OptimizerPlan& plan, const at::Tensor& u, const at::Tensor& spread,
                           const Weight& weight, double unit)>
      of_matrices = {};

  bool is_derived() const { return per_element > 0; }
};

/// An update rule as a formula over whole tensors, in their type: the weight after the step, from the
/// clipped gradient g and the weight theta. Called by several threads at once.
struct UpdateRule {
  std::function<at::Tensor(const Step& step, const at::Tensor& g, const at::Tensor& theta)> update;
  bool is_by_layers = false;  ///< "auto" leaves vectors out
  Rounding rounding = {};     ///< of formulas of this build alone; a plug-in's is measured
};
using UpdateRules = Registry<UpdateRule>;

/// Those of this build, by optimizer.kind.
void register_updates(UpdateRules& rules);
const UpdateRules& builtin_updates();

/// Whether optimizer.exclude leaves a weight out of decay and trust ratios.
bool is_excluded(const OptimizerPlan& plan, const Weight& weight,
                 const UpdateRules& rules = builtin_updates());

/// Whether LARS or LAMB scale the step of a weight by a trust ratio.
bool is_scaled(const OptimizerPlan& plan, const Weight& weight,
               const UpdateRules& rules = builtin_updates());

/// One update in place: clipping by `norm`, then the rule, in the type of the weights, or of f32
/// masters of half-precision weights, which are then rounded. State is made at the first call, or
/// given: slots and updates made. `norm`: of the unclipped gradients, which may be of a wider type
/// than the weights. Weights without a gradient stay as they are. `trust`: filled in where not null.
void update(const OptimizerPlan& plan, double lr, double norm, const Tensors& gradients,
            Tensors& weights, State& state, const Weights& shapes = {}, Trust* trust = nullptr,
            const UpdateRules& rules = builtin_updates());

}  // namespace kuafu::oracle
