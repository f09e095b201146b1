// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kuafu/mesh/axis.h"
#include "kuafu/plan/plan.h"
#include "kuafu/tensor/expert_ops.h"

namespace kuafu {

/// Experts a token chooses; 0 where experts choose tokens.
int64_t choices_of_token(const ModelPlan& plan);

/// Slots of an expert for one sample: ceil(capacity_factor k S / E), k = 1 where experts choose, at
/// least 1 and at most S, which no expert can pass.
int64_t expert_capacity(const ModelPlan& plan);

struct Routed {
  Tensor gates;           // (B, E, C)
  Tensor loss;            // scalar: the weighted auxiliary losses of these samples
  Tensor token;           // (B, E, C) i64 position in the sample, -1 where empty
  Tensor counts, chosen;  // see ops::RouteOut
};

/// ops::route, differentiable: gradients of the gates and of the losses, each times its weight,
/// reach the logits (B, S, E).
Routed route(const Tensor& logits, const ops::RouteSpec& spec, ops::LossWeights weights);

/// (B, S) f64 uniform numbers: element (first + b, s) of the stream of (seed, site, step), the same
/// whatever the layout.
struct CoinKey {
  uint64_t seed = 0, site = 0;
  int64_t step = 0, first_sample = 0;
};
Tensor coins(const CoinKey& key, int64_t samples, int64_t sequence, at::Device device);

/// What a router decided for samples that follow each other.
struct RoutedSamples {
  int64_t first = 0;  ///< of them in the global batch
  Tensor slots;       // (B, E, C) i64, see Routed::token
  Tensor choices;     // (B, S, k) i64, see ops::RouteOut::chosen
};

/// What the router of a mixture layer did in training so far.
class RouterTally {
 public:
  /// `name`: the mixture's. `samples`: axes besides "data" whose ranks route different samples.
  RouterTally(std::string name, Axes samples)
      : name_(std::move(name)), sample_axes_(std::move(samples)) {}

  /// Adds a micro-batch whose first sample, of this rank, is that of the global batch; one that
  /// comes again, recomputed, counts once.
  void add(const Routed& routed, int64_t step, int64_t first_sample);

  /// From now on copies of the last step's decisions are kept.
  void keep_routes() { keeps_routes_ = true; }
  const std::vector<RoutedSamples>& routes() const { return routes_; }
  const std::string& name() const { return name_; }

  bool is_empty() const { return by_step_.empty(); }
  /// Steps seen, and the counts of each, see ops::RouteOut: (steps, 2 E + 2), of my samples.
  int64_t steps() const { return static_cast<int64_t>(by_step_.size()); }
  Tensor counts() const;
  const Axes& sample_axes() const { return sample_axes_; }

 private:
  std::string name_;
  Axes sample_axes_;
  Tensors by_step_;  // (2 E + 2) each: a record, which no rank's memory books
  bool keeps_routes_ = false;
  std::vector<RoutedSamples> routes_;
  int64_t last_step_ = -1;
  std::set<int64_t> seen_;  ///< first samples of the step's micro-batches
};

}  // namespace kuafu
