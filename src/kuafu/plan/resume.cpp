// SPDX-License-Identifier: Apache-2.0
#include "kuafu/plan/resume.h"

#include <algorithm>
#include <string>
#include <vector>

#include "kuafu/base/errors.h"
#include "kuafu/base/suggest.h"
#include "kuafu/plan/auto_values.h"
#include "kuafu/plan/keys.h"

namespace kuafu {
namespace {

constexpr std::string_view kKind = "optimizer.kind", kHorizon = "optimizer.schedule_steps";
/// How numbers are rounded is no part of what is learned: a run may go on in another type.
constexpr std::string_view kType = "model.dtype";

/// Beyond optimizer.*: which samples a step takes, by which draws, and what else is learned without
/// other parameters.
constexpr std::string_view kLearningKeys[] = {"data.kind",          "data.validation",
                                              "data.document_mask", "train.batch",
                                              "train.seed",         "parallel.data.staleness",
                                              "model.dropout",      "model.capacity_factor",
                                              "model.balance_loss", "model.z_loss"};

template <size_t n>
bool contains(const std::string_view (&names)[n], std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

/// Decides which tensors a checkpoint holds.
bool is_of_state(const plan::Key& key) {
  if (key.section() == "model") return key.name != kType && !contains(kLearningKeys, key.name);
  return key.name == kKind;
}

bool is_of_learning(const plan::Key& key) {
  if (key.name == kKind || key.name == kHorizon) return false;
  return key.section() == "optimizer" || contains(kLearningKeys, key.name);
}

std::string horizon(const Plan& plan) {
  return text(plan.schedule_steps(), plan.optimizer.schedule_steps == 0 ? " (by train.steps)" : "");
}

}  // namespace

std::vector<std::string> resume_changes(const Plan& saved, const Plan& now) {
  std::vector<std::string> changes;
  const auto note = [&](const auto& name, const std::string& before, const std::string& after) {
    changes.push_back(text(name, " = ", before, ", now ", after));
  };
  const Plan was = plan::spelled_out(saved), is = plan::spelled_out(now);
  for (const plan::Key& key : plan::keys()) {
    const std::string before = plan::print(key, was), after = plan::print(key, is);
    if (is_of_learning(key) && before != after) note(key.name, before, after);
  }
  const DataParallelPlan &by = saved.parallel.data, &by_now = now.parallel.data;
  if (by.is_stale() && by_now.is_stale() && by.size != by_now.size) {  // each pushes its own steps
    note("parallel.data.size", text(by.size), text(by_now.size, " (workers that wait for nobody)"));
  }
  if (saved.optimizer.has_horizon() && now.optimizer.has_horizon() &&
      saved.schedule_steps() != now.schedule_steps()) {
    note(kHorizon, horizon(saved), horizon(now));
  }
  const std::string &before = saved.data.hash, &after = now.data.hash;
  if (!before.empty() && !after.empty() && before != after) {
    const std::string &from = saved.data.path, &to = now.data.path;
    note("data.hash", in_quotes(before), in_quotes(after));
    if (from != to) {
      changes.back() += text(" (data.path = ", in_quotes(from), ", now ", in_quotes(to), ")");
    }
  }
  return changes;
}

void check_same_model(const Plan& saved, const Plan& now, std::string_view saved_as,
                      std::string_view instead) {
  const Plan was = plan::spelled_out(saved), is = plan::spelled_out(now);
  for (const plan::Key& key : plan::keys()) {
    if (key.section() != "model" || !is_of_state(key)) continue;
    const std::string before = plan::print(key, was), after = plan::print(key, is);
    KUAFU_REQUIRE(before == after, saved_as, " has weights of a model with ", key.name, " = ",
                  before, ", the plan has ", key.name, " = ", after, "; set ", key.name, " = ",
                  before, ", or ", instead);
  }
}

void check_resumable(const Plan& saved, const Plan& now, std::string_view saved_as,
                     ResumeChanges changes) {
  const Plan was = plan::spelled_out(saved), is = plan::spelled_out(now);
  for (const plan::Key& key : plan::keys()) {
    const std::string before = plan::print(key, was), after = plan::print(key, is);
    KUAFU_REQUIRE(!is_of_state(key) || before == after, saved_as, " was saved with ", key.name,
                  " = ", before, ", the plan has ", key.name, " = ", after,
                  ": a resumed run keeps its model and kind of optimizer; set ", key.name, " = ",
                  before, ", or start anew in another folder");
  }
  if (changes == ResumeChanges::kMeant) return;
  const std::vector<std::string> found = resume_changes(saved, now);
  KUAFU_REQUIRE(found.empty(), saved_as, " was saved with ", join(found, "; with "),
                ": a resumed run learns as it did; set what was saved, resume with "
                "--resume-with-changes where the change is meant, or start anew in another folder");
}

}  // namespace kuafu
