// SPDX-License-Identifier: Apache-2.0
//
// A step one block at a time: the reference starts each block from the run's own input and output
// gradient, and the outputs, input gradients and sums of weight gradients over the blocks are
// compared in the norm of each, with the bound of gradients (certificate_step.cpp). The reference's
// own rounding y is that of the same block in the run's type. What a whole model makes of an error
// of its first block is in neither.

#include "kuafu/engine/certificate_blocks.h"

#include <cmath>

#include <ATen/ATen.h>

namespace kuafu {
namespace {

double norm_of(const Tensor& t) { return t.to(at::kDouble).norm().item<double>(); }

}  // namespace

void check_blocks(const Plan& plan, const Evidence& evidence, const oracle::Tensors& weights,
                  Reference& reference, Proof& proof) {
  if (evidence.flows.empty()) return;
  const DType type = plan.model.dtype == DType::kF64 ? DType::kF32 : plan.model.dtype;
  const double share = unit_roundoff(plan.model.dtype) / unit_roundoff(type);
  const auto blocks = [&](at::ScalarType in) {
    oracle::Tensors mine;
    for (const auto& [name, w] : weights) mine[name] = w.to(in);
    return reference.blocks(evidence.step, mine, evidence.flows, evidence.routes.tensors,
                            evidence.report.loss_scale);
  };
  const oracle::BlockGradients exact = blocks(at::kDouble), rounded = blocks(scalar_type(type));
  const auto compare = [&](const std::string& what, const Tensor& mine, const Tensor& g,
                           const Tensor& far, const Tensor& terms) {
    if (!g.defined()) return;
    const double norm = norm_of(terms), y = norm_of(far - g) / norm * share;
    if (norm == 0 || !std::isfinite(y)) return;
    proof.blocks.add(norm_of(mine - g) / norm, gradient_bound(plan, y),
                     text(what, ", step ", evidence.step + 1));
  };
  for (const auto& [name, flow] : exact.flows) {
    const oracle::BlockFlow &mine = evidence.flows.at(name), &far = rounded.flows.at(name);
    compare(name + ", output", mine.output, flow.output, far.output, flow.output);
    compare(name + ", input gradient", mine.input_gradient, flow.input_gradient, far.input_gradient,
            flow.input_gradient);
  }
  for (const auto& [name, g] : exact.sums.gradients) {
    const auto mine = evidence.gradients.find(name), terms = exact.sums.absolute.find(name);
    if (mine == evidence.gradients.end()) continue;  // told by the whole model
    compare(name, mine->second, g, rounded.sums.gradients.at(name),
            terms == exact.sums.absolute.end() ? g : terms->second);
  }
}

}  // namespace kuafu
