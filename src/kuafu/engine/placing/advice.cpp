// SPDX-License-Identifier: Apache-2.0
#include "kuafu/engine/placing/advice.h"

#include <algorithm>
#include <variant>
#include <vector>

#include "kuafu/base/suggest.h"
#include "kuafu/engine/placing/placement.h"
#include "kuafu/plan/keys.h"
#include "kuafu/plan/origins.h"

namespace kuafu {
namespace {

constexpr int64_t kMostSteps = 256;  ///< how far from the value given others are tried
constexpr size_t kMostKeys = 3;

bool is_placed(const Plan& plan, const Registries& registries) {
  try {
    check_placement(resolve(plan, 0, registries.tensor_modes()), registries);
    return true;
  } catch (const ConfigError&) {
    return false;
  }
}

/// The number that a key holds in a plan; null where it holds none.
int64_t* number(const plan::Key& key, Plan& plan) {
  const plan::Member member = key.member(plan);
  int64_t* const* held = std::get_if<int64_t*>(&member);
  return held == nullptr ? nullptr : *held;
}

/// The plan with another value of the key. A batch takes a micro-batch that follows from it along.
Plan with(const Plan& plan, const plan::Key& key, int64_t value) {
  Plan other = plan;
  *number(key, other) = value;
  const bool follows =
      plan.train.micro_batch * plan.parallel.data.size == plan.train.batch;  // as "auto" would
  if (key.name == "train.batch" && follows) other.train.micro_batch = 0;
  return other;
}

/// Values of the key that can be placed, nearest first, one a side: "2 or 4".
std::string nearest_values(const Plan& plan, const plan::Key& key, const Registries& registries) {
  Plan copy = plan;
  const int64_t given = *number(key, copy);
  std::vector<std::string> found;
  for (const int64_t sign : {-1, 1}) {
    for (int64_t step = 1; step <= kMostSteps && given + sign * step > 0; ++step) {
      if (!is_placed(with(plan, key, given + sign * step), registries)) continue;
      found.push_back(text(given + sign * step));
      break;
    }
  }
  return join_or(found);
}

/// The keys worth changing: those the reason names, and the tensor ranks. Not those that follow
/// from others ("auto", 0).
std::vector<const plan::Key*> keys_of(const std::string& reason, const Plan& plan) {
  std::vector<std::string> names = plan::keys_named(reason);
  if (plan.parallel.tensor.size > 1) names.push_back("parallel.tensor.size");
  std::vector<const plan::Key*> keys;
  for (const std::string& name : names) {
    const plan::Key* key = plan::find_key(name);
    Plan copy = plan;
    const int64_t* const value = number(*key, copy);
    const bool is_new = std::find(keys.begin(), keys.end(), key) == keys.end();
    const bool is_free = value != nullptr && *value > 0 && name != "parallel.data.size";
    if (is_new && is_free) keys.push_back(key);
  }
  if (keys.size() > kMostKeys) keys.resize(kMostKeys);
  return keys;
}

}  // namespace

std::string advised(const std::string& reason, const Plan& plan, const Registries& registries) {
  const std::string fact = reason.substr(0, reason.find("; nearest"));
  std::string choices;
  for (const plan::Key* key : keys_of(fact, plan)) {
    const std::string values = nearest_values(plan, *key, registries);
    if (values.empty()) continue;
    choices += text(choices.empty() ? "" : ", or ", key->name, " = ", values);
  }
  return choices.empty() ? reason : text(fact, "; nearest: ", choices);
}

}  // namespace kuafu
