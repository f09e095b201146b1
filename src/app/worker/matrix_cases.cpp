// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "app/worker/matrix.h"
#include "kuafu/base/build_info.h"
#include "kuafu/base/philox.h"
#include "kuafu/base/suggest.h"
#include "kuafu/plan/arrange.h"
#include "kuafu/plan/keys.h"

namespace kuafu::matrix {
namespace {

/// Small enough that a case takes a fraction of a second, and divisible by every arrangement below.
const Overrides kSmall = {{"model.layers", "2"},      {"model.hidden", "32"},
                          {"model.heads", "4"},       {"model.dtype", "f64"},
                          {"data.kind", "synthetic"}, {"train.batch", "8"},
                          {"train.steps", "2"},       {"train.validation_batches", "0"}};

/// What a model needs besides to be small.
Overrides small_model(const std::string& kind) {
  if (kind == "vit") return {{"model.image", "12"}, {"model.patch", "4"}};
  return {{"model.vocab", "53"}, {"model.sequence", "16"}};
}

/// The arrangement of at most 8 ranks with the most axes longer than 1, the smallest of those.
Overrides smallest_grid(const TensorMode& mode) {
  size_t most = 0;
  Overrides best = {{"parallel.tensor.mode", mode.name}};
  for (int64_t size = 2; size <= 8; ++size) {
    for (int64_t depth = 1; depth <= 2; ++depth) {
      size_t axes = 0;
      try {
        for (const Axis& axis : mode.axes(size, depth)) axes += axis.size > 1 ? 1 : 0;
      } catch (const Refused&) {
        continue;
      }
      if (axes <= most) continue;
      most = axes;
      best = {{"parallel.tensor.mode", mode.name},
              {"parallel.tensor.size", text(size)},
              {"parallel.tensor.depth", text(depth)}};
    }
  }
  return best;
}

/// The arrangement of at most 8 ranks in which layer 1 has a mode of its own, with the most axes
/// that both share, the smallest of those; empty where there is none.
Overrides smallest_mixed_grid(const std::string& base, const std::string& layer,
                              const TensorModes& modes) {
  size_t most = 0;
  Overrides best;
  for (int64_t size = 2; size <= 8; ++size) {
    for (const int64_t depths : {0, 1, 2, 3}) {
      Plan plan;
      plan.parallel.tensor = {base, size, 1 + depths % 2};
      plan.parallel.layers = {{1, 1, layer, 1 + depths / 2}};
      size_t axes = 0;
      try {
        axes = tensor_axes(plan, modes).size();
      } catch (const Refused&) {
        continue;
      }
      if (axes <= most) continue;
      most = axes;
      best = {{"parallel.tensor.mode", base},
              {"parallel.tensor.size", text(size)},
              {"parallel.tensor.depth", text(plan.parallel.tensor.depth)},
              {"parallel.layers", text("[{ from = 1, to = 1, mode = ", in_quotes(layer),
                                       ", depth = ", plan.parallel.layers[0].depth, " }]")}};
    }
  }
  return best;
}

Dimension schemes(const Registries& registries) {
  Dimension out{"scheme", {{"none"}}};
  for (const auto& entry : registries.tensor.entries()) {
    if (entry.name != "none") out.values.push_back({entry.name, smallest_grid(entry.make.mode)});
  }
  const TensorModes modes = registries.tensor_modes();
  for (const auto& [base, first] : modes) {
    for (const auto& [layer, second] : modes) {
      if (base == "none" || layer == "none" || base == layer) continue;
      const Overrides grid = smallest_mixed_grid(base, layer, modes);
      if (!grid.empty()) out.values.push_back({text(base, ", then ", layer), grid});
    }
  }
  return out;
}

/// The values of a key that takes one of several words.
Dimension choices_of(const std::string& name, const std::string& key) {
  Dimension out{name, {}};
  for (const std::string& choice : plan::find_key(key)->choices) {
    out.values.push_back({choice, {{key, choice}}});
  }
  return out;
}

Dimension sequences(const Registries& registries) {
  Dimension out{"sequence", {{"none"}}};
  for (const std::string& name : registries.sequence.names()) {
    if (name == "none") continue;
    out.values.push_back(
        {name, {{"parallel.sequence.mode", name}, {"parallel.sequence.size", "2"}}});
  }
  return out;
}

/// Experts over two ranks by each router.
Dimension experts() {
  Dimension out{"experts", {{"none"}}};
  for (const std::string& router : plan::find_key("model.router")->choices) {
    out.values.push_back({router,
                          {{"model.kind", "moe_gpt"},
                           {"model.experts", "4"},
                           {"model.router", router},
                           {"parallel.data", "2"},
                           {"parallel.expert.size", "2"}}});
  }
  return out;
}

Dimension models(const Registries& registries) {
  Dimension out{"model", {}};
  for (const std::string& name : registries.models.names()) {
    Value value{name, {{"model.kind", name}}};
    const Overrides small = small_model(name);
    value.overrides.insert(value.overrides.end(), small.begin(), small.end());
    out.values.push_back(value);
  }
  return out;
}

Dimension worlds() {
  Dimension out{"world", {{"threads"}, {"simulated"}}};
  if (build_info::kMpi.found) out.values.push_back({"mpi"});
  return out;
}

}  // namespace

std::vector<Dimension> dimensions(const Registries& registries) {
  return {schemes(registries),
          sequences(registries),
          experts(),
          models(registries),
          choices_of("dtype", "model.dtype"),
          choices_of("recompute", "memory.recompute"),
          choices_of("optimizer", "optimizer.kind"),
          worlds()};
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
              [](const Choice& a, const Choice& b) { return a.dimension < b.dimension; });
    out.push_back(triple);
  }
  return out;
}

Overrides settings_of(const std::vector<Dimension>& dims, const Combination& combination) {
  Overrides out = kSmall;
  const bool names_model =
      std::any_of(combination.begin(), combination.end(),
                  [&](const Choice& c) { return dims[c.dimension].name == "model"; });
  if (!names_model) {
    const Overrides small = small_model("gpt");
    out.insert(out.end(), small.begin(), small.end());
  }
  // Dimensions in their order: a model that is named stands where experts have set one.
  for (const Choice& choice : combination) {
    const Overrides& own = dims[choice.dimension].values[choice.value].overrides;
    out.insert(out.end(), own.begin(), own.end());
  }
  return out;
}

std::string name_of(const std::vector<Dimension>& dims, const Combination& combination) {
  std::string out;
  for (const Choice& choice : combination) {
    out += text(out.empty() ? "" : " ", dims[choice.dimension].name, "=",
                dims[choice.dimension].values[choice.value].name);
  }
  return out;
}

}  // namespace kuafu::matrix
