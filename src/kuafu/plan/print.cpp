// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "kuafu/base/config.h"
#include "kuafu/base/errors.h"
#include "kuafu/base/philox.h"
#include "kuafu/base/xxh64.h"
#include "kuafu/parallel/pipeline/choose.h"
#include "kuafu/plan/auto_values.h"
#include "kuafu/plan/keys.h"
#include "kuafu/plan/layer_ranges.h"
#include "kuafu/plan/plan.h"

namespace kuafu {
namespace {

using plan::Key;

/// "tensor" of "parallel.tensor.size"; empty for keys that stand directly in a section.
std::string group_of(const Key& key) {
  const size_t first = key.name.find('.'), last = key.name.rfind('.');
  return first == last ? "" : key.name.substr(first + 1, last - first - 1);
}

/// What a hash calls a key. Two were numbers before they were tables; hashes are kept in records.
std::string hashed_name(const Key& key) {
  if (key.name == "parallel.data.size") return "parallel.data";
  if (key.name == "parallel.pipeline.size") return "parallel.pipeline";
  return key.name;
}

/// A key of the table in docs/plan.md: `|` would end the cell.
std::string cell(const std::string& words) {
  std::string out;
  for (const char c : words) out += c == '|' ? std::string("\\|") : std::string(1, c);
  return out;
}

/// Keys of `plan` that `is_printed`, section by section.
std::string print_keys(const Plan& plan, const std::function<bool(const Key&)>& is_printed) {
  std::string out, section, group;
  for (const Key& key : plan::keys()) {
    if (!is_printed(key)) continue;
    const std::string own_group = group_of(key);
    if (!group.empty() && own_group != group) out += " }\n";
    if (key.section() != section) {
      section = key.section();
      out += text(out.empty() ? "" : "\n", "[", section, "]\n");
    }
    const std::string word = key.name.substr(key.name.rfind('.') + 1);
    const std::string value = plan::print(key, plan);
    if (own_group.empty()) {
      out += text(word, " = ", value, "\n");
    } else {
      out += text(own_group == group ? ", " : own_group + " = { ", word, " = ", value);
    }
    group = own_group;
  }
  if (!group.empty()) out += " }\n";
  return out + plan::print_layers(plan.parallel.layers);
}

}  // namespace

std::string to_toml(const Plan& plan) {
  return print_keys(plan, [&](const Key& key) { return !plan::is_idle(key, plan); });
}

std::string whole_toml(const Plan& plan) {
  return print_keys(plan, [](const Key&) { return true; });
}

namespace {

/// A key's value as far as it is the plan's meaning: of a timetable's file its bytes, not its path.
std::string meaning_of(const Key& key, const Plan& plan) {
  const std::string& schedule = plan.parallel.pipeline.schedule;
  if (key.name != "parallel.pipeline.schedule" || !pipeline::is_schedule_file(schedule)) {
    return plan::print(key, plan);
  }
  try {
    return text("timetable ", hash_digits(read_file(schedule, "schedule")));
  } catch (const ConfigError&) {  // gone since it was checked
    return plan::print(key, plan);
  }
}

}  // namespace

std::string plan_hash(const Plan& resolved) {
  // Only what means something else than the defaults, so that a plan keeps its identity when keys are
  // added, and has it also where "auto" is spelled out.
  std::string meaning;
  for (const Key& key : plan::keys()) {
    if (plan::is_place(key.name) || key.name == "data.hash") continue;
    if (plan::means_default(key, resolved)) continue;
    meaning += text(hashed_name(key), " = ", meaning_of(key, resolved), "\n");
  }
  meaning += plan::print_layers(resolved.parallel.layers);
  char digits[17];
  std::snprintf(digits, sizeof(digits), "%016llx",
                static_cast<unsigned long long>(hash_name(meaning)));
  return digits;
}

namespace plan {

bool is_place(std::string_view name) { return name == "data.path" || name == "data.tokenizer"; }

std::string markdown() {
  std::string out = R"(# Plans

A plan is a TOML file that decides a run. Every key has a default; an empty file is a plan.
`kuafu run plan.toml --set section.key=value` replaces single values: the value is TOML, and a bare
word is a string (`--set model.dtype=f64`). A misspelt key, a wrong type, a value out of range and an
option without effect are errors that name file, line, value, what is allowed and the nearest legal
choice.

)";
  out += R"(```toml
[model]
layers = 4
hidden = 128
dtype = "f32"

[parallel]
tensor = { mode = "2.5d", size = 8, depth = 2 }   # q x q x depth ranks share a layer
data = 2                                          # short for data = { size = 2 }

[memory]
recompute = "full"
device = "6 GB"

[train]
batch = 16
steps = 100
```

The ranks of a run are data x pipeline x tensor x sequence, outermost first pipeline, data, sequence,
tensor; an omitted `data` takes the ranks that remain, and any other product than the number of ranks
is refused. In `[parallel]` a bare number is short for `{ size = n }` (`data`, `pipeline`, `sequence`,
`expert`). The number of micro-batches is batch / (data x micro_batch). Sizes accept `"6 GB"` (powers
of 1000: kB, MB, GB, TB), `"512 MiB"` (powers of 1024: KiB, MiB, GiB, TiB) and plain bytes.

`[[parallel.layers]]` gives transformer layers a tensor mode of their own on the same ranks; the table
may stand several times. Embedding, head and every layer not named keep `parallel.tensor`.

```toml
[parallel]
tensor = { mode = "1d", size = 4 }

[[parallel.layers]]
from = 1        # layers 1 and 2: both ends are part of the range, the first layer is 0
to = 2
mode = "2d"     # depth = 2 for "2.5d" stands here too; the default is 1
```

Ranges do not overlap. The modes share one mesh: each cuts the tensor ranks into axes, and of all cuts
together each must divide the next (2d on 16 ranks cuts at 4 and 16, 2.5d with depth 4 at 2, 4 and 16).

`pipeline = { size = 4, schedule = "interleaved", chunks = 2 }` cuts the model's blocks (embedding, layers, head) into
size x chunks stages; the number of micro-batches follows from `train.batch` and `train.micro_batch`. `zero = 1, 2, 3` shards
optimizer state, gradients and parameters over the replicas of `data`.
)";
  std::string section;
  for (const KeyDoc& doc : plan_keys()) {
    const std::string own = doc.key.substr(0, doc.key.find('.'));
    if (own != section) {
      section = own;
      out += text("\n## [", section,
                  "]\n\n| key | allowed | default | meaning |\n|---|---|---|---|\n");
    }
    out += text("| `", doc.key, "` | ", cell(doc.type), " | `", doc.default_value, "` | ",
                cell(doc.meaning), " |\n");
  }
  return out;
}

}  // namespace plan
}  // namespace kuafu
