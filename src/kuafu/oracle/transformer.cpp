// SPDX-License-Identifier: Apache-2.0
#include "kuafu/oracle/transformer.h"

#include "kuafu/base/errors.h"
#include "kuafu/oracle/random.h"

namespace kuafu::oracle {

std::string layer_name(int64_t index) { return text("blocks.", index); }

std::vector<std::string> Transformer::blocks() const {
  std::vector<std::string> names = {"embedding"};
  for (int64_t i = 0; i < plan_.layers; ++i) names.push_back(layer_name(i));
  names.emplace_back("head");
  return names;
}

std::vector<std::string> Transformer::params_of(size_t block) const {
  const std::string prefix = blocks().at(block) + ".";
  std::vector<std::string> names;
  for (const auto& [name, weight] : weights()) {
    if (name.starts_with(prefix)) names.push_back(name);
  }
  if (prefix == "head." && is_tied()) names.emplace_back("embedding.tokens");
  return names;
}

Flow Transformer::forward(size_t block, const Flow& in, const Tensors& weights,
                          const Samples& samples, Extra& extra) const {
  const Call call{plan_, seed_, weights, samples, extra};
  const auto index = static_cast<int64_t>(block) - 1;
  KUAFU_REQUIRE(index <= plan_.layers, "block ", block, " of a model of ", plan_.layers + 2);
  if (index < 0) return {embed(call)};
  KUAFU_REQUIRE(in.size() == 1, "block ", block, " takes one tensor, got ", in.size());
  return {index < plan_.layers ? layer(call, in[0], index) : loss(call, in[0])};
}

Tensors initial_weights(const Model& model, uint64_t seed) {
  Tensors all;
  for (const auto& [name, weight] : model.weights()) {
    if (weight.init == Weight::Init::kNormal) {
      all[name] = normals(seed, name, weight.shape, weight.std);
    } else {
      all[name] =
          at::full(weight.shape, weight.init == Weight::Init::kOnes ? 1.0 : 0.0, at::kDouble);
    }
  }
  return all;
}

}  // namespace kuafu::oracle
