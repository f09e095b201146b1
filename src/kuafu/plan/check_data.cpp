// SPDX-License-Identifier: Apache-2.0
//
// How replicas agree, against what else the plan asks of them.

#include <algorithm>
#include <vector>

#include "kuafu/base/suggest.h"
#include "kuafu/plan/check.h"

namespace kuafu::plan {
namespace {

/// The replicas of one parameter: `count` of them, `stride` ranks apart, in `copies` groups that
/// follow each other.
struct Replicas {
  int64_t count, stride, copies;
};

/// Those of ordinary parameters, and of experts where ranks share them.
std::vector<Replicas> replicas(const Plan& plan, int64_t data) {
  const ParallelPlan& p = plan.parallel;
  const int64_t inner = saturating_product({p.sequence.size, p.tensor.size});
  std::vector<Replicas> all = {{data, inner, p.pipeline.size}};
  if (p.expert > 1) all.push_back({data / p.expert, inner * p.expert, p.pipeline.size});
  return all;
}

/// True where every node that holds replicas of a group holds as many as the others.
bool is_even(const Replicas& r, int64_t ranks_per_node) {
  for (int64_t group = 0; group < r.copies * r.stride; ++group) {
    const int64_t first = group / r.stride * r.count * r.stride + group % r.stride;
    int64_t expected = 0, here = 0;
    for (int64_t i = 0; i < r.count; ++i) {
      const int64_t rank = first + i * r.stride;
      ++here;
      const bool is_last = i + 1 == r.count;
      if (!is_last && (rank + r.stride) / ranks_per_node == rank / ranks_per_node) continue;
      if (expected == 0) expected = here;
      if (here != expected) return false;
      here = 0;
    }
  }
  return true;
}

bool is_even(const Plan& plan, int64_t data, int64_t ranks_per_node) {
  if (data % plan.parallel.expert != 0) return false;
  const std::vector<Replicas> all = replicas(plan, data);
  return std::all_of(all.begin(), all.end(),
                     [&](const Replicas& r) { return is_even(r, ranks_per_node); });
}

/// The values nearest to `x` that `fits` accepts, at most two.
template <class Fits>
std::vector<int64_t> nearest_that(int64_t x, const Fits& fits) {
  std::vector<int64_t> found;
  for (int64_t far = 1; far <= x + 1 && found.size() < 2; ++far) {
    for (const int64_t value : {x - far, x + far}) {
      if (value > 0 && found.size() < 2 && fits(value)) found.push_back(value);
    }
  }
  return found;
}

/// Workers that go on by themselves meet nobody but the servers.
void check_staleness(const Plan& plan, const Origins& origins) {
  const ParallelPlan& p = plan.parallel;
  const std::string stale = text("parallel.data.staleness = ", p.data.staleness);
  const auto refuse = [&](const std::vector<std::string>& keys, const std::string& given,
                          const std::string& why, const std::string& nearest) {
    throw Refused(text(origins.of(keys), given, " with ", stale, ": ", why, "; nearest: ", nearest,
                       ", or staleness = 0"));
  };
  const int64_t ranks = saturating_product({p.tensor.size, p.sequence.size, p.pipeline.size});
  if (ranks > 1) {
    refuse({"parallel.tensor.size", "parallel.sequence.size", "parallel.pipeline.size"},
           text("replicas of ", ranks, " ranks"),
           "shards of one replica would be updated in different orders",
           "tensor, sequence and pipeline of size 1");
  }
  if (plan.optimizer.clip != 0) {
    refuse({"optimizer.clip", "parallel.data.staleness"},
           text("optimizer.clip = ", plan.optimizer.clip),
           "the global norm needs every worker's gradient at once, and each is applied alone",
           "clip = 0");
  }
  if (plan.model.has_mixtures()) {
    refuse({"model.kind", "parallel.data.staleness"},
           text("model.kind = ", in_quotes(plan.model.kind)),
           "a certificate that replays an order of pushes takes no routes over", "kind = \"gpt\"");
  }
  if (plan.has_loss_scale()) {
    refuse({"train.loss_scale", "model.dtype", "parallel.data.staleness"},
           plan.train.loss_scale == TrainPlan::kAutoScale ? "model.dtype = \"f16\""
                                                          : "train.loss_scale",
           "an overflow is agreed on by all ranks at once, and each worker goes on by itself",
           "loss_scale = 1");
  }
  if (plan.train.validate_every != 0) {
    refuse({"train.validate_every", "parallel.data.staleness"},
           text("train.validate_every = ", plan.train.validate_every),
           "workers are in different steps, and would have to wait for each other",
           "validate_every = 0 (after the last step)");
  }
  if (plan.train.telemetry) {
    refuse({"train.telemetry", "parallel.data.staleness"}, "train.telemetry = true",
           "workers are in different steps, and the servers hold parts of layers in different "
           "versions",
           "telemetry = false");
  }
}

void refuse_beside(const Plan& plan, const Origins& origins, const std::string& key,
                   const std::string& given, const std::string& why, const std::string& nearest) {
  throw Refused(text(origins.of({key, "parallel.data.mode"}), key, " = ", given,
                     " with parallel.data.mode = ", in_quotes(plan.parallel.data.mode), ": ", why,
                     "; nearest: ", nearest));
}

}  // namespace

std::optional<std::string> replica_misfit(const Plan& plan, const RanksGiven& given) {
  const DataParallelPlan& data = plan.parallel.data;
  if (data.has_servers() && data.servers > data.size) {
    return text("parallel.data.servers = ", data.servers, " of parallel.data = ", data.size,
                " replicas", given.origin(), " cannot serve; nearest: servers = ", data.size,
                ", or ", given.advice({data.servers}));
  }
  const int64_t per_node = plan.cluster.ranks_per_node;
  if (data.mode != "hierarchical" || is_even(plan, data.size, per_node)) return {};
  return text(
      "parallel.data.mode = \"hierarchical\" needs as many replicas on every node, but ",
      "nodes of cluster.ranks_per_node = ", per_node,
      " ranks hold unequal numbers of parallel.data = ", data.size, " replicas", given.origin(),
      " of ", plan.parallel.sequence.size * plan.parallel.tensor.size, " ranks",
      plan.parallel.expert > 1 ? ", or of those that hold the same experts" : "",
      "; nearest: ranks_per_node = ",
      either(nearest_that(per_node, [&](int64_t n) { return is_even(plan, data.size, n); })),
      ", or ",
      given.advice(nearest_that(data.size, [&](int64_t n) { return is_even(plan, n, per_node); })));
}

void check_served_rule(const Plan& plan, const OptimizerKind& kind,
                       const std::vector<OptimizerKind>& kinds, const Origins& origins) {
  if (!kind.is_by_layers || !plan.parallel.data.is_stale()) return;
  std::vector<std::string> others;
  for (const OptimizerKind& other : kinds) {
    if (!other.is_by_layers) others.push_back(in_quotes(other.name));
  }
  throw Refused(text(origins.of({"optimizer.kind", "parallel.data.staleness"}),
                     "optimizer.kind = ", in_quotes(kind.name),
                     " with parallel.data.staleness = ", plan.parallel.data.staleness,
                     ": a step follows from the norm of a layer or all of it, whose parts are on "
                     "all servers, and each server updates its own by itself; nearest: kind = ",
                     join_or(others), ", or staleness = 0"));
}

void check_data(const Plan& plan, const Origins& origins) {
  const ParallelPlan& p = plan.parallel;
  const bool has_servers = p.data.has_servers();
  if (p.data.mode == "auto") return;
  if (p.zero != 0) {
    refuse_beside(plan, origins, "parallel.zero", text(p.zero),
                  has_servers ? "servers already shard the optimizer state"
                              : "ZeRO sums by reduce-scatter, not by this algorithm",
                  "zero = 0, or mode = \"auto\"");
  }
  if (p.data.order == "fixed") {
    refuse_beside(plan, origins, "parallel.data.order", in_quotes(p.data.order),
                  "the algorithm decides the order of its sums",
                  "order = \"any\", or mode = \"auto\"");
  }
  if (p.data.is_stale()) check_staleness(plan, origins);
  if (has_servers && p.expert > 1) {
    refuse_beside(plan, origins, "parallel.expert.size", text(p.expert),
                  "experts that ranks share are no replicas, so no server could hold them",
                  "expert.size = 1, or mode = \"auto\"");
  }
}

}  // namespace kuafu::plan
