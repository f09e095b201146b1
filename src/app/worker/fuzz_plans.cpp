// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <map>

#include "app/worker/fuzz.h"
#include "kuafu/base/config.h"
#include "kuafu/base/plugin_error.h"
#include "kuafu/base/suggest.h"
#include "kuafu/engine/placing/placement.h"
#include "kuafu/parallel/pipeline/choose.h"
#include "kuafu/plan/kind_names.h"

namespace kuafu::fuzz {
namespace {

using plan::Form;
using plan::Key;

/// Sizes that make small plans, and divide each other often. A key that is not here is drawn from
/// its range.
const std::map<std::string, std::vector<int64_t>>& sizes() {
  static const std::map<std::string, std::vector<int64_t>> all = {
      {"model.layers", {1, 2, 2, 3, 4, 5}},
      {"model.hidden", {2, 8, 12, 16, 24, 24, 36, 48}},
      {"model.heads", {1, 2, 3, 4, 4, 6, 8, 12}},
      {"model.kv_heads", {1, 2, 3, 4}},
      {"model.ffn", {6, 12, 16, 24, 36, 48}},
      {"model.vocab", {5, 37, 64, 256, 259, 300}},
      {"model.sequence", {1, 6, 7, 8, 12, 16, 18, 24}},
      {"model.experts", {1, 2, 3, 4, 4, 6, 8}},
      {"model.top_k", {1, 2, 3}},
      {"model.shared_experts", {0, 1, 2}},
      {"model.embedding", {4, 6, 8, 12, 16, 24}},
      {"model.moe_every", {1, 2, 3, 4}},
      {"model.image", {2, 4, 6, 8}},
      {"model.patch", {1, 2, 4}},
      {"model.classes", {2, 3, 10, 17}},
      {"parallel.data.size", {1, 2, 2, 3, 4}},
      {"parallel.data.servers", {1, 2, 3}},
      {"parallel.data.staleness", {0, 1, 2, 5}},
      {"parallel.pipeline.size", {1, 2, 2, 3, 4}},
      {"parallel.pipeline.chunks", {1, 2, 2, 3}},
      {"parallel.tensor.size", {1, 2, 2, 3, 4, 4, 8}},
      {"parallel.tensor.depth", {1, 1, 2}},
      {"parallel.sequence.size", {1, 2, 2, 3, 4}},
      {"parallel.expert.size", {1, 2, 2, 4}},
      {"optimizer.warmup", {0, 1, 2, 5}},
      {"optimizer.drop_every", {1, 2, 3}},
      {"optimizer.base_batch", {1, 4, 8, 256}},
      {"train.batch", {1, 4, 6, 8, 12, 16, 18, 24}},
      {"train.micro_batch", {1, 2, 2, 3, 4, 6}},
      {"train.steps", {2, 3, 5, 6}},
      {"train.validation_batches", {0, 1, 1}},
      {"train.validate_every", {0, 0, 1, 2, 4}},
      {"train.loss_scale_interval", {1, 2, 2000}},
      {"cluster.ranks_per_node", {1, 2, 3, 4, 8}},
      {"memory.prefetch", {0, 1, 2, 5, 100}},
  };
  return all;
}

/// Numbers whose whole range is of no interest: most of it trains to infinity at once.
const std::map<std::string, std::vector<std::string>>& numbers() {
  static const std::map<std::string, std::vector<std::string>> all = {
      {"optimizer.lr", {"0.0001", "0.01", "0.1", "10"}},
      {"optimizer.weight_decay", {"0", "0.1", "1"}},
      {"optimizer.clip", {"0", "0.01", "1", "100"}},
      {"optimizer.ratio_min", {"0", "0.1", "1"}},
      {"optimizer.ratio_max", {"0.5", "1", "10", "1e6"}},
      {"optimizer.power", {"0.5", "1", "2", "3"}},
      {"model.norm_epsilon", {"1e-12", "1e-05", "0.01", "0.5"}},
      {"model.rotary_base", {"2", "500", "1000000"}},
      {"model.capacity_factor", {"0.3", "1", "1.25", "2", "100"}},
      {"model.balance_loss", {"0", "0.01", "1"}},
      {"model.z_loss", {"0", "0.001", "0.1"}},
      {"train.loss_scale_start", {"1", "1024", "65536", "1e15"}},
      {"cluster.host_memory_gbs", {"0.1", "1", "10"}},
      {"cluster.host_gbs", {"0.1", "1", "10"}},
      {"cluster.disk_gbs", {"0.1", "1", "10"}},
  };
  return all;
}

std::string draw_integer(const Key& key, Draw& draw) {
  const auto small = sizes().find(key.name);
  if (small != sizes().end()) return text(draw.one_of(small->second));
  const double most = std::min(key.range.to, std::max(key.range.from + 16, 16.0));
  const auto from = static_cast<int64_t>(key.range.from);
  return text(from + draw.below(static_cast<int64_t>(most) - from + 1));
}

std::string draw_number(const Key& key, Draw& draw) {
  const auto few = numbers().find(key.name);
  if (few != numbers().end()) return draw.one_of(few->second);
  const double from = key.range.from, to = key.range.to;
  if (draw.once_in(6) && !key.range.is_open_below) return toml_number(from);
  if (draw.once_in(6) && !key.range.is_open && to <= 1) return toml_number(to);
  const double low = std::max(from, 1e-4), high = std::min(to, std::max(1.0, 1e3 * low));
  return toml_number(std::min(draw.between(low, high), key.range.is_open ? to * 0.99 : to));
}

std::string draw_name(const Key& key, const Registries& registries, Draw& draw) {
  if (key.name == "model.kind") return draw.one_of(registries.models.names());
  if (key.name == "parallel.tensor.mode") return draw.one_of(registries.tensor.names());
  if (key.name == "parallel.sequence.mode") return draw.one_of(registries.sequence.names());
  if (key.name == "optimizer.kind") return draw.one_of(registries.optimizers.names());
  if (key.name == plan::kPolicyKey) {
    return draw.once_in(3) ? MemoryPlan{}.policy : draw.one_of(registries.policies.names());
  }
  if (key.name == "parallel.pipeline.schedule") return draw.one_of(registries.schedules.names());
  if (key.name == "memory.disk_path") return draw.one_of<std::string>({"/var/tmp", "/nowhere"});
  if (key.name == "data.path") return draw.one_of<std::string>({"/proc/self/exe", "/nowhere"});
  if (key.name == "data.tokenizer") return draw.one_of<std::string>({"", "/nowhere"});
  return draw.one_of<std::string>({"", "word"});
}

std::string draw_list(Draw& draw) {
  std::vector<std::string> words;
  for (int64_t n = draw.below(5); n-- > 0;) words.push_back(text(1 + draw.below(3)));
  return "[" + join(words) + "]";
}

std::string draw_layers(const Plan& plan, const Registries& registries, Draw& draw) {
  std::string out;
  int64_t first = 0;
  for (int64_t n = 1 + draw.below(2); n-- > 0 && first < plan.model.layers;) {
    const int64_t from = first + draw.below(plan.model.layers - first);
    const int64_t to = from + draw.below(plan.model.layers - from);
    const int64_t depth = draw.once_in(4) ? 2 : 1;
    out += text(out.empty() ? "" : ", ", "{ from = ", from, ", to = ", to,
                ", mode = ", in_quotes(draw.one_of(registries.tensor.names())), ", depth = ", depth,
                " }");
    first = to + 1;
  }
  return "[" + out + "]";
}

/// Whether a key has a meaning beside what is set; one in forty is set without one.
bool has_meaning(const Key& key, const Overrides& settings, Draw& draw) {
  if (key.governor.empty() || draw.once_in(40)) return true;
  return plan::has_meaning(key, [&](const Key& governor) {
    Plan defaults;
    std::string value = *std::get<std::string*>(governor.member(defaults));
    for (const auto& [name, set] : settings) {
      if (name == governor.name) value = set;
    }
    return value;
  });
}

Overrides draw_settings(const Registries& registries, Draw& draw) {
  Overrides out = {{"data.kind", "synthetic"}};
  // What costs time or makes a plan what it is nearly always has a value.
  const std::vector<std::string> always = {"model.hidden", "model.sequence", "model.vocab",
                                           "train.steps", "train.batch"};
  const int64_t sparse = 2 + draw.below(7);  // some plans set many keys, some few
  const std::vector<Key>& keys = plan::keys();
  for (const Key& key : keys) {
    const bool is_needed = std::find(always.begin(), always.end(), key.name) != always.end();
    const bool is_kind = key.name == "model.kind" || key.name == "parallel.tensor.mode";
    const bool is_governed = !key.governor.empty();  // rare enough by what it needs
    const bool is_drawn = key.name == "data.kind"  ? draw.once_in(16)
                          : is_needed              ? true
                          : is_kind || is_governed ? draw.once_in(2)
                                                   : draw.once_in(sparse);
    if (!is_drawn) continue;
    if (has_meaning(key, out, draw)) {
      out.emplace_back(key.name, draw_value(key, registries, draw));
    }
  }
  return out;
}

/// Sizes of axes without a mode, and modes without a size, are told; few of them.
void complete(Overrides& settings, Draw& draw) {
  const auto find = [&](const std::string& key) {
    return std::find_if(settings.begin(), settings.end(),
                        [&](const auto& s) { return s.first == key; });
  };
  for (const std::string group : {"parallel.tensor", "parallel.sequence"}) {
    const auto mode = find(group + ".mode");
    const bool is_off = mode == settings.end() || mode->second == "none";
    const auto size = find(group + ".size");
    if (is_off && size != settings.end() && !draw.once_in(20)) size->second = "1";
    if (!is_off && size == settings.end()) {
      const auto& choices = sizes().at(group + ".size");
      settings.emplace_back(group + ".size", text(draw.one_of(choices)));
    }
  }
  const auto kind = find("model.kind");
  const bool has_images =
      kind != settings.end() && ModelPlan{.kind = kind->second}.input() == ModelInput::kImages;
  if (has_images) {  // vocabulary and sequence follow from them
    std::erase_if(settings, [](const auto& s) {
      return s.first == "model.sequence" || s.first == "model.vocab";
    });
    // The default image has 1,024 patches of one pixel.
    if (find("model.image") == settings.end()) {
      settings.emplace_back("model.image", text(draw.one_of(sizes().at("model.image"))));
    }
  }
}

bool is_too_large(const Overrides& settings, int64_t most_ranks) {
  try {
    const ParallelPlan p = parse_values("", "plan", settings).parallel;
    return std::max<int64_t>(p.data.size, 1) * p.pipeline.size * p.tensor.size * p.sequence.size >
           most_ranks;
  } catch (const ConfigError&) {
    return false;  // refused, which is an end too
  }
}

}  // namespace

double Draw::between(double low, double high) {
  return low * std::pow(high / low, random_.uniform(next_++));
}

std::string draw_value(const Key& key, const Registries& registries, Draw& draw) {
  switch (key.form) {
    case Form::kInteger:
      return draw_integer(key, draw);
    case Form::kAutoInteger:
      return draw.once_in(4) ? "auto" : draw_integer(key, draw);
    case Form::kBytes:
      return draw.one_of<std::string>({"1", "100", "2000", "20000", "25 MiB"});
    case Form::kOptionalBytes:
      return draw.one_of<std::string>({"unlimited", "unlimited", "1 GB", "1 MB", "100000"});
    case Form::kNumber:
      return draw_number(key, draw);
    case Form::kScale:
      return draw.one_of<std::string>({"auto", "dynamic", "1", "0.5", "1024", "1e15"});
    case Form::kBoolean:
      return draw.once_in(2) ? "true" : "false";
    case Form::kString:
      return draw_name(key, registries, draw);
    case Form::kChoice:
      return draw.one_of(key.choices);
    case Form::kIntegers:
      return draw_list(draw);
  }
  return {};
}

Plan placed(const Overrides& settings, const Registries& registries,
            const std::vector<std::string>& plugins) {
  return with_plugins(plugins, [&] {
    const TensorModes modes = registries.tensor_modes();
    Choices choices = registries.choices();
    choices.plugins = plugins;
    const Plan plan = resolve(parse_plan("", "plan", choices, settings), 0, modes);
    check_placement(plan, registries);
    return plan;
  });
}

Overrides draw_plan(const Registries& registries, int64_t most_ranks, Draw& draw) {
  for (int64_t tries = 1;; ++tries) {
    Overrides settings = draw_settings(registries, draw);
    complete(settings, draw);
    if (is_too_large(settings, most_ranks)) continue;
    if (draw.once_in(4)) {
      try {
        const Plan plan = parse_values("", "plan", settings);
        if (plan.parallel.tensor.mode != tensor_modes::kNone) {
          settings.emplace_back("parallel.layers", draw_layers(plan, registries, draw));
        }
      } catch (const ConfigError&) {  // refused, which is an end too
      }
    }
    try {
      placed(settings, registries);
      return settings;
    } catch (const ConfigError&) {
      if (draw.once_in(60) || tries == 200) return settings;
    } catch (...) {
      return settings;
    }
  }
}

}  // namespace kuafu::fuzz
