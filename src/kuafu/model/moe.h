// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "kuafu/model/layers.h"
#include "kuafu/parallel/expert/routing.h"

// Mixture of experts in the place of an MLP.
namespace kuafu {

/// y[e] = x[e] w[e] + bias[e] for my experts e, each product by the tensor scheme; weights
/// (E/expert, in, out). One node of the graph whatever the number of experts.
class ExpertLinear : public Module {
 public:
  ExpertLinear(const Context& ctx, const std::string& name, const ModelPlan& plan, Role role,
               double std);
  Tensor operator()(const Tensor& x) const;  // (E/expert, B, C, in) -> (E/expert, B, C, out)

 private:
  const Context& ctx_;
  Role role_;
  Param& weight_;
  Param* bias_ = nullptr;
};

/// Router, dispatch, experts, combine; tokens beyond an expert's capacity get nothing (the residual
/// stream carries them). Beside it the shared experts, one MLP that every token visits.
class Mixture : public Module {
 public:
  Mixture(const Context& ctx, const std::string& name, const ModelPlan& plan, double out_std);

  struct Out {
    Tensor y;     // outer
    Tensor loss;  // scalar: balance and z-loss of this micro-batch, scaled like the model's loss
  };
  Out operator()(const Tensor& x, const Side& side);  // outer -> outer

  RouterTally& tally() { return tally_; }

 private:
  Tensor logits(const Tensor& x, const Side& side) const;
  /// The first of this rank's samples in the global batch.
  int64_t first_sample(int64_t local, const Side& side) const;
  Routed route_samples(const Tensor& logits, const Side& side) const;
  Slots slots_of(const Tensor& token, const Side& side) const;

  const Context& ctx_;
  const ModelPlan plan_;
  uint64_t site_;
  Layout outer_;
  Param& router_;
  ExpertLinear up_, down_;
  std::optional<Mlp> shared_;
  RouterTally tally_;
};

/// Whether layer `index` of the plan is a mixture: the last of each moe_every.
bool is_mixture(const ModelPlan& plan, int64_t index);
int64_t num_mixtures(const ModelPlan& plan);

}  // namespace kuafu
