// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <random>
#include <string>
#include <vector>

#include "kuafu/plan/plan.h"

namespace kuafu {

/// A plan that resolves on `ranks` ranks.
struct RandomPlan {
  Plan plan;
  int64_t ranks;
};

/// Draws legal plans: every kind of value, open and given data, all modes.
inline RandomPlan random_plan(uint64_t seed) {
  std::mt19937_64 engine(seed);
  const auto below = [&engine](int64_t n) {
    return static_cast<int64_t>(engine() % static_cast<uint64_t>(n));
  };
  const auto real = [&engine] { return static_cast<double>(engine() >> 11) * 0x1.0p-53; };
  Plan p;
  p.model.layers = 1 + below(50);
  p.model.heads = 1 + below(16);
  p.model.hidden = p.model.heads * (1 + below(64));
  p.model.vocab = 256 + below(50000);
  p.model.sequence = 1 + below(4096);
  p.model.dtype = std::vector{DType::kF64, DType::kF32, DType::kBF16}[below(3)];
  p.model.dropout = real();
  const int64_t q = 1 + below(4), depth = 1 + below(4);
  p.parallel.tensor = std::vector<TensorPlan>{{"none", 1, 1},
                                              {"1d", 1 + below(9), 1},
                                              {"1d-sp", 1 + below(9), 1},
                                              {"2d", q * q, 1},
                                              {"2.5d", q * q * depth, depth}}[below(5)];
  const int64_t data = 1 + below(6), micro = 1 + below(5);
  p.parallel.data.size = below(2) * data;
  p.parallel.data.bucket = 1 + below(int64_t{1} << 40);
  p.parallel.data.overlap = below(2) == 0;
  p.memory.recompute =
      std::vector{Recompute::kNone, Recompute::kSelective, Recompute::kFull}[below(3)];
  if (below(2) == 0) p.memory.device = 1 + below(int64_t{1} << 40);
  p.optimizer.kind = std::vector<std::string>{"adamw", "sgd", "adam", "lars", "lamb"}[below(5)];
  if (p.optimizer.kind == "lars") p.optimizer.coefficient = real() + 1e-6;
  if (p.optimizer.kind == "lamb") p.optimizer.ratio_max = real() + 1e-6;
  p.optimizer.exclude = std::vector<std::string>{"auto", "none", "vectors"}[below(3)];
  if (below(4) == 0) p.optimizer.scale_lr = below(2) == 0 ? "linear" : "sqrt";
  if (p.optimizer.kind == "sgd") p.optimizer.momentum = real();
  if (p.optimizer.kind == "adamw") p.optimizer.epsilon = real() + 1e-12;
  p.optimizer.lr = real() * 1e-3;
  p.data.path = std::vector<std::string>{"", "a b", "quote\"back\\slash", "tab\t"}[below(4)];
  p.train.batch = data * micro * (1 + below(4));
  p.train.micro_batch = below(2) * micro;
  p.train.steps = 1 + below(1000);
  p.train.seed = static_cast<uint64_t>(below(int64_t{1} << 50));
  p.parallel.data.mode = std::vector<std::string>{"auto", "ring", "tree"}[below(3)];
  if (below(8) == 0) p.model.dtype = DType::kF16;
  if (below(3) == 0) p.train.loss_scale = below(2) == 0 ? TrainPlan::kDynamicScale : 1 + real();
  if (p.has_dynamic_scale()) p.train.loss_scale_interval = 1 + below(5000);
  if (below(3) == 0) p.model.norm_epsilon = 0.01 * static_cast<double>(1 + below(99));
  return {p, data * p.parallel.tensor.size};
}

}  // namespace kuafu
