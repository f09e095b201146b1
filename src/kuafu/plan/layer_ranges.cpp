// SPDX-License-Identifier: Apache-2.0
#include "kuafu/plan/layer_ranges.h"

#include <algorithm>

#include "kuafu/base/suggest.h"
#include "kuafu/plan/arrange.h"

namespace kuafu::plan {
namespace {

using Kind = ConfigValue::Kind;

constexpr std::string_view kExample =
    "[[parallel.layers]] with from = 0, to = 1, mode = \"2d\" for layers 0 and 1";

const std::vector<std::string>& words() {
  static const std::vector<std::string> all = {"from", "to", "mode", "depth"};
  return all;
}

std::string key_of(size_t index, const std::string& word) {
  return text("parallel.layers.", index, ".", word);
}

/// One `word = value` of an entry.
void read_word(LayerPlan& layer, const std::string& word, const ConfigValue& value,
               const std::string& where) {
  const std::string given = text(where, "parallel.layers.", word, " = ", to_string(value));
  if (word == "mode") {
    KUAFU_REQUIRE(value.kind == Kind::kString, given, " is ", describe(value.kind),
                  "; allowed: the name of a tensor mode; nearest: mode = \"1d\"");
    layer.mode = value.string;
    return;
  }
  KUAFU_REQUIRE(std::find(words().begin(), words().end(), word) != words().end(), where,
                "unknown key parallel.layers.", word, " = ", to_string(value),
                "; nearest: ", nearest(word, words()), "; allowed: ", join(words()));
  KUAFU_REQUIRE(value.kind == Kind::kInteger, given, " is ", describe(value.kind),
                "; allowed: an integer", word == "depth" ? " from 1" : ", the index of a layer");
  (word == "from" ? layer.from : word == "to" ? layer.to : layer.depth) = value.integer;
}

LayerPlan read_layer(const ConfigValue& entry, const std::string& where, const std::string& origin,
                     size_t index, Origins& origins) {
  KUAFU_REQUIRE(entry.kind == Kind::kTable, where, "parallel.layers = ", to_string(entry), " is ",
                describe(entry.kind), "; allowed: ", kExample);
  LayerPlan layer;
  for (const auto& [word, value] : entry.entries) {
    const std::string at = origin.empty() ? where : text(origin, ":", value.line, ": ");
    read_word(layer, word, value, at);
    origins.note(key_of(index, word), at);
  }
  for (const char* word : {"from", "to", "mode"}) {
    KUAFU_REQUIRE(entry.find(word) != nullptr, where, "parallel.layers = ", to_string(entry),
                  " lacks the key ", word, "; allowed: ", kExample);
  }
  return layer;
}

/// The first or last index of a range lies in the model.
void check_index(const Plan& plan, size_t i, const std::string& word, int64_t value,
                 const Origins& origins) {
  const int64_t last = plan.model.layers - 1;
  KUAFU_REQUIRE(0 <= value && value <= last, origins.of({key_of(i, word)}), "parallel.layers.",
                word, " = ", value, " is no layer of model.layers = ", plan.model.layers,
                "; allowed: 0 to ", last, "; nearest: ", word, " = ",
                std::clamp<int64_t>(value, 0, last));
}

void check_overlap(const Plan& plan, size_t i, const Origins& origins) {
  const LayerPlan& mine = plan.parallel.layers[i];
  for (size_t j = 0; j < i; ++j) {
    const LayerPlan& other = plan.parallel.layers[j];
    if (mine.to < other.from || other.to < mine.from) continue;
    std::string near = "one range for both";
    if (mine.to > other.to) near = text("from = ", other.to + 1);
    if (mine.from < other.from) near = text("to = ", other.from - 1);
    throw ConfigError(text(origins.of({key_of(i, "from"), key_of(i, "to")}),
                           "parallel.layers from = ", mine.from, " to = ", mine.to,
                           " overlaps the range from = ", other.from, " to = ", other.to,
                           "; each layer is in one range; nearest: ", near));
  }
}

void check_mode(const Plan& plan, size_t i, const TensorModes& modes, const Origins& origins) {
  const LayerPlan& layer = plan.parallel.layers[i];
  Origins own;  // messages of one mode, read as those of the whole plan
  for (const char* word : {"mode", "depth"}) {
    own.note(text("parallel.tensor.", word), origins.of({key_of(i, word), key_of(i, "mode")}));
  }
  const TensorMode& mode = find_mode(with_arrangement(plan, {layer.mode, layer.depth}), modes, own);
  try {
    mode.axes(plan.parallel.tensor.size, layer.depth);
  } catch (const Refused& refusal) {
    throw Refused(text(origins.of({key_of(i, "mode"), key_of(i, "depth")}),
                       "parallel.layers from = ", layer.from, " to = ", layer.to,
                       " over parallel.tensor.size = ", plan.parallel.tensor.size, ": ",
                       refusal.what()));
  }
}

}  // namespace

std::vector<LayerPlan> read_layers(const ConfigValue& value, const std::string& where,
                                   const std::string& origin, Origins& origins) {
  KUAFU_REQUIRE(value.kind == Kind::kList, where, "parallel.layers = ", to_string(value), " is ",
                describe(value.kind), "; allowed: ", kExample);
  std::vector<LayerPlan> layers;
  for (const ConfigValue& entry : value.items) {
    const std::string at = origin.empty() ? where : text(origin, ":", entry.line, ": ");
    layers.push_back(read_layer(entry, at, origin, layers.size(), origins));
  }
  return layers;
}

void check_layers(const Plan& plan, const TensorModes& modes, const Origins& origins) {
  const std::vector<LayerPlan>& layers = plan.parallel.layers;
  for (size_t i = 0; i < layers.size(); ++i) {
    const LayerPlan& layer = layers[i];
    check_index(plan, i, "from", layer.from, origins);
    check_index(plan, i, "to", layer.to, origins);
    KUAFU_REQUIRE(layer.from <= layer.to, origins.of({key_of(i, "to"), key_of(i, "from")}),
                  "parallel.layers.to = ", layer.to, " lies before from = ", layer.from,
                  "; both are part of the range; nearest: to = ", layer.from);
    KUAFU_REQUIRE(layer.depth >= 1, origins.of({key_of(i, "depth")}),
                  "parallel.layers.depth = ", layer.depth, " is out of range; allowed: an integer ",
                  "from 1; nearest: depth = 1");
    check_overlap(plan, i, origins);
    check_mode(plan, i, modes, origins);
  }
  if (layers.empty()) return;
  try {
    tensor_axes(plan, modes);
  } catch (const Refused& refusal) {
    throw Refused(text(origins.of({key_of(0, "mode")}), refusal.what()));
  }
}

std::string print_layers(const std::vector<LayerPlan>& layers) {
  std::string out;
  for (const LayerPlan& l : layers) {
    out += text("\n[[parallel.layers]]\nfrom = ", l.from, "\nto = ", l.to,
                "\nmode = ", in_quotes(l.mode), "\ndepth = ", l.depth, "\n");
  }
  return out;
}

}  // namespace kuafu::plan
