// SPDX-License-Identifier: Apache-2.0
//
// `kuafu import`: weights of another program as a checkpoint of step 0. The model that they name says
// which tensors there must be.

#include <filesystem>
#include <iostream>
#include <map>
#include <memory>

#include "app/worker/options.h"
#include "kuafu/base/suggest.h"
#include "kuafu/base/units.h"
#include "kuafu/base/utf8.h"
#include "kuafu/checkpoint/weights.h"
#include "kuafu/engine/placing/placement.h"
#include "kuafu/hf/folder.h"
#include "kuafu/plan/keys.h"
#include "kuafu/record/folder_lock.h"
#include "kuafu/record/json_text.h"
#include "kuafu/record/missing_folders.h"
#include "kuafu/record/provenance.h"
#include "kuafu/tensor/tensor.h"

namespace kuafu {
namespace {

/// Weights that were opened: the plan of their model, and the tensors it has.
struct Opened {
  std::string path;
  Plan plan;
  std::vector<TensorBytes> tensors;  ///< without their data
  std::function<std::vector<char>(const std::string& name)> read;
};

constexpr const char* kOtherKeys = "data.kind = \"synthetic\"\n[model]\n";

Plan resolved_plan(const std::string& toml, const std::string& where, const Registries& registries,
                   const std::vector<std::string>& plugins) {
  const TensorModes modes = registries.tensor_modes();
  Choices choices = registries.choices();
  choices.plugins = plugins;
  return resolve(parse_plan(toml, where, choices), 1, modes);
}

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
  std::string whole = kOtherKeys, toml = kOtherKeys;
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
  return resolved_plan(toml, where, registries, plugins);
}

/// F64 for a model of f64, F32 for others; half precision may come in its own type too.
void check_type(const Opened& from, const std::string& name, DType found) {
  const DType model = from.plan.model.dtype;
  const bool is_wide = model == DType::kF64;
  const DType usual = is_wide ? DType::kF64 : DType::kF32;
  const bool is_half = model == DType::kBF16 || model == DType::kF16;
  KUAFU_REQUIRE(found == usual || (is_half && found == model), from.path, ": tensor ", name, " is ",
                to_string(found), ", and weights of a model of ", to_string(model), " are ",
                to_string(usual), is_half ? text(" or ", to_string(model)) : "");
}

/// Every tensor of the model, of its extents, and nothing else.
void check_tensors(const Opened& from, const Registries& registries) {
  const Placement placement(from.plan, registries, 0, at::kMeta);
  Model model = placement.make_model();
  std::map<std::string, Shape> expected;
  for (const auto& block : model.blocks) {
    for (const Param* p : block->params()) expected[p->name] = p->global;
  }
  std::map<std::string, const TensorBytes*> there;
  for (const TensorBytes& t : from.tensors) there[t.name] = &t;
  std::vector<std::string> names;
  const std::string of_model = text("the model (", from.plan.model.kind, ")");
  for (const auto& [name, shape] : expected) {
    names.push_back(name);
    const auto found = there.find(name);
    KUAFU_REQUIRE(found != there.end(), from.path, " has no tensor ", name, ", which ", of_model,
                  " has, of ", to_string(shape));
    KUAFU_REQUIRE(found->second->shape == shape, from.path, ": tensor ", name, " is ",
                  to_string(found->second->shape), ", that of ", of_model, " is ",
                  to_string(shape));
    check_type(from, name, found->second->dtype);
  }
  for (const auto& [name, tensor] : there) {
    KUAFU_REQUIRE(expected.contains(name), from.path, ": tensor ", in_quotes(as_utf8(name)),
                  " is none of ", of_model, "; nearest: ", nearest(as_utf8(name), names));
  }
}

/// The model's keys, those that are not the defaults.
std::string model_toml(const Plan& plan) {
  const Plan defaults;
  std::string toml = "[model]\n";
  for (const plan::Key& key : plan::keys()) {
    if (key.section() != "model" || plan::is_idle(key, plan)) continue;
    const std::string value = plan::print(key, plan);
    if (value == plan::print(key, defaults)) continue;
    toml += text(key.name.substr(key.section().size() + 1), " = ", value, "\n");
  }
  return toml;
}

/// What `kuafu export` wrote.
Opened open_plain(const ImportOptions& options, const Registries& registries) {
  const auto file = std::make_shared<Safetensors>(options.file, SafetensorsKind::kPlain);
  Opened out{options.file, plan_of(*file, registries, options.plugins), {}, {}};
  for (const auto& [name, entry] : file->entries()) {
    out.tensors.push_back({name, entry.dtype, entry.shape, nullptr});
  }
  out.read = [file](const std::string& name) {
    std::vector<char> bytes = file->read(name);
    require_finite(*file, name, bytes);
    return bytes;
  };
  return out;
}

/// A folder of Hugging Face's.
Opened open_hf(const ImportOptions& options, const Registries& registries) {
  const auto folder = std::make_shared<hf::Folder>(options.file);
  Plan written;
  written.model = folder->config().model;
  written.model.dtype = folder->type();
  const std::string toml = text("data.kind = \"synthetic\"\n", model_toml(written));
  Opened out{
      options.file,
      resolved_plan(toml, options.file + "/config.json as a plan", registries, options.plugins),
      {},
      {}};
  auto by_name = std::make_shared<std::map<std::string, const hf::Mapped*>>();
  for (const hf::Mapped& tensor : folder->tensors()) {
    out.tensors.push_back({tensor.name, folder->type(), tensor.shape, nullptr});
    (*by_name)[tensor.name] = &tensor;
  }
  out.read = [folder, by_name](const std::string& name) {
    return folder->read(*by_name->at(name));
  };
  return out;
}

/// Writes the checkpoint; leaves no part of it where that fails.
void write_checkpoint(const ImportOptions& options, const Opened& from) {
  make_writable_folder(options.out, "--out");
  const FolderLock lock(options.out, std::chrono::seconds(3), "--out");
  const Metadata state = {{"plan", to_toml(from.plan)},
                          {"optimizer_steps", "0"},
                          {weights::kStateKey, "yes"},
                          {"program", provenance().dump()}};
  try {
    import_weights(from.tensors, from.read, state, options.out);
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
  const bool is_hf = options.format == "hf";
  const Opened from = is_hf ? open_hf(options, registries) : open_plain(options, registries);
  check_tensors(from, registries);
  const auto there = newest_checkpoint(options.out);
  KUAFU_REQUIRE(!there, "--out ", options.out, " holds checkpoints, the newest ",
                there.value_or(""), "; choose another folder");
  const std::string plan_file = is_hf ? options.out + "/plan.toml" : "PLAN.toml";
  KUAFU_REQUIRE(!is_hf || !std::filesystem::exists(plan_file), "--out: ", plan_file,
                " is written beside the checkpoint, and there is one; choose another folder");
  const std::vector<std::string> own = missing_folders(options.out);
  try {
    write_checkpoint(options, from);
  } catch (...) {
    remove_empty_folders(own);  // the lock in it is gone
    throw;
  }
  if (is_hf) replace_file(plan_file, model_toml(from.plan));
  std::cout << "written: " << options.out << "/" << step_folder(0) << "  " << from.tensors.size()
            << " tensors of " << from.plan.model.kind << "; begin with: kuafu run " << plan_file
            << " --checkpoint " << options.out << " --resume" << plugin_words(options.plugins)
            << "\n";
  return kOk;
}

}  // namespace kuafu
