// SPDX-License-Identifier: Apache-2.0
//
// `kuafu import`: weights of another program as a checkpoint of step 0. The model that they name says
// which tensors there must be.

#include <filesystem>
#include <iostream>

#include "app/worker/given_weights.h"
#include "app/worker/options.h"
#include "kuafu/record/folder_lock.h"
#include "kuafu/record/missing_folders.h"
#include "kuafu/record/provenance.h"
#include "kuafu/tensor/tensor.h"

namespace kuafu {
namespace {

/// Writes the checkpoint; leaves no part of it where that fails.
void write_checkpoint(const ImportOptions& options, const GivenWeights& from) {
  make_writable_folder(options.out, "--out");
  const FolderLock lock(options.out, std::chrono::seconds(3), "--out");
  const Metadata state = {{"plan", to_toml(from.plan)},
                          {"optimizer_steps", "0"},
                          {weights::kStateKey, "yes"},
                          {"program", provenance().dump()}};
  try {
    import_weights(from.weights, state, options.out);
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

/// What was asked for, and all there is of weights without a head: a checkpoint would lack a part.
int write_plan_alone(const ImportOptions& options, const GivenWeights& from) {
  const std::string file = options.out + "/plan.toml", absent = words_of_absent(from.weights);
  KUAFU_REQUIRE(!std::filesystem::exists(file), "--out: there is a ", file,
                "; choose another folder");
  make_writable_folder(options.out, "--out");
  replace_file(file, model_toml(from.plan));
  const std::string begin = text(file, " --init ", options.file, plugin_words(options.plugins));
  std::cout << "written: " << file << " and no checkpoint"
            << (absent.empty() ? "" : ", for " + absent) << "; begin with: kuafu run " << begin
            << (absent.empty() ? ""
                               : ", which gives these their first values, or kuafu embed " + begin)
            << "\n";
  return kOk;
}

}  // namespace

int import_command(const ImportOptions& options) {
  WorkerOptions loaded;
  loaded.plugins = options.plugins;
  const Registries registries = load_registries(loaded);
  initialise_tensors();
  const bool is_hf = options.format == "hf";
  std::error_code unknown;
  const bool is_folder = std::filesystem::is_directory(options.file, unknown);
  KUAFU_REQUIRE(is_hf || !is_folder, options.file,
                " is a folder; give the .safetensors file, or --format hf for a folder of "
                "transformers");
  KUAFU_REQUIRE(!is_hf || is_folder || !std::filesystem::exists(options.file, unknown),
                options.file,
                " is no folder, which --format hf takes; leave --format out for a "
                ".safetensors file");
  const GivenWeights from = is_hf ? open_hf_folder(options.file, registries, options.plugins)
                                  : open_plain_file(options.file, registries, options.plugins);
  const auto there = newest_checkpoint(options.out);
  KUAFU_REQUIRE(!there, "--out ", options.out, " holds checkpoints, the newest ",
                there.value_or(""), "; choose another folder");
  const bool is_in_part = !from.weights.absent.empty();
  if (options.is_plan_only || is_in_part) return write_plan_alone(options, from);
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
  std::cout << "written: " << options.out << "/" << step_folder(0) << "  "
            << from.weights.tensors.size() << " tensors of " << from.plan.model.kind
            << "; begin with: kuafu run " << plan_file << " --checkpoint " << options.out
            << " --resume" << plugin_words(options.plugins) << "\n";
  return kOk;
}

}  // namespace kuafu
