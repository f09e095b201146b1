// SPDX-License-Identifier: Apache-2.0
//
// What an update may lack as a whole, though each element is within its bound.
//
// u is the unit roundoff of the type that is updated, w a layer's weights before, w' after, d = w' - w
// by the formula and e = run - formula. Small steps are rounding to bounds of elements: tens of u |w|.
// All of a layer's together are not. Elements whose d is below kLostStep u |w| may be lost as a whole;
// the roundings of all others do not know where x points, the step d or the weights w, and
//
//   |sum e x|  <=  sum |d x| (of the former)  +  kAlong sqrt(sum (bound x)^2)  +  kFactor x that of a draw
//                  + u sum |w' x|          of weights and steps that are all equal, rounded all alike
//                  + kOfStep u |sum d x|   rates and corrections of moments in f32, which are numbers,
//                                          not tensors, so that no draw moves them
//                  + 2 u |sum w x|         1 - rate x decay in f32: the factor of all weights
//                  + sum |lost x|          what underflow takes from elements, of all the same way
//
// So a rule that leaves out all steps below 28 u |w| is told in a layer of some thousand elements where
// they are longer than some 8 u |w|, along the step; one that leaves out the decay, which is next to
// orthogonal to the step, along the weights, in a layer of a thousand elements from rate x decay = 12 u
// on, 7e-7 in f32. (In f32 a decay of 1 u is lost in the rounding of the weight itself.)
//
// A trust ratio is one number of a layer too: the norms it is made of are sums in f64, and what their
// elements are off by at random adds up to less of them than of one element.
//
// The errors are told as shares of the bound, in units of `whole`.

#include <algorithm>
#include <cmath>
#include <map>

#include <ATen/ATen.h>

#include "kuafu/engine/proof/certificate_compare.h"
#include "kuafu/engine/proof/certificate_rounding.h"

namespace kuafu {
namespace {

constexpr double kLostStep = 4, kAlong = 4;

double product(const Tensor& a, const Tensor& b) { return (a * b).sum().item<double>(); }

/// One layer of an updated weight.
struct Layer {
  Tensor before, step, error, bound, lost = {};
  std::vector<Tensor> draws = {};

  double rounding_along(const Tensor& x, double u) const {
    const Tensor small = step * (step.abs() < kLostStep * u * before.abs());
    const Tensor after = before + step;
    double drawn = 0;
    for (const Tensor& draw : draws) drawn = std::max(drawn, std::abs(product(draw, x)));
    const double underflow = lost.defined() ? product(lost.abs(), x.abs()) : 0;
    return underflow + product(small.abs(), x.abs()) + kAlong * length(bound * x) +
           kFactor * drawn + u * product(after.abs(), x.abs()) +
           kOfStep * u * std::abs(product(step, x)) + 2 * u * std::abs(product(before, x));
  }
};

std::map<std::string, Layer> layers_of(const UpdatedWeight& w, const oracle::Weights& layers) {
  const auto apart = [&](const Tensor& t) {
    return layers_apart({{w.name, t.contiguous()}}, layers);
  };
  std::map<std::string, Layer> all;
  const auto fill = [&](Tensor Layer::*member, const Tensor& t) {
    for (const auto& [name, part] : apart(t)) all[name].*member = part;
  };
  fill(&Layer::before, w.before);
  fill(&Layer::step, w.exact - w.before);
  fill(&Layer::error, w.mine - w.exact);
  fill(&Layer::bound, w.bound);
  if (w.lost.defined()) fill(&Layer::lost, w.lost);
  for (const Tensor& draw : w.draws) {
    for (const auto& [name, part] : apart(draw)) all[name].draws.push_back(part);
  }
  return all;
}

}  // namespace

void compare_along(const UpdatedWeight& w, const oracle::Weights& layers, double u, double whole,
                   const Evidence& evidence, Proof& proof) {
  if (w.mine.sizes() != w.exact.sizes()) return;  // told by its elements
  for (const auto& [name, layer] : layers_of(w, layers)) {
    for (const auto& [x, what] : {std::pair{&layer.step, "the step of "},
                                  {&layer.before, "along the weights, the step of "}}) {
      const double rounding = layer.rounding_along(*x, u);
      if (product(*x, *x) == 0 || !(rounding > 0)) continue;
      proof.update.add(std::abs(product(layer.error, *x)) / rounding * whole, whole,
                       at_step(evidence, text(what, name)));
    }
  }
}

}  // namespace kuafu
