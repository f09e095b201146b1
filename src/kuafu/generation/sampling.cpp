// SPDX-License-Identifier: Apache-2.0
#include "kuafu/generation/sampling.h"

#include <algorithm>
#include <cmath>

#include "kuafu/base/errors.h"
#include "kuafu/base/philox.h"

namespace kuafu {
namespace {

void make_whole(std::vector<Candidate>& all) {
  double sum = 0;
  for (const Candidate& c : all) sum += c.probability;
  for (Candidate& c : all) c.probability /= sum;
}

/// The first ones that together reach `share`: the one that crosses it is among them.
size_t num_reaching(const std::vector<Candidate>& all, double share) {
  double sum = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    sum += all[i].probability;
    if (sum >= share) return i + 1;
  }
  return all.size();  // sums of rounded numbers end below 1
}

}  // namespace

void check_sampling(const Sampling& how) {
  KUAFU_REQUIRE(how.temperature >= 0 && std::isfinite(how.temperature), "--temperature ",
                how.temperature, ": allowed: 0, the most likely token, or a number above");
  KUAFU_REQUIRE(how.top_k >= 0, "--top-k ", how.top_k, ": allowed: a whole number from 1 on");
  KUAFU_REQUIRE(how.top_p > 0 && how.top_p <= 1, "--top-p ", how.top_p,
                ": allowed: a number above 0, up to 1");
}

std::vector<Candidate> candidates(std::span<const double> logits, const Sampling& how) {
  const double top = *std::max_element(logits.begin(), logits.end());
  std::vector<Candidate> all;
  all.reserve(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) {
    all.push_back({static_cast<int64_t>(i), std::exp((logits[i] - top) / how.temperature)});
  }
  std::stable_sort(all.begin(), all.end(), [](const Candidate& a, const Candidate& b) {
    return a.probability > b.probability;
  });
  const bool is_cut = how.top_k > 0 && how.top_k < std::ssize(all);
  if (is_cut) all.resize(static_cast<size_t>(how.top_k));
  make_whole(all);
  if (how.top_p < 1) {
    all.resize(num_reaching(all, how.top_p));
    make_whole(all);
  }
  return all;
}

int64_t next_token(std::span<const double> logits, const Sampling& how, int64_t prompt,
                   int64_t position) {
  if (how.temperature == 0) {
    return std::max_element(logits.begin(), logits.end()) - logits.begin();
  }
  const CounterRandom random(how.seed, hash_name(text("generation.", prompt)));
  const double drawn = random.uniform(static_cast<uint64_t>(position));
  const std::vector<Candidate> all = candidates(logits, how);
  double sum = 0;
  for (const Candidate& c : all) {
    sum += c.probability;
    if (drawn < sum) return c.token;
  }
  return all.back().token;
}

}  // namespace kuafu
