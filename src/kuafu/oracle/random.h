// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

// Random numbers by counter, on whole tensors, as the library defines them.
namespace kuafu::oracle {

/// A random decision of a layer: the seed of the run, the layer's name, the step.
struct Site {
  uint64_t seed = 0;
  std::string name;
  int64_t step = 0;
};

/// f64 normals of std: element i (row-major) is CounterRandom(seed, hash(name)).normal(i) * std.
at::Tensor normals(uint64_t seed, const std::string& name, const std::vector<int64_t>& shape,
                   double std);

/// (B, S, H) bool, true where an element stays, with probability 1 - p. Sample b is number
/// first + b of the global batch; e = ((first + b) S + s) H + h is its global element; its 32 bits
/// are word e % 4 of Philox block e / 4 of the stream mix(hash(name) ^ mix(step)), and it stays
/// where they are not below p 2^32.
at::Tensor dropout_mask(const Site& site, double p, int64_t first,
                        const std::vector<int64_t>& shape);

/// (B, S) f64 in [0, 1): CounterRandom(seed, hash(name) + golden (step + 1)).uniform(e), where
/// e = (first + b) S + s and golden = 2^64 / phi.
at::Tensor coins(const Site& site, int64_t first, int64_t samples, int64_t sequence);

}  // namespace kuafu::oracle
