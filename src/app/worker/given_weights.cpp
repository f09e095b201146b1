// SPDX-License-Identifier: Apache-2.0
#include "app/worker/given_weights.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>

#include "kuafu/base/errors.h"
#include "kuafu/base/suggest.h"
#include "kuafu/base/utf8.h"
#include "kuafu/checkpoint/boxes.h"
#include "kuafu/engine/placing/placement.h"
#include "kuafu/engine/saving/save.h"
#include "kuafu/engine/saving/saved_run.h"
#include "kuafu/hf/folder.h"
#include "kuafu/plan/keys.h"
#include "kuafu/record/json_text.h"

namespace kuafu {
namespace {

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
void check_type(const GivenWeights& from, const std::string& name, DType found) {
  const DType model = from.plan.model.dtype;
  const bool is_wide = model == DType::kF64;
  const DType usual = is_wide ? DType::kF64 : DType::kF32;
  const bool is_half = model == DType::kBF16 || model == DType::kF16;
  KUAFU_REQUIRE(found == usual || (is_half && found == model), from.weights.path, ": tensor ", name,
                " is ", to_string(found), ", and weights of a model of ", to_string(model), " are ",
                to_string(usual), is_half ? text(" or ", to_string(model)) : "");
}

/// Every tensor of the model, of its extents, and nothing else.
void check_tensors(const GivenWeights& from, const Registries& registries) {
  const Placement placement(from.plan, registries, 0, at::kMeta);
  Model model = placement.make_model();
  std::map<std::string, Shape> expected;
  for (const auto& block : model.blocks) {
    for (const Param* p : block->params()) expected[p->name] = p->global;
  }
  std::map<std::string, const TensorBytes*> there;
  for (const TensorBytes& t : from.weights.tensors) there[t.name] = &t;
  std::vector<std::string> names;
  const std::string of_model = text("the model (", from.plan.model.kind, ")");
  for (const auto& [name, shape] : expected) {
    names.push_back(name);
    if (std::ranges::count(from.weights.absent, name) > 0) continue;
    const auto found = there.find(name);
    KUAFU_REQUIRE(found != there.end(), from.weights.path, " has no tensor ", name, ", which ",
                  of_model, " has, of ", to_string(shape));
    KUAFU_REQUIRE(found->second->shape == shape, from.weights.path, ": tensor ", name, " is ",
                  to_string(found->second->shape), ", that of ", of_model, " is ",
                  to_string(shape));
    check_type(from, name, found->second->dtype);
  }
  for (const auto& [name, tensor] : there) {
    KUAFU_REQUIRE(expected.contains(name), from.weights.path, ": tensor ", in_quotes(as_utf8(name)),
                  " is none of ", of_model, "; nearest: ", nearest(as_utf8(name), names));
  }
}

/// What `kuafu export` wrote.
GivenWeights opened_plain(const std::string& path, const Registries& registries,
                          const std::vector<std::string>& plugins) {
  const auto file = std::make_shared<Safetensors>(path, SafetensorsKind::kPlain);
  GivenWeights out{plan_of(*file, registries, plugins), {path, {}, {}}};
  for (const auto& [name, entry] : file->entries()) {
    out.weights.tensors.push_back({name, entry.dtype, entry.shape, nullptr});
  }
  out.weights.read = [file](const std::string& name, const Slice& box, char* out) {
    const Shape& shape = file->entries().at(name).shape;
    const int64_t size = size_of(file->entries().at(name).dtype);
    const int64_t row_elements = shape.empty() ? 1 : volume(shape) / std::max<int64_t>(1, shape[0]);
    file->read_rows(name, [&](std::span<const char> bytes, int64_t first) {
      require_finite(*file, name, bytes, first);
      Slice rows{Shape(shape.size(), 0), shape};
      if (!shape.empty()) {
        rows.offset[0] = first;
        rows.extent[0] = static_cast<int64_t>(bytes.size()) / (row_elements * size);
      }
      copy_overlap(rows, bytes.data(), box, out, size);
    });
  };
  return out;
}

GivenWeights opened_hf(const std::string& path, const Registries& registries,
                       const std::vector<std::string>& plugins) {
  const auto folder = std::make_shared<hf::Folder>(path);
  Plan written;
  written.model = folder->config().model;
  written.model.dtype = folder->type();
  const std::string toml = text("data.kind = \"synthetic\"\n", model_toml(written));
  GivenWeights out{resolved_plan(toml, path + "/config.json as a plan", registries, plugins),
                   {path, {}, {}}};
  for (const hf::Mapped& tensor : folder->absent()) out.weights.absent.push_back(tensor.name);
  auto by_name = std::make_shared<std::map<std::string, const hf::Mapped*>>();
  for (const hf::Mapped& tensor : folder->tensors()) {
    out.weights.tensors.push_back({tensor.name, folder->type(), tensor.shape, nullptr});
    (*by_name)[tensor.name] = &tensor;
  }
  out.weights.read = [folder, by_name](const std::string& name, const Slice& box, char* out) {
    folder->read(*by_name->at(name), box, out);
  };
  return out;
}

/// A checkpoint's weights, without what its optimizer and its steps have left.
GivenWeights opened_checkpoint(const std::string& path) {
  const std::string folder = named_checkpoint(path);
  const auto from = std::make_shared<Checkpoint>(folder);
  GivenWeights out{saved_run::plan_of(*from, folder), {folder, {}, {}}};
  for (const std::string& name : weight_names(*from, out.plan.optimizer.kind)) {
    const IndexedTensor& t = from->tensors().at(name);
    out.weights.tensors.push_back({name, t.dtype, t.global, nullptr});
  }
  const auto one = std::make_shared<std::mutex>();  // a Checkpoint keeps what it read last
  out.weights.read = [from, one](const std::string& name, const Slice& box, char* out) {
    const std::lock_guard lock(*one);
    from->read(name, box, out);
  };
  return out;
}

GivenWeights checked(GivenWeights from, const Registries& registries) {
  check_tensors(from, registries);
  return from;
}

}  // namespace

std::string words_of_absent(const NamedWeights& weights) {
  return weights.absent.empty() ? "" : text(weights.path, " has no ", join(weights.absent));
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

GivenWeights open_plain_file(const std::string& path, const Registries& registries,
                             const std::vector<std::string>& plugins) {
  return checked(opened_plain(path, registries, plugins), registries);
}

GivenWeights open_hf_folder(const std::string& path, const Registries& registries,
                            const std::vector<std::string>& plugins) {
  return checked(opened_hf(path, registries, plugins), registries);
}

NamedWeights open_init(std::string_view option, const std::string& path, const Plan& plan,
                       const Registries& registries, const std::vector<std::string>& plugins) {
  namespace fs = std::filesystem;
  std::error_code error;
  KUAFU_REQUIRE(fs::exists(path, error), option, " ", path,
                ": there is none; give a folder of Hugging Face's transformers, a checkpoint, or a "
                "file that `kuafu export` wrote");
  const bool is_folder = fs::is_directory(path, error);
  const bool is_hf = is_folder && fs::exists(path + "/config.json", error);
  GivenWeights from = is_hf       ? opened_hf(path, registries, plugins)
                      : is_folder ? opened_checkpoint(path)
                                  : opened_plain(path, registries, plugins);
  check_same_model(
      from.plan, plan, text(option, " ", path),
      is_hf ? "import it, which writes its [model] as a plan" : text("begin without ", option));
  return checked(std::move(from), registries).weights;
}

}  // namespace kuafu
