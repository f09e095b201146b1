// SPDX-License-Identifier: Apache-2.0
#include <toml++/toml.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <map>
#include <set>

#include "kuafu/base/errors.h"
#include "tests/fuzz/targets.h"
#include "tests/fuzz/toml_walk.h"

namespace kuafu::fuzz {
namespace {

Json json_of(const toml::node& node) {
  if (const auto* table = node.as_table()) {
    std::vector<std::pair<toml::source_position, std::string>> order;
    for (const auto& [key, value] : *table) {
      order.emplace_back(key.source().begin, std::string(key.str()));
    }
    std::stable_sort(order.begin(), order.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    Json object = Json::object();
    for (const auto& [at, key] : order) object[key] = json_of(*table->get(key));
    return object;
  }
  if (const auto* list = node.as_array()) {
    Json array = Json::array();
    for (const toml::node& item : *list) array.push_back(json_of(item));
    return array;
  }
  if (const auto* integer = node.as_integer()) return integer->get();
  if (const auto* number = node.as_floating_point()) return number->get();
  if (const auto* boolean = node.as_boolean()) return boolean->get();
  if (const auto* string = node.as_string()) return string->get();
  return nullptr;
}

int64_t whole(const Json& value) {
  require(value.is_number_integer(), "no whole number: " + value.dump());
  return value.get<int64_t>();
}

std::string word(const Json& value) {
  require(value.is_string(), "no text: " + value.dump());
  return value.get<std::string>();
}

/// Bytes of "1.5 GiB": a number, blanks, a unit in any case.
int64_t bytes_of(const std::string& size) {
  const std::map<std::string, int64_t> units = {{"", 1},
                                                {"b", 1},
                                                {"kb", 1'000},
                                                {"mb", 1'000'000},
                                                {"gb", 1'000'000'000},
                                                {"tb", 1'000'000'000'000},
                                                {"kib", int64_t{1} << 10},
                                                {"mib", int64_t{1} << 20},
                                                {"gib", int64_t{1} << 30},
                                                {"tib", int64_t{1} << 40}};
  char* end = nullptr;
  const double count = std::strtod(size.c_str(), &end);
  const std::string digits = size.substr(0, static_cast<size_t>(end - size.c_str()));
  std::string unit;
  for (const char* c = end; *c != 0; ++c) {
    if (std::isspace(static_cast<unsigned char>(*c)) == 0) {
      unit += static_cast<char>(std::tolower(static_cast<unsigned char>(*c)));
    }
  }
  require(!digits.empty() && units.contains(unit), "no size: " + size);
  if (digits.find_first_of(".eE") == std::string::npos) {
    return std::strtoll(digits.c_str(), nullptr, 10) * units.at(unit);
  }
  return static_cast<int64_t>(std::floor(count * static_cast<double>(units.at(unit))));
}

void take(int64_t& to, const Json& value) { to = whole(value); }
void take(uint64_t& to, const Json& value) { to = static_cast<uint64_t>(whole(value)); }
void take(double& to, const Json& value) {
  require(value.is_number(), "no number: " + value.dump());
  to = value.get<double>();
}
void take(bool& to, const Json& value) {
  require(value.is_boolean(), "neither true nor false: " + value.dump());
  to = value.get<bool>();
}
void take(std::string& to, const Json& value) { to = word(value); }
void take(DType& to, const Json& value) {
  const std::map<std::string, DType> types = {
      {"f64", DType::kF64}, {"f32", DType::kF32}, {"bf16", DType::kBF16}, {"f16", DType::kF16}};
  require(types.contains(word(value)), "no dtype: " + word(value));
  to = types.at(word(value));
}
void take(Recompute& to, const Json& value) {
  const std::map<std::string, Recompute> all = {
      {"none", Recompute::kNone}, {"selective", Recompute::kSelective}, {"full", Recompute::kFull}};
  require(all.contains(word(value)), "no recomputation: " + word(value));
  to = all.at(word(value));
}
void take(std::vector<int64_t>& to, const Json& value) {
  require(value.is_array(), "no list: " + value.dump());
  to.clear();
  for (const Json& item : value) to.push_back(whole(item));
}
void take_auto(int64_t& to, const Json& value) { to = value == "auto" ? 0 : whole(value); }
void take_bytes(int64_t& to, const Json& value) {
  to = value.is_string() ? bytes_of(word(value)) : whole(value);
}
void take_bytes(std::optional<int64_t>& to, const Json& value) {
  int64_t bytes = 0;
  if (value != "unlimited") take_bytes(bytes, value);
  to = value == "unlimited" ? std::nullopt : std::optional(bytes);
}
void take_scale(double& to, const Json& value) {
  if (value.is_number()) return take(to, value);
  require(value == "auto" || value == "dynamic", "no scale: " + value.dump());
  to = value == "auto" ? 0.0 : -1.0;
}

using Members = std::map<std::string, void (*)(Plan&, const Json&)>;
#define KUAFU_MEMBER(take, member)                              \
  {                                                             \
#member, [](Plan & p, const Json& v) { take(p.member, v); } \
  }

/// Keys with the members of the same name.
const Members kMembers = {
    KUAFU_MEMBER(take, model.kind),
    KUAFU_MEMBER(take, model.layers),
    KUAFU_MEMBER(take, model.hidden),
    KUAFU_MEMBER(take, model.heads),
    KUAFU_MEMBER(take, model.vocab),
    KUAFU_MEMBER(take, model.sequence),
    KUAFU_MEMBER(take, model.dtype),
    KUAFU_MEMBER(take, model.dropout),
    KUAFU_MEMBER(take_auto, model.kv_heads),
    KUAFU_MEMBER(take_auto, model.ffn),
    KUAFU_MEMBER(take, model.positions),
    KUAFU_MEMBER(take, model.rotary_base),
    KUAFU_MEMBER(take, model.mlp),
    KUAFU_MEMBER(take, model.norm),
    KUAFU_MEMBER(take, model.norm_epsilon),
    KUAFU_MEMBER(take, model.bias),
    KUAFU_MEMBER(take, model.parallel_blocks),
    KUAFU_MEMBER(take, model.tied),
    KUAFU_MEMBER(take, model.post_norm),
    KUAFU_MEMBER(take_auto, model.embedding),
    KUAFU_MEMBER(take, model.experts),
    KUAFU_MEMBER(take, model.router),
    KUAFU_MEMBER(take, model.top_k),
    KUAFU_MEMBER(take, model.capacity_factor),
    KUAFU_MEMBER(take, model.balance_loss),
    KUAFU_MEMBER(take, model.z_loss),
    KUAFU_MEMBER(take, model.random_second),
    KUAFU_MEMBER(take, model.shared_experts),
    KUAFU_MEMBER(take, model.moe_every),
    KUAFU_MEMBER(take, model.image),
    KUAFU_MEMBER(take, model.patch),
    KUAFU_MEMBER(take, model.classes),
    KUAFU_MEMBER(take_auto, parallel.data.size),
    KUAFU_MEMBER(take, parallel.data.mode),
    KUAFU_MEMBER(take, parallel.data.servers),
    KUAFU_MEMBER(take, parallel.data.staleness),
    KUAFU_MEMBER(take_bytes, parallel.data.bucket),
    KUAFU_MEMBER(take, parallel.data.overlap),
    KUAFU_MEMBER(take, parallel.data.order),
    KUAFU_MEMBER(take, parallel.zero),
    KUAFU_MEMBER(take, parallel.pipeline.size),
    KUAFU_MEMBER(take, parallel.pipeline.schedule),
    KUAFU_MEMBER(take, parallel.pipeline.chunks),
    KUAFU_MEMBER(take, parallel.pipeline.blocks),
    KUAFU_MEMBER(take, parallel.tensor.mode),
    KUAFU_MEMBER(take, parallel.tensor.size),
    KUAFU_MEMBER(take, parallel.tensor.depth),
    KUAFU_MEMBER(take, parallel.sequence.mode),
    KUAFU_MEMBER(take, parallel.sequence.size),
    {"parallel.expert.size", [](Plan& p, const Json& v) { take(p.parallel.expert, v); }},
    KUAFU_MEMBER(take, memory.policy),
    KUAFU_MEMBER(take, memory.recompute),
    KUAFU_MEMBER(take_bytes, memory.device),
    KUAFU_MEMBER(take_bytes, memory.host),
    KUAFU_MEMBER(take_bytes, memory.disk),
    KUAFU_MEMBER(take, memory.disk_path),
    KUAFU_MEMBER(take_bytes, memory.chunk_size),
    KUAFU_MEMBER(take, memory.prefetch),
    KUAFU_MEMBER(take, memory.static_share),
    KUAFU_MEMBER(take, memory.margin),
    KUAFU_MEMBER(take, memory.horizon),
    KUAFU_MEMBER(take, memory.gradients),
    KUAFU_MEMBER(take, memory.activations),
    KUAFU_MEMBER(take, memory.throttle),
    KUAFU_MEMBER(take, optimizer.kind),
    KUAFU_MEMBER(take, optimizer.lr),
    KUAFU_MEMBER(take, optimizer.momentum),
    KUAFU_MEMBER(take, optimizer.beta1),
    KUAFU_MEMBER(take, optimizer.beta2),
    KUAFU_MEMBER(take, optimizer.epsilon),
    KUAFU_MEMBER(take, optimizer.weight_decay),
    KUAFU_MEMBER(take, optimizer.clip),
    KUAFU_MEMBER(take, optimizer.schedule),
    KUAFU_MEMBER(take, optimizer.warmup),
    KUAFU_MEMBER(take, optimizer.warmup_unit),
    KUAFU_MEMBER(take, optimizer.epoch),
    KUAFU_MEMBER(take, optimizer.rewarm_at),
    KUAFU_MEMBER(take_auto, optimizer.schedule_steps),
    KUAFU_MEMBER(take, optimizer.min_lr_ratio),
    KUAFU_MEMBER(take, optimizer.nesterov),
    KUAFU_MEMBER(take, optimizer.coefficient),
    KUAFU_MEMBER(take, optimizer.adam_lr),
    KUAFU_MEMBER(take, optimizer.bias_correction),
    KUAFU_MEMBER(take, optimizer.correction_in),
    KUAFU_MEMBER(take, optimizer.dampening),
    KUAFU_MEMBER(take, optimizer.bound),
    KUAFU_MEMBER(take, optimizer.scaled_layers),
    KUAFU_MEMBER(take, optimizer.rate_in),
    KUAFU_MEMBER(take, optimizer.denominator),
    KUAFU_MEMBER(take, optimizer.clip_elements),
    KUAFU_MEMBER(take, optimizer.matrix_scale),
    KUAFU_MEMBER(take, optimizer.coefficients),
    KUAFU_MEMBER(take, optimizer.ratio_min),
    KUAFU_MEMBER(take, optimizer.ratio_max),
    KUAFU_MEMBER(take, optimizer.exclude),
    KUAFU_MEMBER(take, optimizer.power),
    KUAFU_MEMBER(take, optimizer.drop_every),
    KUAFU_MEMBER(take, optimizer.drop_factor),
    KUAFU_MEMBER(take, optimizer.scale_lr),
    KUAFU_MEMBER(take, optimizer.base_batch),
    KUAFU_MEMBER(take, data.kind),
    KUAFU_MEMBER(take, data.path),
    KUAFU_MEMBER(take, data.hash),
    KUAFU_MEMBER(take, data.validation),
    KUAFU_MEMBER(take, data.tokenizer),
    KUAFU_MEMBER(take, data.end_token),
    KUAFU_MEMBER(take, data.document_mask),
    KUAFU_MEMBER(take, train.batch),
    KUAFU_MEMBER(take_auto, train.micro_batch),
    KUAFU_MEMBER(take, train.steps),
    KUAFU_MEMBER(take, train.validation_batches),
    KUAFU_MEMBER(take, train.validate_every),
    KUAFU_MEMBER(take, train.telemetry),
    KUAFU_MEMBER(take, train.seed),
    KUAFU_MEMBER(take_scale, train.loss_scale),
    KUAFU_MEMBER(take, train.loss_scale_start),
    KUAFU_MEMBER(take, train.loss_scale_interval),
    KUAFU_MEMBER(take, cluster.ranks_per_node),
    KUAFU_MEMBER(take, cluster.intra_latency_us),
    KUAFU_MEMBER(take, cluster.intra_bandwidth_gbs),
    KUAFU_MEMBER(take, cluster.inter_latency_us),
    KUAFU_MEMBER(take, cluster.inter_bandwidth_gbs),
    KUAFU_MEMBER(take, cluster.compute_gflops),
    KUAFU_MEMBER(take, cluster.memory_gbs),
    KUAFU_MEMBER(take, cluster.host_memory_gbs),
    KUAFU_MEMBER(take, cluster.host_gbs),
    KUAFU_MEMBER(take, cluster.disk_gbs),
};
#undef KUAFU_MEMBER

std::vector<LayerPlan> layers_of(const Json& list) {
  require(list.is_array(), "parallel.layers is no list: " + list.dump());
  std::vector<LayerPlan> layers;
  for (const Json& entry : list) {
    require(entry.is_object(), "parallel.layers has an entry that is no table: " + list.dump());
    LayerPlan& layer = layers.emplace_back();
    for (const auto& [key, value] : entry.items()) {
      require(key == "from" || key == "to" || key == "mode" || key == "depth",
              "parallel.layers takes the key " + key);
      if (key == "from") take(layer.from, value);
      if (key == "to") take(layer.to, value);
      if (key == "mode") take(layer.mode, value);
      if (key == "depth") take(layer.depth, value);
    }
  }
  return layers;
}

}  // namespace

std::string whole_key(const std::string& key) {
  const std::set<std::string> groups = {"parallel.data", "parallel.pipeline", "parallel.sequence",
                                        "parallel.expert"};
  return groups.contains(key) ? key + ".size" : key;
}

Json toml_json(const std::string& bytes) {
  try {
    return json_of(toml::parse(bytes));
  } catch (const toml::parse_error& e) {
    throw Finding(text("what was taken is no TOML: ", e.description()));
  }
}

Leaves leaves_of(const Json& table, const std::string& prefix) {
  Leaves leaves;
  for (const auto& [key, value] : table.items()) {
    if (!value.is_object()) {
      leaves.emplace_back(prefix + key, value);
      continue;
    }
    for (auto& leaf : leaves_of(value, prefix + key + ".")) leaves.push_back(std::move(leaf));
  }
  return leaves;
}

void put(Plan& plan, const std::string& key, const Json& value) {
  if (key == "parallel.layers") {
    plan.parallel.layers = layers_of(value);
    return;
  }
  const auto member = kMembers.find(whole_key(key));
  require(member != kMembers.end(), "a key that is none is taken: " + key);
  try {
    member->second(plan, value);
  } catch (const Finding& e) {
    throw Finding(text(key, " takes what is ", e.what()));
  }
}

std::string difference(const Plan& got, const Plan& want) {
  if (got == want) return "";
  const std::string a = to_toml(got), b = to_toml(want);
  const size_t at = static_cast<size_t>(
      std::mismatch(a.begin(), a.begin() + static_cast<ptrdiff_t>(std::min(a.size(), b.size())),
                    b.begin())
          .first -
      a.begin());
  const auto line = [&](const std::string& all) {
    const size_t begin = at == 0 ? 0 : all.rfind('\n', at - 1) + 1;
    return all.substr(begin, std::min(all.find('\n', at), all.size()) - begin);
  };
  return text("not as written: ", line(a), "; written: ", line(b));
}

Plan walked_plan(const Json& document) { return walked_plan(leaves_of(document)); }

Plan walked_plan(const Leaves& leaves) {
  Plan plan;
  std::set<std::string> given;
  for (const auto& [key, value] : leaves) {
    require(given.insert(whole_key(key)).second, key + " is given twice, and one of them is lost");
    put(plan, key, value);
  }
  return plan;
}

}  // namespace kuafu::fuzz
