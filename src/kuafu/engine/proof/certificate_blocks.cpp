// SPDX-License-Identifier: Apache-2.0
//
// A step one block at a time: the reference starts each block from the run's own input and output
// gradient, and the outputs, input gradients and sums of weight gradients over the blocks are
// compared in the norm of each, with the bound of gradients (certificate_step.cpp). The reference's
// own rounding y is that of the same block in the run's type, and where that is not enough, of
// terms that cancel, the largest of draws at random, as of whole steps. y counts up to kDiverged: a
// tensor that is further off, by no more than its larger y explains, names the step. What a whole
// model makes of an error of its first block is in neither.

#include "kuafu/engine/proof/certificate_blocks.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <ATen/ATen.h>

#include "kuafu/engine/proof/certificate_compare.h"
#include "kuafu/oracle/random_rounding.h"

namespace kuafu {
namespace {

double norm_of(const Tensor& t) { return t.to(at::kDouble).norm().item<double>(); }

/// All tensors that are compared, by words.
oracle::Tensors flat(const oracle::BlockFlows& flows, const oracle::Tensors& sums) {
  oracle::Tensors all = sums;
  for (const auto& [name, flow] : flows) {
    if (flow.output.defined()) all[name + ", output"] = flow.output;
    if (flow.input_gradient.defined()) all[name + ", input gradient"] = flow.input_gradient;
  }
  return all;
}

class BlockCheck {
 public:
  BlockCheck(const Plan& plan, const Evidence& evidence, const oracle::Tensors& weights,
             CertificateReference& reference, Proof& proof, const std::vector<size_t>& which)
      : plan_(plan),
        is_(evidence),
        weights_(weights),
        reference_(reference),
        proof_(proof),
        which_(which),
        mine_(flat(evidence.flows, layers_apart(evidence.gradients, reference.weights()))) {
    const oracle::BlockGradients exact = blocks(DType::kF64);
    exact_ = flat(exact.flows, exact.sums.gradients);
    for (const auto& [name, g] : exact_) {
      const auto found = exact.sums.absolute.find(name);
      size_[name] = norm_of(found == exact.sums.absolute.end() ? g : found->second);
      squares_[weight_of_layer(name)] += size_[name] * size_[name];
    }
  }

  void run() {
    const Proof before = proof_;
    std::map<std::string, double> y = measured();
    compare(y);
    if (proof_.blocks.holds() && lost_.y == 0) return;
    proof_ = before;
    lost_ = {};
    measure_at_random(y, kDraws);
    compare(y);
    if (!proof_.blocks.holds()) {
      proof_ = before;
      lost_ = {};
      measure_at_random(y, kManyDraws);
      compare(y);
    }
    if (!proof_.blocks.holds() || proof_.verdict == "different" || lost_.y == 0) return;
    proof_ = before;
    proof_.give_up(divergence(plan_, is_, lost_.name, lost_.y, "its norm"));
  }

 private:
  oracle::BlockGradients blocks(DType type) const {
    return reference_.blocks(is_.step, in_type(weights_, scalar_type(type)), is_.flows,
                             is_.routes.tensors, is_.report.loss_scale, which_);
  }

  /// How far a computation that rounds is from the exact one, relative to the norm of its terms.
  void take_larger(std::map<std::string, double>& y, const oracle::BlockGradients& rounded,
                   double share) const {
    for (const auto& [name, g] : flat(rounded.flows, rounded.sums.gradients)) {
      const double far = norm_of(g - exact_.at(name)) / size_.at(name) * share;
      if (std::isfinite(far)) y[name] = std::max(y[name], far);
    }
  }

  /// As in whole steps: a draw that leaves the range of numbers is y without bound.
  void take_overflow(std::map<std::string, double>& y, const oracle::BlockGradients& drawn) const {
    for (const auto& [name, g] : flat(drawn.flows, drawn.sums.gradients)) {
      if (std::isfinite(norm_of(exact_.at(name))) && !std::isfinite(norm_of(g))) {
        y[name] = std::numeric_limits<double>::infinity();
      }
    }
  }

  std::map<std::string, double> measured() const {
    const DType type = plan_.model.dtype == DType::kF64 ? DType::kF32 : plan_.model.dtype;
    std::map<std::string, double> y;
    take_larger(y, blocks(type), unit_roundoff(plan_.model.dtype) / unit_roundoff(type));
    return y;
  }

  void measure_at_random(std::map<std::string, double>& y, uint64_t draws) const {
    const DType type = plan_.model.dtype;
    for (uint64_t draw = 0; draw < draws; ++draw) {
      const oracle::RandomRounding at_random(unit_roundoff(type), draw);
      const oracle::BlockGradients drawn = blocks(is_wide(type) ? DType::kF64 : type);
      take_larger(y, drawn, 1);
      if (type != DType::kF16) take_overflow(y, drawn);
    }
  }

  /// What is no number, or has no size to be measured on, is told by the whole model.
  void compare(const std::map<std::string, double>& y) {
    for (const auto& [name, g] : exact_) {
      const auto mine = mine_.find(name);
      const auto rounding = y.find(name);
      if (mine == mine_.end()) proof_.refute(at_step(is_, name + ": missing"));
      if (mine == mine_.end() || rounding == y.end() || size_.at(name) == 0) continue;
      add(norm_of(mine->second - g) / size_.at(name), rounding->second, name);
    }
  }

  /// y counts up to kDiverged, of a layer up to as much of its whole weight. What it would excuse beyond is lost, and names the step.
  void add(double far, double y, const std::string& name) {
    const double share = size_.at(name) / std::sqrt(squares_.at(weight_of_layer(name)));
    const double bound = gradient_bound(plan_, std::min(y, kDiverged / share));
    if (far <= bound || !(far <= gradient_bound(plan_, y))) {
      proof_.blocks.add(far, bound, at_step(is_, name));
    } else if (y * share > lost_.y) {
      lost_ = {weight_of_layer(name), y * share};
    }
  }

  struct Lost {
    std::string name = {};
    double y = 0;
  };

  const Plan& plan_;
  const Evidence& is_;
  const oracle::Tensors& weights_;
  CertificateReference& reference_;
  Proof& proof_;
  const std::vector<size_t>& which_;
  oracle::Tensors mine_, exact_;
  std::map<std::string, double> size_;     ///< norms of what is summed
  std::map<std::string, double> squares_;  ///< of those of the layers of one weight
  Lost lost_;  ///< the tensor that rounding alone moves most, beyond its bound
};

}  // namespace

void check_blocks(const Plan& plan, const Evidence& evidence, const oracle::Tensors& weights,
                  CertificateReference& reference, Proof& proof, const std::vector<size_t>& which) {
  const bool has_ended = proof.verdict == "not_run" && !proof.reason.empty();
  if (!evidence.is_by_blocks || has_ended) return;
  if (evidence.flows.empty()) {
    return proof.give_up(
        at_step(evidence,
                "no block of the model hands on one tensor that could be kept: its blocks are "
                "compared with nothing"));
  }
  LayersReference of_layers(reference);
  BlockCheck(plan, evidence, weights, of_layers, proof, which).run();
}

}  // namespace kuafu
