// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <set>

#include "app/worker/matrix.h"
#include "kuafu/base/philox.h"

namespace kuafu::matrix {

std::string name_of(const std::vector<Dimension>& dims, const Combination& combination) {
  std::string out;
  for (const ChosenValue& choice : combination) {
    out += text(out.empty() ? "" : " ", dims[choice.dimension].name, "=",
                dims[choice.dimension].values[choice.value].name);
  }
  return out;
}

Circumstances circumstances_of(const std::vector<Dimension>& dims, const Combination& combination) {
  Circumstances out;
  for (const ChosenValue& choice : combination) {
    const Dimension& dimension = dims[choice.dimension];
    if (dimension.name == "world") out.world = dimension.values[choice.value].name;
    if (dimension.name == "resumed") out.resumed = dimension.values[choice.value].name;
  }
  return out;
}

std::vector<Combination> combinations(const std::vector<Dimension>& dims, int64_t triples,
                                      uint64_t seed) {
  std::vector<Combination> out;
  for (size_t a = 0; a < dims.size(); ++a) {
    for (size_t b = a + 1; b < dims.size(); ++b) {
      for (size_t i = 0; i < dims[a].values.size(); ++i) {
        for (size_t j = 0; j < dims[b].values.size(); ++j) out.push_back({{a, i}, {b, j}});
      }
    }
  }
  const CounterRandom random(seed, hash_name("compatibility triples"));
  uint64_t next = 0;
  const auto draw = [&](size_t bound) { return random.bits(next++) % bound; };
  std::set<std::string> met;
  for (int64_t t = 0; t < triples; ++t) {
    std::vector<size_t> rest(dims.size());
    for (size_t d = 0; d < dims.size(); ++d) rest[d] = d;
    Combination triple;
    for (int i = 0; i < 3; ++i) {
      const auto one = rest.begin() + static_cast<long>(draw(rest.size()));
      triple.push_back({*one, draw(dims[*one].values.size())});
      rest.erase(one);
    }
    std::sort(triple.begin(), triple.end(),
              [](const ChosenValue& a, const ChosenValue& b) { return a.dimension < b.dimension; });
    if (met.insert(name_of(dims, triple)).second) out.push_back(triple);
  }
  return out;
}

}  // namespace kuafu::matrix
