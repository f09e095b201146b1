// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "kuafu/engine/engine.h"
#include "kuafu/oracle/oracle.h"

namespace kuafu {

/// What a plan should compute, by somebody else. Lives on rank 0, outside of all worlds.
class CertificateReference {
 public:
  virtual ~CertificateReference() = default;
  virtual std::string name() const = 0;  ///< "oracle" or "engine"
  /// Whether several threads may ask it at once.
  virtual bool is_stateless() const { return false; }
  /// What weights there are, and which layers each holds.
  virtual oracle::Weights weights() = 0;
  /// Whole weights before the first step, f64.
  virtual oracle::Tensors initial_weights() = 0;
  /// Of a step (from 0), computed in the type of `weights`; gradients in f64. `routes`: of the
  /// whole batch, decisions of routers to take over; empty without mixtures.
  virtual oracle::Gradients gradients(int64_t step, const oracle::Tensors& weights,
                                      const oracle::Routes& routes) = 0;
  /// The same as a run of that type rounds it: micro-batch by micro-batch, the loss times `scale`
  /// in backward, which is taken out again.
  virtual oracle::Gradients rounded_gradients(int64_t step, const oracle::Tensors& weights,
                                              const oracle::Routes& routes, double scale) = 0;
  /// Every block by itself from what passed its boundaries in a run, the loss times `scale` in it;
  /// flows without blocks where the reference has none. Sums are in f64, without the scale. `which`:
  /// indices of the blocks alone; empty: all.
  virtual oracle::BlockGradients blocks(int64_t step, const oracle::Tensors& weights,
                                        const oracle::BlockFlows& flows,
                                        const oracle::Routes& routes, double scale,
                                        const std::vector<size_t>& which = {}) = 0;
  /// One of `count` equal parts of a step's samples, in the order of replicas; parts add up.
  struct Share {
    int64_t index = 0, count = 1;
  };
  /// Mean over the validation samples after so many steps, in the type of `weights`; nothing where it
  /// is not known: without an oracle, and of mixtures, whose routes a validation does not keep.
  virtual std::optional<double> validation_loss(int64_t, const oracle::Tensors&) { return {}; }
  virtual oracle::Gradients share(int64_t step, Share share, const oracle::Tensors& weights) = 0;
};

/// An oracle whose weights are not those of the model.
class UnlikeWeights : public ConfigError {
 public:
  using ConfigError::ConfigError;
};

/// The oracle registered for plan.model.kind, else a single rank of the engine, whose sums of
/// absolute terms are taken to be the largest gradient of their layer. Throws ConfigError for a plan of
/// one rank without an oracle, which would be its own reference, and UnlikeWeights for an oracle without
/// one of the model's `params` (empty: not looked at), or with other extents or layers. @pre registries and data outlive it
std::unique_ptr<CertificateReference> make_reference(const Plan& plan, const Registries& registries,
                                                     const Dataset& data,
                                                     const std::vector<WholeParam>& params = {});

/// Tensors like weights, those that hold several layers (queries, keys and values; experts) taken
/// apart: "w, part 2 of 3". What is compared whole hides an error of its smallest part: gradients of
/// queries and keys may be hundreds of times smaller than those of values. Views of contiguous tensors.
oracle::Tensors layers_apart(const oracle::Tensors& whole, const oracle::Weights& weights);
/// "w" of "w, part 2 of 3".
std::string weight_of_layer(const std::string& name);

/// A reference whose gradients are of each layer by itself.
class LayersReference : public CertificateReference {
 public:
  /// `whole` must outlive it.
  explicit LayersReference(CertificateReference& whole)
      : whole_(whole), weights_(whole.weights()) {}

  std::string name() const override { return whole_.name(); }
  bool is_stateless() const override { return whole_.is_stateless(); }
  oracle::Weights weights() override { return weights_; }
  oracle::Tensors initial_weights() override { return whole_.initial_weights(); }
  oracle::Gradients gradients(int64_t step, const oracle::Tensors& weights,
                              const oracle::Routes& routes) override {
    return apart(whole_.gradients(step, weights, routes));
  }
  oracle::Gradients rounded_gradients(int64_t step, const oracle::Tensors& weights,
                                      const oracle::Routes& routes, double scale) override {
    return apart(whole_.rounded_gradients(step, weights, routes, scale));
  }
  oracle::BlockGradients blocks(int64_t step, const oracle::Tensors& weights,
                                const oracle::BlockFlows& flows, const oracle::Routes& routes,
                                double scale, const std::vector<size_t>& which) override {
    oracle::BlockGradients out = whole_.blocks(step, weights, flows, routes, scale, which);
    out.sums = apart(std::move(out.sums));
    return out;
  }
  oracle::Gradients share(int64_t step, Share share, const oracle::Tensors& weights) override {
    return apart(whole_.share(step, share, weights));
  }

 private:
  oracle::Gradients apart(oracle::Gradients g) const {
    for (oracle::Tensors* sums : {&g.gradients, &g.absolute}) *sums = layers_apart(*sums, weights_);
    return g;
  }

  CertificateReference& whole_;
  const oracle::Weights weights_;
};

/// One rank with everything: the plan without parallelism, in as many micro-batches.
Plan single_rank(Plan plan);

}  // namespace kuafu
