// SPDX-License-Identifier: Apache-2.0
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <iostream>

#include "app/kuafu/options.h"
#include "app/kuafu/programs.h"
#include "kuafu/base/build_folders.h"
#include "kuafu/base/build_info.h"
#include "kuafu/base/config.h"
#include "kuafu/base/errors.h"
#include "kuafu/base/suggest.h"
#include "kuafu/base/worlds.h"
#include "kuafu/experiment/baselines.h"
#include "kuafu/memory/policy_kinds.h"
#include "kuafu/parallel/pipeline/schedules.h"
#include "kuafu/record/schema.h"
#include "kuafu/record/table.h"

namespace kuafu {
namespace {

/// Of the terminal; elsewhere as many as fit in most.
int64_t columns() {
  struct winsize size {};
  const bool is_known = ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return is_known ? size.ws_col : 120;
}

std::string tensor_table() {
  Table table({{"mode"}, {"what it is"}});
  for (const auto& [name, mode] : builtin_tensor_modes()) table.add({name, mode.summary});
  return table.str(columns());
}

std::string sequence_table() {
  Table table({{"mode"}, {"what it is"}});
  for (const auto& [name, summary] : builtin_sequence_modes()) table.add({name, summary});
  return table.str(columns());
}

std::string models_table() {
  Table table({{"model"}, {"what it is"}});
  for (const ModelKind& kind : builtin_model_kinds()) table.add({kind.name, kind.summary});
  return table.str(columns());
}

std::string schedules_table() {
  Table table({{"schedule"}, {"what it is"}});
  for (const auto& entry : pipeline::builtin_schedules().entries()) {
    table.add({entry.name, entry.summary});
  }
  return table.str(columns());
}

std::string optimizers_table() {
  Table table({{"optimizer"}, {"what it is"}, {"keys of its own"}});
  for (const OptimizerKind& kind : builtin_optimizer_kinds()) {
    table.add({kind.name, kind.summary, join(kind.keys)});
  }
  return table.str(columns());
}

std::string policies_table() {
  Table table({{"policy"},
               {"what leaves the device, of memory.policy"},
               {"keys of its own"},
               {"in this build"}});
  for (const memory::PolicyKind& kind : memory::builtin_policy_kinds()) {
    table.add({kind.name, kind.summary, join(kind.keys),
               kind.lacks.empty() ? "yes" : text("no: ", kind.lacks)});
  }
  return table.str(columns());
}

std::string worlds_table() {
  const auto state = [](const BuildFeature& feature) {
    return feature.found ? text("yes, ", feature.name, " ", feature.detail)
                         : text("no: ", feature.detail);
  };
  Table table({{"world"}, {"what it is"}, {"in this build"}});
  for (const World& world : all_worlds()) {
    table.add({world.name, world.summary, state(world.needs)});
  }
  return table.str(columns());
}

std::string keys_table() {
  Table table({{"key"}, {"type"}, {"default"}, {"meaning"}});
  for (const KeyDoc& key : plan_keys()) {
    table.add({key.key, key.type, key.default_value, key.meaning});
  }
  return table.str(columns());
}

std::string fields_table() {
  Table table({{"field"}, {"unit"}, {"meaning"}});
  for (const FieldDoc& field : document_fields()) {
    table.add({field.path, field.unit.empty() ? "-" : field.unit, field.meaning});
  }
  return table.str(columns());
}

/// The suites of the source tree with their questions.
std::string suites_table() {
  Table table({{"suite"}, {"question"}});
  const std::string folder = std::string(build_info::kSourceDir) + "/suites";
  std::vector<std::string> paths;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (entry.path().extension() == ".toml") paths.push_back(entry.path().string());
  }
  std::sort(paths.begin(), paths.end());
  for (const auto& path : paths) {
    const ConfigValue root = parse_toml(read_file(path, "suite"), path);
    const ConfigValue* head = root.find("suite");
    const ConfigValue* question = head == nullptr ? nullptr : head->find("question");
    table.add({"suites/" + std::filesystem::path(path).filename().string(),
               question == nullptr ? "-" : question->string});
  }
  return table.str(columns());
}

/// The baselines of the source tree with their plans.
std::string baselines_table() {
  Table table({{"baseline"}, {"plans"}});
  for (const std::string& name : baseline_names(baselines_folder())) {
    std::vector<std::string> plans;
    for (const BaselinePlan& plan : load_baseline(baselines_folder(), name).plans) {
      plans.push_back(plan.name);
    }
    table.add({name, join(plans)});
  }
  return table.str(columns());
}

struct Kind {
  std::string name;
  std::function<std::string()> table;
};

const std::vector<Kind>& kinds() {
  static const std::vector<Kind> kKinds = {
      {"tensor", tensor_table},         {"sequence", sequence_table},
      {"models", models_table},         {"schedules", schedules_table},
      {"optimizers", optimizers_table}, {"policies", policies_table},
      {"worlds", worlds_table},         {"suites", suites_table},
      {"baselines", baselines_table},   {"keys", keys_table},
      {"fields", fields_table}};
  return kKinds;
}

/// What only the worker knows: whatever a plugin brings.
int list_of_worker(const std::vector<std::string>& plugins) {
  std::vector<std::string> words = {worker_path(), "list"};
  for (const auto& plugin : plugins) words.insert(words.end(), {"--plugin", plugin});
  return run_and_wait(words);
}

}  // namespace

int list_command(const ListCall& call) {
  std::vector<std::string> names = {"registries"};
  for (const Kind& kind : kinds()) names.push_back(kind.name);
  if (call.kind.empty() && call.plugins.empty()) {
    for (const Kind& kind : kinds()) {
      if (kind.name == "keys" || kind.name == "fields") continue;  // long: asked for by name
      std::cout << kind.name << "\n\n" << kind.table() << "\n";
    }
    std::cout << "more:\n"
                 "  kuafu list keys        keys of plans\n"
                 "  kuafu list fields      fields of results\n"
                 "  kuafu list registries  what the worker has, with --plugin what a plugin adds\n";
    return kDone;
  }
  if (call.kind == "registries" || (call.kind.empty() && !call.plugins.empty())) {
    return list_of_worker(call.plugins);
  }
  KUAFU_REQUIRE(call.plugins.empty(), "kuafu list ", call.kind,
                " lists what is built in; `kuafu list --plugin ", call.plugins.front(),
                "` prints that and what the plugin adds");
  for (const Kind& kind : kinds()) {
    if (kind.name != call.kind) continue;
    std::cout << kind.table();
    return kDone;
  }
  throw ConfigError(text("kuafu list has no kind ", in_quotes(call.kind),
                         did_you_mean(call.kind, names), " Kinds are ", join(names)));
}

}  // namespace kuafu
