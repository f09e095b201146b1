// SPDX-License-Identifier: Apache-2.0
//
// Rules with their slots on other tiers: those that are built in hold, and one that says that it only
// reads a slot that it changes is found where slots come from a disk.

#include <gtest/gtest.h>

#include "kuafu/conformance/optimizers.h"
#include "tests/support/expect_has.h"

namespace kuafu {
namespace {

using conformance::check_optimizer_tiers;
using conformance::Finding;
using conformance::Notes;
using conformance::SlotsOn;

Finding finding_of(const Registries& registries, const std::string& name, SlotsOn tier) {
  return conformance::found_or_refused({.name = name, .check = "tiers"}, [&](Notes& notes) {
    check_optimizer_tiers(registries, name, tier, notes);
  });
}

TEST(ConformanceOfOptimizers, HoldsOnTiersForThoseBuiltIn) {
  const Registries all = builtin_registries();
  for (const OptimizerKind& kind : builtin_optimizer_kinds()) {
    for (const SlotsOn tier : {SlotsOn::kHost, SlotsOn::kDisk}) {
      const Finding found = finding_of(all, kind.name, tier);
      EXPECT_TRUE(found.is_ok) << kind.name << ": " << found.detail;
    }
  }
}

/// SGD with momentum, which says that its update only reads the velocity.
Rule forgetful(const OptimizerPlan& plan) {
  Rule rule = make_sgd(plan);
  rule.slot_uses = [](const RulePiece&) { return SlotUses{.update = SlotUse::kRead}; };
  return rule;
}

TEST(ConformanceOfOptimizers, FindsAChangedSlotThatIsNotWrittenBack) {
  Registries all = builtin_registries();
  all.optimizers.add("forgetful", "of a test", {.keys = {"momentum"}, .make = forgetful});
  all.updates.add("forgetful", "of a test", all.updates.find("sgd"));
  EXPECT_TRUE(finding_of(all, "sgd", SlotsOn::kDisk).is_ok);
  const Finding found = finding_of(all, "forgetful", SlotsOn::kDisk);
  EXPECT_FALSE(found.is_ok);
  test::expect_has(found.detail, "the loss of step 2 is");
}

}  // namespace
}  // namespace kuafu
