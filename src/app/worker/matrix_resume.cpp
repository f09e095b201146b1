// SPDX-License-Identifier: Apache-2.0
#include "app/worker/matrix_resume.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>

#include <ATen/ATen.h>

#include "kuafu/base/suggest.h"
#include "kuafu/plan/keys.h"
#include "kuafu/tensor/tensor.h"

namespace kuafu::matrix {
namespace {

namespace fs = std::filesystem;

/// Whole, in f64.
Tensor read_whole(const Checkpoint& from, const std::string& name) {
  const IndexedTensor& tensor = from.tensors().at(name);
  const Tensor whole = at::empty(tensor.global, scalar_type(tensor.dtype));
  from.read(name, {Shape(tensor.global.size(), 0), tensor.global}, whole.mutable_data_ptr());
  return whole.to(at::kDouble);
}

/// "adamw.m" of "adamw.m.head.weight", "" of a parameter: what stands before the name of another
/// tensor.
std::string kind_of(const std::string& name, const Checkpoint& among) {
  for (size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1)) {
    if (among.tensors().contains(name.substr(dot + 1))) return name.substr(0, dot);
  }
  return "";
}

/// The largest value of each kind.
std::map<std::string, double> scales_of(const Checkpoint& state) {
  std::map<std::string, double> scales;
  for (const auto& [name, tensor] : state.tensors()) {
    double& largest = scales[kind_of(name, state)];
    largest = std::max(largest, read_whole(state, name).abs().max().item<double>());
  }
  return scales;
}

/// A run's folder of checkpoints, after whose step `last` none was saved.
void forget_after(const std::string& root, int64_t last) {
  for (const std::string& saved : complete_checkpoints(root)) {
    if (*step_of_folder(saved) > last) fs::remove_all(saved);
  }
}

std::string loss_difference(const std::vector<double>& expected, const std::vector<double>& actual,
                            double tolerance) {
  const size_t skipped = expected.size() - std::min(expected.size(), actual.size());
  for (size_t t = 0; t < actual.size(); ++t) {
    const double e = expected.at(skipped + t), a = actual[t];
    if (std::abs(a - e) <= tolerance * std::abs(e)) continue;
    return text("loss ", a, " of step ", skipped + t, " for ", e, " without a stop");
  }
  return "";
}

/// Workers that were in step until then learn otherwise from here on.
ResumeChanges changes_of(const Plan& plan) {
  return plan.parallel.data.is_stale() ? ResumeChanges::kMeant : ResumeChanges::kRefused;
}

/// What `plan` makes of the save of another, before any step: it loads, and saves what it has, which
/// must be what was saved, to the bit. A step would hide what it starts from.
std::string loaded_difference(const Plan& plan, const std::string& saved, const std::string& folder,
                              const RunPlan& run) {
  const int64_t step = *step_of_folder(saved);
  Plan none_left = plan;
  // The horizon of a schedule that has one; others refuse the key.
  if (plan.optimizer.schedule != "constant")
    none_left.optimizer.schedule_steps = plan.schedule_steps();
  none_left.train.steps = step;
  run(none_left,
      {.is_certified = false,
       .checkpoint = {
           .folder = folder, .resumes = true, .from = saved, .changes = changes_of(plan)}});
  const std::string why =
      state_difference(Checkpoint(saved), Checkpoint(folder + "/" + step_folder(step)), 0);
  return why.empty() ? "" : text("loaded under this plan and saved at once: ", why);
}

}  // namespace

Overrides other_placement(const Overrides& settings, int64_t ranks) {
  Overrides out;
  for (const auto& [key, value] : settings) {
    const bool places = key.rfind("parallel.", 0) == 0 || key == "train.micro_batch";
    if (!places) out.emplace_back(key, value);
  }
  if (ranks == 1) {
    out.emplace_back("parallel.data.size", "2");
    out.emplace_back("parallel.zero", "1");
  }
  return out;
}

// A gradient is off by 8 eps K (layers + 1) at most, as in engine/proof/certificate.cpp, K the
// longest sum; an update by lr / epsilon times that where a second moment is near zero; a step adds
// one such error.
double state_tolerance(const Plan& plan) {
  constexpr double kEps = 0x1.0p-52;
  const auto longest =
      static_cast<double>(std::max(plan.train.batch * plan.model.sequence, 4 * plan.model.hidden));
  const auto depth = static_cast<double>(plan.model.layers + 1);
  const double rounding = 8 * kEps * longest * depth;
  const double rate = std::max(plan.optimizer.lr, plan.optimizer.adam_lr);
  return static_cast<double>(plan.train.steps) * rounding * (1 + rate / plan.optimizer.epsilon);
}

// In f64 a loss follows the state. In other types weights and activations are rounded anew: eps
// each, whose mean over the tokens of a batch is some eps.
double loss_tolerance(const Plan& plan) {
  switch (plan.model.dtype) {
    case DType::kF64:
      return state_tolerance(plan);
    case DType::kF32:
      return 64 * 0x1.0p-23;
    case DType::kF16:
      return 8 * 0x1.0p-10;
    default:
      return 8 * 0x1.0p-7;  // bf16
  }
}

std::string state_difference(const Checkpoint& expected, const Checkpoint& actual,
                             double tolerance) {
  const std::map<std::string, double> scales = scales_of(expected);
  for (const auto& [name, tensor] : actual.tensors()) {
    if (!expected.tensors().contains(name)) return text(name, " is in the resumed run alone");
  }
  for (const auto& [name, tensor] : expected.tensors()) {
    const auto found = actual.tensors().find(name);
    if (found == actual.tensors().end()) return text(name, " is not in the resumed run");
    if (found->second.dtype != tensor.dtype || found->second.global != tensor.global) {
      return text(name, " has another type or shape in the resumed run");
    }
    const double error =
        (read_whole(actual, name) - read_whole(expected, name)).abs().max().item<double>();
    const double allowed = tolerance * scales.at(kind_of(name, expected));
    if (error <= allowed) continue;  // NaN is not
    return text(name, " is ", error, " off the run without a stop, allowed ", allowed);
  }
  for (const auto& [key, value] : expected.state()) {
    if (key != "plan" && key != "program" &&
        (actual.state().count(key) == 0 || actual.state().at(key) != value)) {
      return text("the state's ", key, " is not that of the run without a stop");
    }
  }
  return "";
}

ResumedRun run_resumed(const Plan& saver, const Plan& plan, const std::string& folder,
                       const RunPlan& run) {
  const bool is_same = saver == plan;
  const int64_t steps = plan.train.steps, stop = steps / 2;
  const std::string whole = folder + "/whole", stopped = folder + "/stopped";
  fs::remove_all(folder);
  fs::create_directories(whole);
  const auto saving = [&](const Plan& which, const std::string& root) {
    return run(which, {.is_certified = false, .checkpoint = {.folder = root, .every = stop}})[0];
  };
  const std::vector<double> losses = saving(plan, whole).losses;
  if (is_same) {
    fs::copy(whole, stopped, fs::copy_options::recursive);
  } else {
    saving(saver, stopped);
  }
  forget_after(stopped, stop);
  const RankResult resumed =
      run(plan,
          {.checkpoint = {
               .folder = stopped, .every = stop, .resumes = true, .changes = changes_of(plan)}})[0];
  ResumedRun out{"", resumed.certificate};
  // Workers that were in step until then push other gradients: only certified.
  const bool is_compared = is_same || !plan.parallel.data.is_stale();
  if (is_compared)
    out.difference = loss_difference(losses, resumed.losses, is_same ? 0 : loss_tolerance(plan));
  const auto made = static_cast<int64_t>(resumed.losses.size());
  if (made != steps - stop)
    out.difference = text("went on with ", made, " steps, not ", steps - stop);
  if (!is_same && out.difference.empty()) {
    out.difference =
        loaded_difference(plan, stopped + "/" + step_folder(stop), folder + "/loaded", run);
  }
  if (is_compared && out.difference.empty() && (is_same || plan.model.dtype == DType::kF64)) {
    const std::string last = "/" + step_folder(steps);
    out.difference = state_difference(Checkpoint(whole + last), Checkpoint(stopped + last),
                                      is_same ? 0 : state_tolerance(plan));
  }
  fs::remove_all(folder);
  return out;
}

}  // namespace kuafu::matrix
