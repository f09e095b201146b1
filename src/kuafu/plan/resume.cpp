// SPDX-License-Identifier: Apache-2.0
#include "kuafu/plan/resume.h"

#include <algorithm>
#include <string>
#include <vector>

#include "kuafu/base/errors.h"
#include "kuafu/plan/keys.h"

namespace kuafu {
namespace {

/// Keys of a model that leave its parameters as they are: a run may change them on the way.
constexpr std::string_view kFreeModelKeys[] = {
    "model.dtype", "model.dropout", "model.capacity_factor", "model.balance_loss", "model.z_loss"};

/// Beyond the model: which state the optimizer has, and which samples a step takes.
constexpr std::string_view kOtherKeys[] = {"optimizer.kind", "data.kind", "data.validation",
                                           "train.batch", "train.seed"};

template <size_t n>
bool contains(const std::string_view (&names)[n], std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

bool must_agree(const plan::Key& key) {
  if (key.section() == "model") return !contains(kFreeModelKeys, key.name);
  return contains(kOtherKeys, key.name);
}

}  // namespace

void check_resumable(const Plan& saved, const Plan& now, std::string_view saved_as) {
  for (const plan::Key& key : plan::keys()) {
    const std::string before = plan::print(key, saved), after = plan::print(key, now);
    KUAFU_REQUIRE(!must_agree(key) || before == after, saved_as, " was saved with ", key.name,
                  " = ", before, ", the plan has ", key.name, " = ", after,
                  ": a resumed run keeps its model, samples and kind of optimizer; set ", key.name,
                  " = ", before, ", or start anew in another folder");
  }
}

}  // namespace kuafu
