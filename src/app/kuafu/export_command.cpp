// SPDX-License-Identifier: Apache-2.0
//
// `kuafu export`: a checkpoint as one plain file. Needs no LibTorch: tensors are only copied.

#include <filesystem>
#include <iostream>

#include "app/kuafu/options.h"
#include "kuafu/base/config.h"
#include "kuafu/base/units.h"
#include "kuafu/checkpoint/weights.h"
#include "kuafu/hf/folder.h"
#include "kuafu/plan/keys.h"
#include "kuafu/record/files.h"
#include "kuafu/record/json_text.h"

namespace kuafu {
namespace {

constexpr std::string_view kEnding = ".safetensors";

/// The model's keys and values.
Json model_json(const Plan& plan) {
  Json model = Json::object();
  for (const plan::Key& key : plan::keys()) {
    if (key.section() != "model") continue;
    model[key.name.substr(key.section().size() + 1)] = parse_json(plan::print(key, plan));
  }
  return model;
}

Plan saved_plan(const Checkpoint& from, const std::string& folder) {
  const auto toml = from.state().find("plan");
  KUAFU_REQUIRE(toml != from.state().end(), folder, " holds no run: it has no plan");
  return parse_values(toml->second, text("the plan of ", folder));
}

/// Weights that are there are somebody's. What lies beside them is replaced where an export has
/// written it, and nothing else.
void require_free(const std::string& out, const std::string& beside) {
  std::error_code error;
  KUAFU_REQUIRE(!std::filesystem::exists(std::filesystem::symlink_status(out, error)), "--out ",
                out, ": there is one already, which this export would replace; give another ",
                "name, or remove it");
  if (!std::filesystem::exists(beside)) return;
  const Json there = Json::parse(read_file(beside, "file"), nullptr, false);
  KUAFU_REQUIRE(there.is_object() && there.value(weights::kFormatKey, Json()) == weights::kFormat,
                "--out: ", beside,
                " is written beside the weights, and there is one that no export "
                "has written; move it away, or choose another name");
}

/// As a folder of Hugging Face's.
int export_hf(const ExportCall& call) {
  std::error_code error;
  KUAFU_REQUIRE(!std::filesystem::exists(std::filesystem::symlink_status(call.out, error)),
                "--out ", call.out, ": there is one already; give another name, or remove it");
  const std::string folder = named_checkpoint(call.checkpoint);
  const Checkpoint from(folder);
  const Plan plan = saved_plan(from, folder);
  const hf::Family family = hf::family_of(plan.model);
  const std::vector<std::string> names = weight_names(from, plan.optimizer.kind);
  KUAFU_REQUIRE(!names.empty(), folder, " holds no weights");
  const DType type = from.tensors().at(names.front()).dtype;
  const std::vector<hf::Mapped> tensors = hf::mapping(family, plan.model);
  KUAFU_REQUIRE(tensors.size() == names.size(), folder, " has ", names.size(), " tensors, a ",
                hf::name_of(family), " of its plan ", tensors.size());
  for (const hf::Mapped& t : tensors) {
    const auto found = from.tensors().find(t.name);
    KUAFU_REQUIRE(found != from.tensors().end(), folder, " has no tensor ", t.name);
    KUAFU_REQUIRE(found->second.global == t.shape && found->second.dtype == type, folder,
                  ": tensor ", t.name, " is ", to_string(found->second.dtype), " ",
                  to_string(found->second.global), ", not ", to_string(type), " ",
                  to_string(t.shape));
  }
  hf::write_folder(
      call.out, family, plan.model, type,
      [&](const hf::Mapped& t) {
        std::vector<char> bytes(static_cast<size_t>(TensorBytes{t.name, type, t.shape}.bytes()));
        from.read(t.name, {Shape(t.shape.size(), 0), t.shape}, bytes.data());
        return bytes;
      },
      call.shard_bytes);
  std::cout << "written: " << call.out << "  " << hf::name_of(family) << " of " << names.size()
            << " tensors, of step " << from.step() << "\n";
  return kDone;
}

}  // namespace

int export_command(const ExportCall& call) {
  if (call.format == "hf") return export_hf(call);
  KUAFU_REQUIRE(call.out.ends_with(kEnding) && call.out.size() > kEnding.size(), "--out ", call.out,
                ": the name must end in ", kEnding);
  const std::string beside = call.out.substr(0, call.out.size() - kEnding.size()) + ".json";
  require_free(call.out, beside);
  const std::string folder = named_checkpoint(call.checkpoint);
  const Checkpoint from(folder);
  const Plan plan = saved_plan(from, folder);
  const std::vector<std::string> names = weight_names(from, plan.optimizer.kind);
  Json about = {{weights::kFormatKey, weights::kFormat},
                {weights::kModelKey, model_json(plan)},
                {weights::kStepKey, from.step()},
                {"parameters", 0},
                {"tensors", Json::object()}};
  int64_t parameters = 0;
  for (const std::string& name : names) {
    const IndexedTensor& t = from.tensors().at(name);
    int64_t elements = 1;
    for (const int64_t extent : t.global) elements *= extent;
    parameters += elements;
    about["tensors"][name] = {{"dtype", std::string(to_string(t.dtype))}, {"shape", t.global}};
  }
  about["parameters"] = parameters;
  const int64_t bytes = export_weights(from, names,
                                       {{weights::kFormatKey, weights::kFormat},
                                        {weights::kModelKey, json_line(about["model"])},
                                        {weights::kStepKey, text(from.step())}},
                                       call.out);
  replace_file(beside, json_document(about));
  std::cout << "written: " << call.out << "  " << names.size() << " tensors, "
            << print_count(static_cast<double>(parameters)) << " parameters, " << print_bytes(bytes)
            << ", of step " << from.step() << "\nwritten: " << beside << "\n";
  return kDone;
}

}  // namespace kuafu
