// SPDX-License-Identifier: Apache-2.0
#include "kuafu/oracle/random.h"

#include <algorithm>
#include <cmath>

#include <ATen/ATen.h>

#include "kuafu/base/philox.h"

namespace kuafu::oracle {
namespace {

constexpr uint64_t kGolden = 0x9e3779b97f4a7c15;  // 2^64 / phi, odd

/// splitmix64.                                      [Steele et al., OOPSLA 2014, figure 15]
uint64_t mix(uint64_t x) {
  x += kGolden;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

std::array<uint32_t, 2> halves(uint64_t x) {
  return {static_cast<uint32_t>(x), static_cast<uint32_t>(x >> 32)};
}

}  // namespace

at::Tensor normals(uint64_t seed, const std::string& name, const std::vector<int64_t>& shape,
                   double std) {
  const at::Tensor out = at::empty(shape, at::kDouble);
  const CounterRandom random(seed, hash_name(name));
  double* values = out.mutable_data_ptr<double>();
  for (int64_t i = 0; i < out.numel(); ++i) {
    values[i] = random.normal(static_cast<uint64_t>(i)) * std;
  }
  return out;
}

at::Tensor dropout_mask(const Site& site, double p, int64_t first,
                        const std::vector<int64_t>& shape) {
  const at::Tensor stays = at::empty(shape, at::kBool);
  bool* out = stays.mutable_data_ptr<bool>();
  const auto key = halves(site.seed);
  const auto stream = halves(mix(hash_name(site.name) ^ mix(static_cast<uint64_t>(site.step))));
  const auto threshold = static_cast<uint32_t>(std::min(std::llround(p * 0x1.0p32), 0xffffffffLL));
  const uint64_t start = static_cast<uint64_t>(first * shape[1] * shape[2]);
  std::array<uint32_t, 4> words{};
  for (int64_t i = 0; i < stays.numel(); ++i) {
    const uint64_t e = start + static_cast<uint64_t>(i);
    if (i == 0 || e % 4 == 0) {
      const auto block = halves(e / 4);
      words = philox4x32({block[0], block[1], stream[0], stream[1]}, key);
    }
    out[i] = words[e % 4] >= threshold;
  }
  return stays;
}

at::Tensor coins(const Site& site, int64_t first, int64_t samples, int64_t sequence) {
  const at::Tensor u = at::empty({samples, sequence}, at::kDouble);
  const CounterRandom random(site.seed,
                             hash_name(site.name) + kGolden * static_cast<uint64_t>(site.step + 1));
  double* out = u.mutable_data_ptr<double>();
  for (int64_t i = 0; i < u.numel(); ++i) {
    out[i] = random.uniform(static_cast<uint64_t>(first * sequence + i));
  }
  return u;
}

}  // namespace kuafu::oracle
