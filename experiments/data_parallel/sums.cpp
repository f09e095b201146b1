// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <deque>

#include "experiments/data_parallel/data_parallel.h"
#include "kuafu/comm/simulated.h"
#include "kuafu/comm/worlds.h"
#include "kuafu/engine/run.h"
#include "kuafu/parallel/reduce/reduce.h"
#include "kuafu/simulate/replay.h"

namespace kuafu::experiment {
namespace {

/// One f32 parameter that replicas keep in agreement, and its gradient.
class Subject {
 public:
  Subject(const Way& way, int64_t bytes, int64_t ranks_per_node, const Mesh& mesh,
          at::Device device)
      : mesh_(mesh) {
    const ParamFactory params{.mesh = &mesh, .device = device, .dtype = DType::kF32};
    const int64_t elements = bytes / 4;
    param_ = params.make("w", {elements}, {{{}}}, {}, {Init::Kind::kZeros});
    gradient_ = at::arange(elements, param_.value.options().requires_grad(false)).remainder_(1021);
    Plan plan;
    plan.parallel.data.mode = way.mode;
    plan.parallel.data.servers = way.servers;
    plan.parallel.data.bucket = bytes;
    plan.parallel.data.overlap = false;
    plan.cluster.ranks_per_node = ranks_per_node;
    store_ = make_store(plan, mesh, params);
    store_->attach({{"block", {&param_}}});
  }

  /// All that replicas do with a step's gradients but compute and apply them.
  void agree() {
    param_.value.mutable_grad() = gradient_.clone();
    store_->ready(0, true);
    const std::vector<ParamShard> shards = store_->finish();
    store_->publish();
    param_.value.mutable_grad() = Tensor();
  }

  /// Throws where the sum is not that of all replicas. Nothing is timed that is not checked.
  void check() {
    param_.value.mutable_grad() = gradient_.clone();
    store_->ready(0, true);
    std::vector<ParamShard> shards = store_->finish();
    const at::NoGradGuard no_grad;
    const double n = static_cast<double>(mesh_.size("data"));
    const Tensor whole = store_->gradient(param_);
    KUAFU_CHECK(at::equal(whole, gradient_ * n), "the sum of the gradients is wrong");
    for (ParamShard& shard : shards) shard.value.copy_(shard.grad);
    store_->publish();
    KUAFU_CHECK(at::equal(param_.value, gradient_ * n), "replicas have not got the new values");
    param_.value.mutable_grad() = Tensor();
  }

 private:
  const Mesh& mesh_;
  Param param_;
  Tensor gradient_;
  std::unique_ptr<Store> store_;
};

/// Traffic by label: a list a rank of [sent, received, messages].
void add_traffic(Json& row, const Ledger& ledger) {
  for (const auto& [label, e] : ledger.axes()) {
    row["traffic"][label].push_back({e.bytes_sent, e.bytes_received, e.messages});
  }
}

Json head(const SumsOptions& options, const std::string& way, int64_t bytes) {
  return {{"world", options.world},
          {"ranks", options.ranks},
          {"ranks_per_node", options.ranks_per_node},
          {"way", way},
          {"bytes", bytes},
          {"traffic", Json::object()}};
}

Json simulate_one(const SumsOptions& options, const std::string& way, int64_t bytes) {
  Json row = head(options, way, bytes);
  SimulatedWorld world(options.ranks);
  std::vector<Trace> traces;
  for (int r = 0; r < options.ranks; ++r) {
    TraceRecorder recorder(TraceRecorder::Clock::kNone, TraceRecorder::Keeps::kWork);
    const TraceScope traced(&recorder);
    const auto me = world.communicator(r);
    Ledger ledger;
    Mesh mesh({{"data", options.ranks}}, r);
    mesh.connect(*me, &ledger);
    Subject(parse_way(way), bytes, options.ranks_per_node, mesh, at::kMeta).agree();
    add_traffic(row, ledger);
    traces.push_back(recorder.take());
  }
  ClusterPlan cluster;
  cluster.ranks_per_node = options.ranks_per_node;
  row["seconds"] = {replay(traces, cluster).makespan_seconds()};
  return row;
}

/// All ways on one size, in turns.
void run_on_one_size(const SumsOptions& options, Communicator& world, int64_t bytes, Json& rows) {
  std::vector<Ledger> ledgers(options.ways.size());
  std::vector<std::unique_ptr<Mesh>> meshes;
  std::deque<Subject> subjects;  // which do not move: their parameters are attached
  for (size_t i = 0; i < options.ways.size(); ++i) {
    auto& mesh = meshes.emplace_back(
        std::make_unique<Mesh>(std::vector<Axis>{{"data", options.ranks}}, world.rank()));
    mesh->connect(world, &ledgers[i]);
    subjects.emplace_back(parse_way(options.ways[i]), bytes, options.ranks_per_node, *mesh,
                          at::kCPU);
    subjects.back().check();
    ledgers[i].clear();
    subjects.back().agree();
    ledgers[i].set_counting(false);
  }
  std::vector<std::vector<double>> seconds(options.ways.size());
  for (int64_t round = -(options.rounds + 9) / 10; round < options.rounds; ++round) {
    for (size_t i = 0; i < subjects.size(); ++i) {
      const double t = timed(world, [&] { subjects[i].agree(); });
      if (round >= 0) seconds[i].push_back(t);
    }
  }
  for (size_t i = 0; i < options.ways.size(); ++i) {
    // Ranks write one after the other.
    for (int r = 0; r < options.ranks; ++r) {
      if (world.rank() == r) {
        if (r == 0) {
          rows.push_back(head(options, options.ways[i], bytes));
          rows.back()["seconds"] = seconds[i];
        }
        add_traffic(rows.back(), ledgers[i]);
      }
      world.barrier();
    }
  }
}

}  // namespace

Way parse_way(const std::string& words) {
  Way way{words.substr(0, words.find(':')), 1, 0};
  std::vector<int64_t> numbers;
  for (size_t at = words.find(':'); at != std::string::npos; at = words.find(':', at + 1)) {
    numbers.push_back(std::stoll(words.substr(at + 1)));
  }
  if (!numbers.empty()) way.servers = numbers[0];
  if (numbers.size() > 1) way.staleness = numbers[1];
  return way;
}

Json measure_sums(const SumsOptions& options) {
  Json rows = Json::array();
  if (options.world == "simulated") {
    for (const std::string& way : options.ways) {
      for (const int64_t bytes : options.bytes) rows.push_back(simulate_one(options, way, bytes));
    }
    return rows;
  }
  run_on_threads(options.ranks, [&](Communicator& world) {
    for (const int64_t bytes : options.bytes) run_on_one_size(options, world, bytes, rows);
  });
  return rows;
}

}  // namespace kuafu::experiment
