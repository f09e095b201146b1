// SPDX-License-Identifier: Apache-2.0
#include "kuafu/engine/proof/certificate_rounding.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <ATen/ATen.h>

#include "kuafu/oracle/random_rounding.h"

namespace kuafu {

double length(const Tensor& t) { return t.norm().item<double>(); }
double largest(const Tensor& t) { return t.numel() == 0 ? 0 : t.abs().max().item<double>(); }

bool is_finite(const oracle::Tensors& tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [](const auto& t) {
    return at::isfinite(t.second).all().template item<bool>();
  });
}

Tensor terms_of(const std::string& name, const oracle::Gradients& exact) {
  const auto found = exact.absolute.find(name);
  return found == exact.absolute.end() ? exact.gradients.at(name).abs() : found->second;
}

namespace {

/// Of draws at random: what leaves the range of numbers is moved by more than any share of itself.
/// In f16, whose range is small, it says nothing (see within_range).
void take_overflow(ReferenceError& to, const oracle::Gradients& drawn,
                   const oracle::Gradients& exact) {
  const double beyond = std::numeric_limits<double>::infinity();
  if (std::isfinite(exact.loss) && !std::isfinite(drawn.loss)) to.loss = beyond;
  // Scores are probabilities: two of them are never further apart than 1.
  if (!is_finite(drawn.scores) && is_finite(exact.scores)) to.scores = std::max(to.scores, 1.0);
  for (const auto& [name, g] : exact.gradients) {
    const auto moved = drawn.gradients.find(name);
    if (moved == drawn.gradients.end() || !std::isfinite(length(g))) continue;
    if (!std::isfinite(length(moved->second))) {
      to.gradient[name] = {.norm = beyond, .largest = beyond, .alone = beyond, .of_weight = beyond};
    }
  }
}

/// Takes over what is larger in a computation that rounds, times `share`.
void take_larger(ReferenceError& to, const oracle::Gradients& rounded,
                 const oracle::Gradients& exact, double share) {
  to.loss = std::max(to.loss, loss_error(rounded.loss, exact.loss) * share);
  for (const auto& [name, p] : exact.scores) {
    const Tensor far = rounded.scores.at(name).to(at::kDouble) - p;
    to.scores = std::max(to.scores, largest(far) * share);
  }
  std::map<std::string, double> squares;  // of the terms of whole weights
  for (const auto& [name, g] : exact.gradients) {
    const double all = exact.largest * std::sqrt(static_cast<double>(g.numel()));
    const double norm = std::max(length(terms_of(name, exact)), all);
    squares[weight_of_layer(name)] += norm * norm;
  }
  for (const auto& [name, g] : exact.gradients) {
    const auto mine = rounded.gradients.find(name);
    if (mine == rounded.gradients.end()) continue;
    const Tensor far = mine->second - g, terms = terms_of(name, exact);
    // What overflows in half precision says nothing of rounding.
    if (!std::isfinite(length(far))) continue;
    ReferenceError::Size& size = to.gradient[name];
    const double of_weight = std::sqrt(squares.at(weight_of_layer(name)));
    if (of_weight > 0) size.of_weight = std::max(size.of_weight, length(far) / of_weight * share);
    if (length(terms) == 0) {  // a softmax without doubt: rounding is all there is, or nothing
      size.alone = std::max(size.alone, length(far) * share);
      continue;
    }
    size.norm = std::max(size.norm, length(far) / length(terms) * share);
    size.largest = std::max(size.largest, largest(far) / largest(terms) * share);
  }
}

}  // namespace

StepRounding::StepRounding(const Plan& plan, const Evidence& evidence,
                           CertificateReference& reference, const oracle::Tensors& weights)
    : plan_(plan),
      is_(evidence),
      reference_(reference),
      weights_(weights),
      is_own_reference_(reference.name() == "engine"),
      u_(unit_roundoff(plan.model.dtype)) {}

oracle::Gradients StepRounding::in(DType type, double times) const {
  return reference_.rounded_gradients(is_.step, in_type(weights_, scalar_type(type)),
                                      is_.routes.tensors, times * is_.report.loss_scale);
}

/// A loss scale is a power of two, which moves no rounding: where the reference overflows, and the
/// run may not, it rounds at a smaller one.
oracle::Gradients StepRounding::within_range(DType type) const {
  oracle::Gradients g = in(type);
  return is_finite(g.gradients) ? g : in(type, 1 / kOverflow);
}

DType StepRounding::drawn_in() const {
  return is_wide(plan_.model.dtype) || is_own_reference_ ? DType::kF64 : plan_.model.dtype;
}

ReferenceError StepRounding::measured(const oracle::Gradients& exact) const {
  // What is wrong in that type alone would be rounding of it.
  if (is_own_reference_) return at_random(exact);
  const DType type = plan_.model.dtype == DType::kF64 ? DType::kF32 : plan_.model.dtype;
  ReferenceError y;
  take_larger(y, within_range(type), exact, u_ / unit_roundoff(type));
  return y;
}

ReferenceError StepRounding::at_random(const oracle::Gradients& exact, uint64_t draws) const {
  const DType type = plan_.model.dtype;
  ReferenceError y = is_wide(type) && !is_own_reference_ ? measured(exact) : ReferenceError{};
  for (uint64_t draw = 0; draw < draws; ++draw) {
    const oracle::RandomRounding at_random(u_, draw);
    const auto drawn = within_range(drawn_in());
    take_larger(y, drawn, exact, 1);
    if (type != DType::kF16) take_overflow(y, drawn, exact);
  }
  return y;
}

ReferenceError StepRounding::of_overflow(const oracle::Gradients& exact) const {
  ReferenceError y;
  for (uint64_t draw = 0; draw < kDraws; ++draw) {
    const oracle::RandomRounding at_random(u_, draw);
    const auto drawn = in(drawn_in());
    if (!is_finite(drawn.gradients)) y.loss = std::numeric_limits<double>::infinity();
    take_larger(y, drawn, exact, 1);
  }
  return y;
}

}  // namespace kuafu
