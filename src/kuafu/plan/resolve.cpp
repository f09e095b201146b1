// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdlib>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kuafu/base/suggest.h"
#include "kuafu/plan/arrange.h"
#include "kuafu/plan/check.h"
#include "kuafu/plan/keys.h"
#include "kuafu/plan/plan.h"
#include "kuafu/plan/values.h"

namespace kuafu {
namespace {

constexpr int64_t kMaxRanks = 1 << 20;

/// Ranks of one data-parallel replica.
int64_t replica(const Plan& plan) {
  const ParallelPlan& p = plan.parallel;
  return plan::saturating_product({p.pipeline.size, p.sequence.size, p.tensor.size});
}

/// "pipeline 1 x tensor 4 x sequence 1"
std::string replica_text(const Plan& plan) {
  const ParallelPlan& p = plan.parallel;
  return text("pipeline ", p.pipeline.size, " x tensor ", p.tensor.size, " x sequence ",
              p.sequence.size);
}

/// What decides the product, key by key: " (parallel.data = 2, parallel.tensor.size = 4)".
std::string factors_text(const Plan& plan) {
  const ParallelPlan& p = plan.parallel;
  const std::vector<std::pair<std::string, int64_t>> factors = {
      {"parallel.data", p.data.size},
      {"parallel.tensor.size", p.tensor.size},
      {"parallel.pipeline", p.pipeline.size},
      {"parallel.sequence.size", p.sequence.size}};
  std::vector<std::string> words;
  for (const auto& [key, size] : factors) {
    if (size > 1) words.push_back(text(key, " = ", size));
  }
  return words.empty() ? "" : text(" (", join(words), ")");
}

/// Fills data and micro_batch. Returns why it cannot, none where it can.
std::optional<std::string> place(Plan& plan, int64_t ranks, const std::string& option = "") {
  ParallelPlan& p = plan.parallel;
  const int64_t share = replica(plan);
  const bool is_counted = p.data.size == 0 && ranks > 0;
  const plan::RanksGiven given{is_counted ? ranks : 0, share, option};
  if (p.data.size == 0) {
    if (ranks % share != 0) {
      return text(ranks, " ranks were given, but one data-parallel replica takes ", share, ": ",
                  replica_text(plan), factors_text(plan));
    }
    p.data.size = ranks == 0 ? 1 : ranks / share;
  }
  const int64_t product = plan::saturating_product({p.data.size, share});
  if (ranks != 0 && product != ranks) {
    return text(ranks, " ranks were given, but the plan takes ", product, ": data ", p.data.size,
                " x ", replica_text(plan), factors_text(plan));
  }
  if (product > kMaxRanks) {
    return text(product, " ranks are more than the limit of ", kMaxRanks, factors_text(plan));
  }
  if (const auto reason = plan::expert_misfit(plan, given)) return reason;
  if (const auto reason = plan::replica_misfit(plan, given)) return reason;
  if (const auto reason = plan::batch_misfit(plan, given)) return reason;
  if (plan.train.micro_batch == 0) plan.train.micro_batch = plan.train.batch / p.data.size;
  return {};
}

/// A tensor of a micro-batch may have as many bytes as a number of 63 bits counts.
void check_tensor_bytes(const Plan& plan) {
  const ModelPlan& m = plan.model;
  const int64_t element = size_of(m.dtype);
  for (const auto& [key, width] : {std::pair{"model.hidden", m.hidden},
                                   {"model.embedding", m.embedding_width()},
                                   {"model.ffn", m.ffn_width()},
                                   {"model.vocab", m.vocab}}) {
    int64_t bytes = element;
    bool is_beyond = false;
    for (const int64_t extent : {plan.train.micro_batch, m.sequence, width}) {
      is_beyond = __builtin_mul_overflow(bytes, extent, &bytes) || is_beyond;
    }
    if (!is_beyond) continue;
    throw Refused(text("train.micro_batch = ", plan.train.micro_batch,
                       " times model.sequence = ", m.sequence, " times ", key, " = ", width, " in ",
                       to_string(m.dtype), " are more bytes than a tensor can have (2^63); give ",
                       "it fewer samples at a time (train.micro_batch), or a shorter sequence"));
  }
}

bool fits(Plan plan, int64_t ranks) { return !place(plan, ranks).has_value(); }

/// Whether a mode arranges the tensor group of a plan with axes that divide the heads. Layouts have
/// the last word; this keeps out of the advice what they would refuse.
bool is_placeable(const Plan& plan, const TensorModes& modes) {
  try {
    for (const Axis& axis : tensor_axes(plan, modes)) {
      if (plan.model.heads % axis.size != 0) return false;
    }
  } catch (const Refused&) {
    return false;
  }
  return true;
}

/// Tensor groups of the plan's own mode that fit on `ranks`, nearest size first, at most two.
std::vector<std::string> nearest_groups(const Plan& plan, int64_t ranks, const TensorModes& modes) {
  std::vector<std::pair<int64_t, Plan>> found;
  for (int64_t size = 1; size <= ranks; ++size) {
    if (ranks % size != 0 || size == plan.parallel.tensor.size) continue;
    for (int64_t depth = 1; depth <= plan.parallel.tensor.depth; ++depth) {
      Plan other = plan;
      other.parallel.tensor.size = size;
      other.parallel.tensor.depth = depth;
      other.parallel.data.size = 0;
      if (is_placeable(other, modes) && !place(other, ranks)) {
        found.emplace_back(std::llabs(size - plan.parallel.tensor.size), other);
      }
    }
  }
  std::stable_sort(found.begin(), found.end(), [&](const auto& a, const auto& b) {
    const auto depth_error = [&](const Plan& p) {
      return std::llabs(p.parallel.tensor.depth - plan.parallel.tensor.depth);
    };
    return std::pair(a.first, depth_error(a.second)) < std::pair(b.first, depth_error(b.second));
  });
  std::vector<std::string> out;
  for (size_t i = 0; i < std::min<size_t>(2, found.size()); ++i) {
    const ParallelPlan& p = found[i].second.parallel;
    out.push_back(text("tensor.size = ", p.tensor.size,
                       p.tensor.depth > 1 ? text(", depth = ", p.tensor.depth) : "",
                       plan.parallel.data.size == 0 ? "" : text(" with data = ", p.data.size)));
  }
  return out;
}

/// Numbers of ranks near these that the plan takes as it is.
std::vector<int64_t> nearest_ranks(const Plan& plan, int64_t ranks) {
  const int64_t share = replica(plan), data = plan.parallel.data.size;
  const int64_t below = ranks / share * share;
  std::vector<int64_t> found;
  for (const int64_t count : data == 0
                                 ? std::vector<int64_t>{below, below + share}
                                 : std::vector<int64_t>{plan::saturating_product({share, data})}) {
    if (count > 0 && count != ranks && fits(plan, count)) found.push_back(count);
  }
  return found;
}

/// Plans near this one that `resolve` accepts: other ranks, another data, another tensor group. First
/// what the caller gave.
std::string nearest_plans(const Plan& plan, int64_t ranks, const TensorModes& modes,
                          const std::string& option) {
  std::vector<std::string> out, counts;
  const int64_t share = replica(plan);
  Plan other = plan;
  other.parallel.data.size = 0;
  if (plan.parallel.data.size != 0 && ranks % share == 0 && fits(other, ranks)) {
    out.push_back(text("data = ", ranks / share));
  }
  for (std::string& group : nearest_groups(plan, ranks, modes)) out.push_back(std::move(group));
  const plan::RanksGiven given{ranks, share, option};
  for (const int64_t count : nearest_ranks(plan, ranks)) counts.push_back(given.words(text(count)));
  out.insert(option.empty() ? out.end() : out.begin(), counts.begin(), counts.end());
  return join_or(out);
}

}  // namespace

Plan resolve(Plan plan, int64_t ranks, const TensorModes& modes) {
  return resolve(std::move(plan), ranks, modes, "");
}

Plan resolve(Plan plan, int64_t ranks, const TensorModes& modes, const std::string& ranks_option) {
  KUAFU_REQUIRE(ranks >= 0 && ranks <= kMaxRanks, ranks, " ranks were given; allowed: 1 to ",
                kMaxRanks, ", or 0 for the plan's own product");
  plan::check_values(plan);
  plan::fill_defaults(plan, {});
  plan::complete(plan, {});
  plan::check_plan(plan, modes, {});
  const Plan given = plan;
  if (const auto reason = place(plan, ranks, ranks_option)) {
    const bool has_advice = reason->find("; nearest: ") != std::string::npos;
    const std::string near =
        has_advice || ranks == 0 ? "" : nearest_plans(given, ranks, modes, ranks_option);
    throw Refused(near.empty() ? *reason : text(*reason, "; nearest: ", near));
  }
  check_tensor_bytes(plan);
  return plan;
}

int64_t num_ranks(const Plan& resolved) {
  KUAFU_REQUIRE(resolved.parallel.data.size > 0,
                "the plan is not resolved: parallel.data is open; call resolve first");
  return plan::saturating_product({resolved.parallel.data.size, replica(resolved)});
}

std::vector<Axis> mesh_axes(const Plan& resolved, const TensorModes& modes) {
  KUAFU_REQUIRE(resolved.parallel.data.size > 0,
                "the plan is not resolved: parallel.data is open; call resolve first");
  const ParallelPlan& p = resolved.parallel;
  const TensorMode& mode = plan::find_mode(resolved, modes, {});
  std::vector<Axis> axes = {{"pipeline", p.pipeline.size}};
  if (p.expert > 1) {
    axes.push_back({"replica", p.data.size / p.expert});
    axes.push_back({"expert", p.expert});
  } else {
    axes.push_back({"data", p.data.size});
  }
  axes.push_back({"sequence", p.sequence.size});
  int64_t size = 1;
  for (const Axis& axis : tensor_axes(resolved, modes)) {
    axes.push_back(axis);
    size *= axis.size;
  }
  KUAFU_REQUIRE(size == p.tensor.size, "tensor mode ", in_quotes(mode.name), " arranges ",
                p.tensor.size, " ranks on axes of ", size, "; the mode must return axes whose ",
                "product is the size");
  std::set<std::string> names;
  for (const Axis& axis : axes) {
    KUAFU_REQUIRE(names.insert(axis.name).second, "tensor mode ", in_quotes(mode.name),
                  " names the axis ", in_quotes(axis.name), ", which the mesh already has; ",
                  "the mode must choose another name");
  }
  return axes;
}

AxisAliases mesh_aliases(const Plan& resolved, const TensorModes&) {
  if (resolved.parallel.expert == 1) return {};
  return {{"data", {"replica", "expert"}}};
}

}  // namespace kuafu
