// SPDX-License-Identifier: Apache-2.0
//
// `kuafu import`: a plain file of weights as a checkpoint of step 0. The model that its metadata
// names says which tensors it must hold.

#include <filesystem>
#include <iostream>
#include <map>

#include "app/worker/options.h"
#include "kuafu/base/suggest.h"
#include "kuafu/base/units.h"
#include "kuafu/base/utf8.h"
#include "kuafu/checkpoint/weights.h"
#include "kuafu/engine/placing/placement.h"
#include "kuafu/plan/keys.h"
#include "kuafu/record/folder_lock.h"
#include "kuafu/record/json_text.h"
#include "kuafu/record/missing_folders.h"
#include "kuafu/record/provenance.h"
#include "kuafu/tensor/tensor.h"

namespace kuafu {
namespace {

/// The model's keys as a plan: the rest are defaults, and nothing of them is saved.
Plan plan_of(const Safetensors& file, const Registries& registries,
             const std::vector<std::string>& plugins) {
  const auto& metadata = file.metadata();
  const auto format = metadata.find(weights::kFormatKey);
  const auto model = metadata.find(weights::kModelKey);
  KUAFU_REQUIRE(format == metadata.end() || format->second == weights::kFormat, file.path(),
                ": metadata format is ", in_quotes(as_utf8(format->second)), "; this build reads ",
                in_quotes(weights::kFormat));
  KUAFU_REQUIRE(model != metadata.end(), file.path(), ": its metadata has no ",
                in_quotes(weights::kModelKey), ", the model's keys as JSON; `kuafu export` writes ",
                "it (docs/checkpoint.md)");
  const std::string where = text(file.path(), ": metadata ", weights::kModelKey);
  Json keys;
  try {
    keys = parse_json(model->second);
  } catch (const ConfigError& e) {
    throw ConfigError(text(where, ": ", e.what()));
  }
  KUAFU_REQUIRE(keys.is_object(), where, " is no JSON object");
  const std::string head = "data.kind = \"synthetic\"\n[model]\n";
  std::string whole = head, toml = head;
  for (const auto& [key, value] : keys.items()) {
    KUAFU_REQUIRE(value.is_primitive() && !value.is_null(), where, ".", as_utf8(key), " is ",
                  json_excerpt(value));
    whole += text(json_line(key), " = ", json_line(value), "\n");
  }
  // An export has every key of [model], those of other kinds at their defaults.
  const Plan values = parse_values(whole, where);
  for (const auto& [key, value] : keys.items()) {
    const plan::Key* of_plan = plan::find_key("model." + key);
    if (of_plan != nullptr && plan::is_idle(*of_plan, values)) continue;
    toml += text(json_line(key), " = ", json_line(value), "\n");
  }
  const TensorModes modes = registries.tensor_modes();
  Choices choices = registries.choices();
  choices.plugins = plugins;
  return resolve(parse_plan(toml, where, choices), 1, modes);
}

/// F64 for a model of f64, F32 for others; half precision may come in its own type too.
void check_type(const Safetensors& file, const std::string& name, DType found, DType model) {
  const bool is_wide = model == DType::kF64;
  const DType usual = is_wide ? DType::kF64 : DType::kF32;
  const bool is_half = model == DType::kBF16 || model == DType::kF16;
  KUAFU_REQUIRE(found == usual || (is_half && found == model), file.path(), ": tensor ", name,
                " is ", to_string(found), ", and weights of a model of ", to_string(model), " are ",
                to_string(usual), is_half ? text(" or ", to_string(model)) : "");
}

/// Every tensor of the model, of its extents, and nothing else.
void check_tensors(const Safetensors& file, const Plan& plan, const Registries& registries) {
  const Placement placement(plan, registries, 0, at::kMeta);
  Model model = placement.make_model();
  std::map<std::string, Shape> expected;
  for (const auto& block : model.blocks) {
    for (const Param* p : block->params()) expected[p->name] = p->global;
  }
  std::vector<std::string> names;
  const std::string of_model = text("the model (", plan.model.kind, ")");
  for (const auto& [name, shape] : expected) {
    names.push_back(name);
    const auto found = file.entries().find(name);
    KUAFU_REQUIRE(found != file.entries().end(), file.path(), " has no tensor ", name, ", which ",
                  of_model, " has, of ", to_string(shape));
    KUAFU_REQUIRE(found->second.shape == shape, file.path(), ": tensor ", name, " is ",
                  to_string(found->second.shape), ", that of ", of_model, " is ", to_string(shape));
    check_type(file, name, found->second.dtype, plan.model.dtype);
  }
  for (const auto& [name, entry] : file.entries()) {
    KUAFU_REQUIRE(expected.contains(name), file.path(), ": tensor ", in_quotes(as_utf8(name)),
                  " is none of ", of_model, "; nearest: ", nearest(as_utf8(name), names));
  }
}

/// Writes the checkpoint; leaves no part of it where that fails.
void write_checkpoint(const ImportOptions& options, const Safetensors& file, const Plan& plan) {
  make_writable_folder(options.out, "--out");
  const FolderLock lock(options.out, std::chrono::seconds(3), "--out");
  const Metadata state = {{"plan", to_toml(plan)},
                          {"optimizer_steps", "0"},
                          {weights::kStateKey, "yes"},
                          {"program", provenance().dump()}};
  try {
    import_weights(file, state, options.out);
  } catch (...) {
    std::error_code ignored;
    std::filesystem::remove_all(text(options.out, "/", step_folder(0), ".partial"), ignored);
    throw;
  }
}

/// " --plugin lib.so", as commands take them.
std::string plugin_words(const std::vector<std::string>& plugins) {
  std::string words;
  for (const std::string& plugin : plugins) words += " --plugin " + plugin;
  return words;
}

}  // namespace

int import_command(const ImportOptions& options) {
  WorkerOptions loaded;
  loaded.plugins = options.plugins;
  const Registries registries = load_registries(loaded);
  initialise_tensors();
  const Safetensors file(options.file, SafetensorsKind::kPlain);
  const Plan plan = plan_of(file, registries, options.plugins);
  check_tensors(file, plan, registries);
  const auto there = newest_checkpoint(options.out);
  KUAFU_REQUIRE(!there, "--out ", options.out, " holds checkpoints, the newest ",
                there.value_or(""), "; choose another folder");
  const std::vector<std::string> own = missing_folders(options.out);
  try {
    write_checkpoint(options, file, plan);
  } catch (...) {
    remove_empty_folders(own);  // the lock in it is gone
    throw;
  }
  std::cout << "written: " << options.out << "/" << step_folder(0) << "  " << file.entries().size()
            << " tensors of " << plan.model.kind
            << "; begin with: kuafu run PLAN.toml --checkpoint " << options.out << " --resume"
            << plugin_words(options.plugins) << "\n";
  return kOk;
}

}  // namespace kuafu
