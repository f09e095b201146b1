// SPDX-License-Identifier: Apache-2.0
//
// What rounding makes of Muon's step, derived in oracle/orthogonal.cpp: the library's own iteration in
// f32 and f64 stays within it, and what is far below the step itself does not.

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <cmath>
#include <iostream>

#include "kuafu/optim/rule.h"
#include "kuafu/oracle/orthogonal.h"

namespace kuafu {
namespace {

constexpr double kUnit = 0x1p-24;

OptimizerPlan muon(bool is_polar) {
  OptimizerPlan plan = {.kind = "muon"};
  if (is_polar) plan.coefficients = "polar", plan.matrix_scale = "size";
  return plan;
}

/// Normal numbers; `decay` apart from each other in size from the first singular value to the last.
Tensor matrix(int64_t rows, int64_t columns, double decay) {
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(7);
  const Tensor u = at::randn({rows, columns}, generator, at::kDouble);
  if (decay == 0) return u.to(at::kFloat);
  const auto [left, s, right] = at::linalg_svd(u, false);
  const Tensor sizes = at::exp(at::arange(s.numel(), at::kDouble) * (-decay / s.numel()));
  return (left * sizes).mm(right).to(at::kFloat);
}

/// By the library's rule, in the type of u.
Tensor step_of_rule(const OptimizerPlan& plan, const Tensor& u) {
  return make_muon(plan).whole(u, {});
}

struct Ratio {
  double bound = 0, error = 0, size = 0;
};
Ratio ratio_of(const OptimizerPlan& plan, const Tensor& u, double unit) {
  const oracle::Weight weight{.shape = u.sizes().vec()};
  const Tensor exact = oracle::orthogonal_step(plan, u.to(at::kDouble), weight);
  const Tensor none = at::zeros(u.sizes(), at::kDouble);
  const Tensor bound = oracle::orthogonal_error(plan, u.to(at::kDouble), none, weight, unit);
  const double error = (step_of_rule(plan, u).to(at::kDouble) - exact).norm().item<double>();
  return {bound.max().item<double>(), error, exact.norm().item<double>()};
}

const std::vector<std::vector<int64_t>> kShapes = {{1, 1},    {1, 9},   {2, 3},  {5, 7},   {7, 5},
                                                   {36, 108}, {31, 31}, {48, 6}, {127, 61}};

TEST(RoundingOfMuon, StaysWithinItsBoundAndIsNotFarBelow) {
  for (const bool is_polar : {false, true}) {
    double least = 1e300, most = 0;
    for (const auto& shape : kShapes) {
      for (const double decay : {0.0, 3.0, 12.0, 30.0}) {
        const Tensor u = matrix(shape[0], shape[1], decay);
        const Ratio f32 = ratio_of(muon(is_polar), u, kUnit);
        const Ratio f64 = ratio_of(muon(is_polar), u.to(at::kDouble), 0x1p-52);
        for (const Ratio& r : {f32, f64}) {
          EXPECT_LE(r.error, r.bound) << shape[0] << " x " << shape[1] << ", " << decay;
        }
        // Far below what a wrong step differs by.
        EXPECT_LE(f32.bound, 0.02 * f32.size) << shape[0] << " x " << shape[1] << ", " << decay;
        if (std::min(shape[0], shape[1]) == 1) continue;
        least = std::min(least, f32.bound / f32.error);
        most = std::max(most, f32.bound / f32.error);
      }
    }
    std::cout << (is_polar ? "polar" : "constant") << ": bound over error in f32 " << least
              << " .. " << most << "\n";
    EXPECT_LE(most, 300);
  }
}

// An error of U itself, in every direction: by so much of it that second orders do not count.
TEST(RoundingOfMuon, FollowsErrorsOfTheMatrix) {
  for (const bool is_polar : {false, true}) {
    for (const auto& shape : kShapes) {
      const Tensor u = matrix(shape[0], shape[1], 3).to(at::kDouble);
      const oracle::Weight weight{.shape = shape};
      const double size = 1e-8 * u.abs().max().item<double>();
      const Tensor off = matrix(shape[1], shape[0], 0).t().to(at::kDouble) * size;
      const Tensor exact = oracle::orthogonal_step(muon(is_polar), u, weight);
      const double moved =
          (oracle::orthogonal_step(muon(is_polar), u + off, weight) - exact).norm().item<double>();
      const Tensor spread = at::full_like(u, size);
      const double bound =
          oracle::orthogonal_error(muon(is_polar), u, spread, weight, 0x1p-52).max().item<double>();
      EXPECT_LE(moved, bound) << shape[0] << " x " << shape[1];
      if (std::min(shape[0], shape[1]) == 1) continue;
      EXPECT_GE(moved, bound / 30) << shape[0] << " x " << shape[1];
    }
  }
}

// Each matrix of a fused and stacked weight by itself.
TEST(RoundingOfMuon, IsThatOfEachMatrix) {
  const oracle::Weight weight{.shape = {2, 3, 12}, .is_stacked = true, .fused = 2, .run = 2};
  const Tensor u = matrix(6, 12, 3).to(at::kDouble).view({2, 3, 12});
  const Tensor spread = at::full_like(u, 1e-9);
  const Tensor all = oracle::orthogonal_error(muon(false), u, spread, weight, kUnit);
  for (int64_t e = 0; e < 2; ++e) {
    for (int64_t part = 0; part < 2; ++part) {
      const auto own = [&](const Tensor& t) {
        return t[e].view({3, 3, 2, 2}).select(2, part).reshape({3, 6});
      };
      const Tensor one =
          oracle::orthogonal_error(muon(false), own(u), own(spread), {.shape = {3, 6}}, kUnit);
      EXPECT_TRUE(own(all).equal(one)) << e << ", " << part;
    }
  }
}

TEST(RoundingOfMuon, IsNoNumberWhereTheMatrixIsNone) {
  Tensor u = matrix(3, 4, 0).to(at::kDouble);
  u[1][2] = INFINITY;
  const oracle::Weight weight{.shape = {3, 4}};
  const Tensor bound = oracle::orthogonal_error(muon(false), u, at::zeros_like(u), weight, kUnit);
  EXPECT_TRUE(bound.isnan().all().item<bool>());
}

}  // namespace
}  // namespace kuafu
