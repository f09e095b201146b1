// SPDX-License-Identifier: Apache-2.0
//
// Motivation: what routing, all-to-all and combine cost beside the arithmetic they exist for.
// What is compared: a training step of a GPT whose every layer is a mixture, on thread ranks, and
//   the way of its tokens alone (router, slots, dispatch, combine; forward and backward, as many
//   times as there are layers), taking turns in one run. The share is the quotient of the medians.
// Last result: results/benchmarks/micro_experts-4ranks.json.
//
//   micro_experts [HIDDEN [ROUNDS [FILE]]]     prints one JSON document; FILE: where it is written as
//                                             well
//   The plan that is timed is certified on the same ranks, after everything that is timed.

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <optional>

#include "experiments/micro/proven.h"
#include "kuafu/comm/worlds.h"
#include "kuafu/engine/run.h"
#include "kuafu/meter/allocator.h"
#include "kuafu/parallel/expert/interface.h"
#include "kuafu/parallel/expert/routing.h"
#include "kuafu/record/files.h"
#include "kuafu/record/json_text.h"
#include "kuafu/record/provenance.h"

namespace kuafu {
namespace {

constexpr int kRanks = 4;
constexpr int64_t kWarmUp = 3;

Plan make_plan(int64_t hidden, int64_t rounds) {
  Plan plan;
  plan.model.kind = "moe_gpt";
  plan.model.layers = 4;
  plan.model.hidden = hidden;
  plan.model.heads = 8;
  plan.model.sequence = 128;
  plan.model.experts = 8;
  plan.model.router = "top2";
  plan.parallel.data.size = plan.parallel.expert = kRanks;
  plan.data.kind = "synthetic";
  plan.train.batch = 2 * kRanks;
  plan.train.steps = kWarmUp + rounds;
  return resolve(plan, kRanks, builtin_registries().tensor_modes());
}

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// The way of the tokens through one mixture, without the experts.
class Way {
 public:
  Way(const Plan& plan, const Mesh& mesh) : plan_(plan), experts_(make_all_to_all_experts(mesh)) {
    const ModelPlan& m = plan.model;
    x_ = at::arange(plan.train.micro_batch * m.sequence * m.hidden, at::kFloat).mul_(0.37).sin_();
    x_ = x_.view({plan.train.micro_batch, m.sequence, m.hidden}).requires_grad_();
    w_ = at::arange(m.hidden * m.experts, at::kFloat).mul_(0.11).sin_().mul_(0.02);
    w_ = w_.view({m.hidden, m.experts}).requires_grad_();
  }

  void there_and_back() {
    const ModelPlan& m = plan_.model;
    const int64_t capacity = expert_capacity(m);
    const Routed routed = route(
        at::matmul(x_, w_), {.top_k = choices_of_token(m), .capacity = capacity, .slots = capacity},
        {.balance = m.balance_loss, .z = m.z_loss});
    const Slots slots{.rows = routed.token, .num_rows = m.sequence};
    const Tensor rows = experts_->dispatch(x_, slots);
    const Tensor y = experts_->combine(rows, routed.gates, slots);
    (y.sum() + routed.loss).backward();
    x_.mutable_grad() = w_.mutable_grad() = Tensor();
  }

 private:
  const Plan plan_;
  std::unique_ptr<ExpertParallel> experts_;
  Tensor x_, w_;
};

/// Seconds of `body` from the moment all ranks begin to the moment the last ends.
template <class Body>
double timed(Communicator& world, const Body& body) {
  world.barrier();
  const double start = now();
  body();
  world.barrier();
  return now() - start;
}

void measure(const Plan& plan, int64_t rounds, const std::string& file) {
  require_recordable(file);
  const Json before = provenance();
  const Registries registries = builtin_registries();
  run_on_threads(kRanks, [&](Communicator& world) {
    const auto data = make_dataset(plan.data, plan.model, plan.train.seed, "");
    std::optional<Engine> engine;
    engine.emplace(plan, registries, world, *data, EngineOptions{});
    Way way(plan, engine->mesh());
    micro::ProvenSteps proven(plan);
    std::vector<double> steps, ways;
    for (int64_t round = -kWarmUp; round < rounds; ++round) {
      const double step =
          proven.step(*engine, [&](const auto& body) { return timed(world, body); });
      const double path = timed(world, [&] {
        for (int64_t l = 0; l < plan.model.layers; ++l) way.there_and_back();
      });
      if (round < 0) continue;
      steps.push_back(step);
      ways.push_back(path);
    }
    engine.reset();
    const Json proof = proven.certificate(registries, world);
    if (world.rank() != 0) return;
    const StepTime step = summarise(steps), path = summarise(ways);
    const auto ci95 = [](const StepTime& t) { return t.ci95 ? Json(*t.ci95) : Json(nullptr); };
    const Json document = {
        {"benchmark", "experts"},
        {"settings",
         {{"ranks", kRanks},
          {"experts", plan.model.experts},
          {"router", plan.model.router},
          {"layers", plan.model.layers},
          {"hidden", plan.model.hidden},
          {"sequence", plan.model.sequence},
          {"batch", plan.train.batch}}},
        {"step_s", {{"median", step.median}, {"ci95", ci95(step)}, {"samples", steps}}},
        {"dispatch_s", {{"median", path.median}, {"ci95", ci95(path)}, {"samples", ways}}},
        {"share", path.median / step.median},
        {"certificate", proof},
        {"provenance", before}};
    std::cout << document.dump(1) << std::endl;
    if (!file.empty()) replace_file(file, json_document(document));
  });
}

}  // namespace
}  // namespace kuafu

int main(int argc, char** argv) {
  kuafu::install_allocators();
  kuafu::initialise_tensors();
  const int64_t hidden = argc > 1 ? std::atoll(argv[1]) : 256;
  const int64_t rounds = argc > 2 ? std::atoll(argv[2]) : 30;
  try {
    kuafu::measure(kuafu::make_plan(hidden, rounds), rounds, argc > 3 ? argv[3] : "");
    return 0;
  } catch (const std::exception& e) {
    std::cerr << "micro_experts: " << e.what() << std::endl;
    return 1;
  }
}
