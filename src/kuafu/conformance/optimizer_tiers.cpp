// SPDX-License-Identifier: Apache-2.0
//
// A rule whose slots lie on the host or on a disk between its steps.

#include <algorithm>
#include <filesystem>

#include "kuafu/conformance/optimizers.h"
#include "kuafu/conformance/trial_runs.h"
#include "kuafu/plan/kind_names.h"
#include "kuafu/simulate/simulate.h"

namespace kuafu::conformance {
namespace {

/// Small, with several chunks a block. Buckets of the plan without tiers are cut as chunks are, so that
/// every sum has the same order.
Plan tier_plan(const Registries& registries, const std::string& name, const Overrides& more) {
  Overrides settings = {{"model.layers", "2"},
                        {"model.hidden", "16"},
                        {"model.heads", "2"},
                        {"model.vocab", "37"},
                        {"model.sequence", "6"},
                        {"model.dtype", "f32"},
                        {"parallel.data.order", "fixed"},
                        {"optimizer.kind", name},
                        {"train.batch", "4"},
                        {"train.micro_batch", "2"},
                        {"train.steps", "5"}};
  settings.insert(settings.end(), more.begin(), more.end());
  return placed_plan(registries, settings);
}

constexpr const char* kTierChunk = "3000";

}  // namespace

void check_optimizer_tiers(const Registries& registries, const std::string& name, SlotsOn tier,
                           Notes& notes) {
  const Plan plain = tier_plan(registries, name, {{"parallel.data.bucket", kTierChunk}});
  Overrides below = {
      {"memory.policy", "host"}, {"memory.prefetch", "0"}, {"memory.chunk_size", kTierChunk}};
  if (tier == SlotsOn::kDisk) {
    below.emplace_back("memory.disk_path", std::filesystem::temp_directory_path().string());
  }
  // The least device memory in which all of it runs.
  const Prediction free = simulate(tier_plan(registries, name, below), registries);
  below.emplace_back("memory.device", text(free.ranks.at(0).peak_bytes));
  const std::vector<double> expected = trained(plain, registries, false).at(0).losses;
  const std::vector<double> found =
      trained(tier_plan(registries, name, below), registries, false).at(0).losses;
  const auto [a, b] = std::mismatch(found.begin(), found.end(), expected.begin(), expected.end());
  notes.expect(found == expected, "the loss of step ", a - found.begin(), " is ",
               a == found.end() ? 0 : *a, ", without tiers ", b == expected.end() ? 0 : *b,
               ": a slot that a pass changes and slot_uses does not say so stays as it was");
}

}  // namespace kuafu::conformance
