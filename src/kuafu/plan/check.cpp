// SPDX-License-Identifier: Apache-2.0
#include "kuafu/plan/check.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <numeric>

#include "kuafu/base/registry.h"
#include "kuafu/base/suggest.h"
#include "kuafu/plan/keys.h"
#include "kuafu/plan/kind_names.h"
#include "kuafu/plan/layer_ranges.h"

namespace kuafu::plan {
namespace {

constexpr std::string_view kNotAvailable = "not available in this build: ";

/// Names that stand for schemes of the literature, whether or not this build has them.
const std::vector<std::string>& reserved_modes() {
  static const std::vector<std::string> names(tensor_modes::kAll.begin(), tensor_modes::kAll.end());
  return names;
}

std::vector<std::string> names_of(const TensorModes& modes) {
  std::vector<std::string> names;
  for (const std::string& name : reserved_modes()) {
    if (modes.count(name) > 0) names.push_back(name);
  }
  for (const auto& [name, mode] : modes) {
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  return names;
}

void check_tensor(const Plan& plan, const TensorModes& modes, const Origins& origins) {
  const TensorMode& mode = find_mode(plan, modes, origins);
  const TensorPlan& tensor = plan.parallel.tensor;
  try {
    mode.axes(tensor.size, tensor.depth);
  } catch (const Refused& refusal) {
    throw Refused(
        text(origins.of({"parallel.tensor.size", "parallel.tensor.depth", "parallel.tensor.mode"}),
             "parallel.tensor: ", refusal.what()));
  }
}

/// A sequence over more ranks than it can be cut for.
void check_sequence(const Plan& plan, const Origins& origins) {
  const auto& [mode, size] = plan.parallel.sequence;
  const std::string where = origins.of({"parallel.sequence.size", "parallel.sequence.mode"});
  if (mode == sequence_modes::kNone && size != 1) {
    throw Refused(text(where, "parallel.sequence = { mode = \"none\", size = ", size,
                       " }: mode \"none\" keeps sequences whole; nearest: size = 1, or ",
                       "mode = \"ring\" with this size"));
  }
  if (plan.model.sequence < size) {
    throw Refused(text(where, "parallel.sequence.size = ", size,
                       " ranks have no token each of model.sequence = ", plan.model.sequence,
                       "; nearest: size = ", plan.model.sequence, ", or sequence = ", size));
  }
  if (mode == sequence_modes::kUlysses && plan.model.heads % size != 0) {
    throw Refused(text(where, "parallel.sequence.size = ", size, " does not divide model.heads = ",
                       plan.model.heads, size > plan.model.heads ? ": more ranks than heads" : "",
                       ", which mode \"ulysses\" deals out; nearest: size = ",
                       nearest_divisors(plan.model.heads, size),
                       ", or mode = \"ring\" with this size"));
  }
  if (mode == sequence_modes::kRingZigzag && !plan.model.is_causal()) {
    throw Refused(text(origins.of({"parallel.sequence.mode", "model.kind"}),
                       "parallel.sequence.mode = \"ring-zigzag\" balances causal masks, and ",
                       "model.kind = ", in_quotes(plan.model.kind),
                       " has none; nearest: mode = \"ring\""));
  }
}

/// Divisors of `n` nearest to `x`, at most two.
std::vector<int64_t> divisors_near(int64_t n, int64_t x) {
  std::vector<int64_t> divisors;
  for (int64_t d = 1; d * d <= n; ++d) {
    if (n % d != 0) continue;
    divisors.push_back(d);
    if (d * d != n) divisors.push_back(n / d);
  }
  std::sort(divisors.begin(), divisors.end());
  std::stable_sort(divisors.begin(), divisors.end(),
                   [x](int64_t a, int64_t b) { return std::llabs(a - x) < std::llabs(b - x); });
  if (divisors.size() > 2) divisors.resize(2);
  return divisors;
}

}  // namespace

std::string either(const std::vector<int64_t>& numbers) {
  std::vector<std::string> words;
  for (const int64_t number : numbers) words.push_back(text(number));
  return join_or(words);
}

std::string nearest_divisors(int64_t n, int64_t x) { return either(divisors_near(n, x)); }

std::string RanksGiven::words(const std::string& number) const {
  return option.empty() ? number + " ranks" : option + " " + number;
}

std::string RanksGiven::origin() const {
  return ranks == 0 ? "" : text(" (of ", words(text(ranks)), ")");
}

std::string RanksGiven::advice(const std::vector<int64_t>& replicas) const {
  if (ranks == 0) return text("data = ", either(replicas));
  std::vector<int64_t> others;
  for (const int64_t count : replicas) others.push_back(saturating_product({count, replica}));
  return words(either(others));
}

int64_t saturating_product(const std::vector<int64_t>& factors) {
  int64_t product = 1;
  for (const int64_t factor : factors) {
    if (__builtin_mul_overflow(product, factor, &product)) {
      return std::numeric_limits<int64_t>::max();
    }
  }
  return product;
}

std::optional<std::string> expert_misfit(const Plan& plan, const RanksGiven& given) {
  const int64_t data = plan.parallel.data.size, expert = plan.parallel.expert;
  if (data % expert == 0) return {};
  const int64_t below = data / expert * expert;
  std::vector<int64_t> near = {below + expert};
  if (below > 0) near.insert(near.begin(), below);
  return text(
      "parallel.expert.size = ", expert, " does not divide parallel.data = ", data, given.origin(),
      "; nearest: expert.size = ", nearest_divisors(std::gcd(data, plan.model.experts), expert),
      ", or ", given.advice(near));
}

std::optional<std::string> batch_misfit(const Plan& plan, const RanksGiven& given) {
  const int64_t batch = plan.train.batch, data = plan.parallel.data.size;
  const int64_t micro = plan.train.micro_batch;
  const int64_t step = saturating_product({data, std::max<int64_t>(1, micro)});
  if (batch % step == 0) return {};
  const int64_t below = batch / step * step;
  std::string reason =
      micro == 0 ? text("train.batch = ", batch, " does not divide by parallel.data = ", data,
                        given.origin())
                 : text("train.batch = ", batch, " does not divide by parallel.data x ",
                        "train.micro_batch = ", data, " x ", micro, " = ", step, given.origin());
  reason += text("; nearest: batch = ", below > 0 ? text(below, " or ") : "", below + step);
  if (batch % data != 0) {
    reason += ", or " + given.advice(divisors_near(batch, data));
  } else {
    reason += ", or micro_batch = " + nearest_divisors(batch / data, micro);
  }
  return reason;
}

const TensorMode& find_mode(const Plan& plan, const TensorModes& modes, const Origins& origins) {
  const std::string& name = plan.parallel.tensor.mode;
  const auto found = modes.find(name);
  if (found != modes.end()) return found->second;
  const std::string where = origins.of({"parallel.tensor.mode"});
  const std::vector<std::string> available = names_of(modes);
  const std::vector<std::string>& reserved = reserved_modes();
  if (std::find(reserved.begin(), reserved.end(), name) != reserved.end()) {
    throw Refused(text(where, kNotAvailable, "parallel.tensor.mode = ", in_quotes(name),
                       "; available: ", join_or(in_quotes(available)),
                       "; nearest: ", in_quotes(nearest(name, available))));
  }
  throw NotFound(text(where, "parallel.tensor.mode = ", in_quotes(name),
                      " is not allowed; allowed: ", join_or(in_quotes(available)),
                      "; nearest: ", in_quotes(nearest(name, available))));
}

void check_sequence_mode(const Plan& plan, const std::vector<std::string>& attentions,
                         const Origins& origins) {
  const std::string& mode = plan.parallel.sequence.mode;
  if (std::find(attentions.begin(), attentions.end(), mode) != attentions.end()) return;
  throw NotFound(text(origins.of({"parallel.sequence.mode"}), "parallel.sequence.mode = ",
                      in_quotes(mode), " is not allowed; allowed: ", join_or(in_quotes(attentions)),
                      "; nearest: ", in_quotes(nearest(mode, attentions))));
}

void check_plan(const Plan& plan, const TensorModes& modes, const Origins& origins) {
  check_model(plan, origins);
  check_tensor(plan, modes, origins);
  check_layers(plan, modes, origins);
  check_sequence(plan, origins);
  check_experts(plan, origins);
  check_data(plan, origins);
  check_memory(plan, origins);
  check_pipeline(plan, origins);
  if (plan.parallel.data.size == 0) return;
  if (const auto reason = expert_misfit(plan)) {
    throw Refused(text(origins.of({"parallel.expert.size", "parallel.data.size"}), *reason));
  }
  if (const auto reason = replica_misfit(plan)) {
    throw Refused(text(origins.of({"parallel.data.servers", "parallel.data.mode",
                                   "cluster.ranks_per_node", "parallel.data.size"}),
                       *reason));
  }
  if (const auto reason = batch_misfit(plan)) {
    throw Refused(
        text(origins.of({"train.batch", "parallel.data.size", "train.micro_batch"}), *reason));
  }
}

}  // namespace kuafu::plan
