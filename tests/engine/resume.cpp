// SPDX-License-Identifier: Apache-2.0
#include "tests/engine/resume.h"

#include <algorithm>
#include <filesystem>
#include <limits>

#include <ATen/ATen.h>

#include "kuafu/checkpoint/checkpoint.h"

namespace kuafu::tests {
namespace {

RankResult run_with(const Plan& plan, SaveOptions save) {
  RunOptions options;
  options.checkpoint = std::move(save);
  const std::vector<RankResult> all = run_plan(plan, options);
  return all[0];
}

/// "adamw.m" of "adamw.m.blocks.0.norm1.weight", "" of a parameter.
std::string kind_of(const std::string& name) {
  for (const char* kind : {"adam.m.", "adam.v.", "adamw.m.", "adamw.v.", "sgd.velocity.", "lamb.m.",
                           "lamb.v.", "lars.velocity.", "muon.m.", "muon.v.", "muon.velocity."}) {
    if (name.rfind(kind, 0) == 0) return kind;
  }
  return "";
}

}  // namespace

RankResult run_saving(const Plan& plan, const std::string& folder) {
  return run_with(plan, {.folder = folder, .every = kSavedStep});
}

RankResult run_resumed(const Plan& plan, const std::string& folder) {
  return run_with(plan, {.folder = folder, .every = kSavedStep, .resumes = true});
}

std::string step_folder(const std::string& folder, int64_t step) {
  char name[32];
  std::snprintf(name, sizeof name, "/step-%08d", static_cast<int>(step));
  return folder + name;
}

void forget_after(const std::string& folder, int64_t step) {
  for (const std::string& saved : complete_checkpoints(folder)) {
    if (saved > step_folder(folder, step)) std::filesystem::remove_all(saved);
  }
}

Contents contents_of(const std::string& folder, int64_t step) {
  const Checkpoint saved(step_folder(folder, step));
  Contents all;
  for (const auto& [name, tensor] : saved.tensors()) {
    const Tensor whole = at::empty(tensor.global, scalar_type(tensor.dtype));
    saved.read(name, {Shape(tensor.global.size(), 0), tensor.global}, whole.mutable_data_ptr());
    all[name] = whole.to(at::kDouble);
  }
  return all;
}

Plan run_plan_of(const Overrides& overrides) {
  Overrides all = {{"train.steps", std::to_string(kRunSteps)}};
  const bool has_epsilon =
      std::none_of(overrides.begin(), overrides.end(), [](const Overrides::value_type& o) {
        return o.first == "optimizer.kind" && (o.second == "sgd" || o.second == "lars");
      });
  if (has_epsilon) all.emplace_back("optimizer.epsilon", "0.01");
  all.insert(all.end(), overrides.begin(), overrides.end());
  all.emplace_back("train.batch", "24");
  return small_plan(all);
}

Overrides with(Overrides a, const Overrides& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

double distance(const Contents& a, const Contents& b) {
  constexpr double kFar = std::numeric_limits<double>::infinity();
  std::map<std::string, double> scale;
  for (const auto& [name, tensor] : b) {
    double& largest = scale[kind_of(name)];
    largest = std::max(largest, tensor.abs().max().item<double>());
  }
  if (a.size() != b.size()) return kFar;
  double far = 0;
  for (const auto& [name, tensor] : b) {
    const auto found = a.find(name);
    if (found == a.end() || found->second.sizes() != tensor.sizes()) return kFar;
    const double measured = (found->second - tensor).abs().max().item<double>();
    if (!(measured <= kFar)) return kFar;  // NaN
    far = std::max(far, measured / scale[kind_of(name)]);
  }
  return far;
}

}  // namespace kuafu::tests
