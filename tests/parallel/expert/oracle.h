// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

// Routers of one sample as plain loops over vectors, to compare with.
namespace kuafu::tests {

struct RouterOracle {
  int64_t top_k = 2, capacity = 1;               // top_k 0: experts choose
  std::vector<double> coin = {};                 // (S); empty: every second expert is visited
  std::vector<std::vector<int64_t>> slots = {};  // by expert, the tokens it takes, in order
  std::vector<std::vector<double>> gates = {};   // the same
  std::vector<int64_t> choices = {};             // by expert
  int64_t dropped = 0;
  double balance = 0, z = 0;  // E sum f P; sum of lse^2

  /// logits[s][e]
  void run(const std::vector<std::vector<double>>& logits) {
    const size_t tokens = logits.size(), experts = logits[0].size();
    slots.assign(experts, {});
    gates.assign(experts, {});
    choices.assign(experts, 0);
    std::vector<std::vector<double>> p(tokens, std::vector<double>(experts));
    for (size_t t = 0; t < tokens; ++t) {
      double sum = 0;
      for (size_t e = 0; e < experts; ++e) sum += p[t][e] = std::exp(logits[t][e]);
      for (double& x : p[t]) x /= sum;
      z += std::log(sum) * std::log(sum);
    }
    const auto by = [](auto score) {  // indices, best first, ties to the lowest
      return [score](size_t a, size_t b) { return score(a) > score(b); };
    };
    if (top_k == 0) {
      std::vector<bool> is_taken(tokens, false);
      for (size_t e = 0; e < experts; ++e) {
        std::vector<size_t> order(tokens);
        std::iota(order.begin(), order.end(), size_t{0});
        std::stable_sort(order.begin(), order.end(), by([&](size_t t) { return p[t][e]; }));
        for (int64_t c = 0; c < capacity; ++c)
          take(e, order[static_cast<size_t>(c)], p[order[static_cast<size_t>(c)]][e]);
        for (const int64_t t : slots[e]) is_taken[static_cast<size_t>(t)] = true;
      }
      dropped = std::count(is_taken.begin(), is_taken.end(), false);
      return;
    }
    std::vector<std::vector<size_t>> best(tokens, std::vector<size_t>(experts));
    for (size_t t = 0; t < tokens; ++t) {
      std::iota(best[t].begin(), best[t].end(), size_t{0});
      std::stable_sort(best[t].begin(), best[t].end(), by([&](size_t e) { return p[t][e]; }));
      for (size_t s = 0; s < tokens; ++s) {
        balance +=
            p[s][best[t][0]] * static_cast<double>(experts) / static_cast<double>(tokens * tokens);
      }
    }
    for (size_t k = 0; k < static_cast<size_t>(top_k); ++k) {
      for (size_t t = 0; t < tokens; ++t) {
        double norm = 0;
        for (size_t j = 0; j < static_cast<size_t>(top_k); ++j) norm += p[t][best[t][j]];
        const double gate = p[t][best[t][k]] / (top_k > 1 ? norm : 1);
        if (k == 1 && !coin.empty() && coin[t] >= 2 * gate) continue;
        take(best[t][k], t, gate);
      }
    }
  }

 private:
  void take(size_t expert, size_t token, double gate) {
    ++choices[expert];
    if (static_cast<int64_t>(slots[expert].size()) == capacity) {
      ++dropped;
      return;
    }
    slots[expert].push_back(static_cast<int64_t>(token));
    gates[expert].push_back(gate);
  }
};

}  // namespace kuafu::tests
