// SPDX-License-Identifier: Apache-2.0
//
// Pipelines with one small wrong between their stages.

#include <ATen/ATen.h>

#include "tests/engine/mutants.h"
#include "tests/support/plans.h"

namespace kuafu::tests {
namespace {

using Fired = std::shared_ptr<std::atomic<int64_t>>;

class SpoilingStage : public StageWork {
 public:
  SpoilingStage(StageWork& inner, int stage, StageFault fault, Fired fired)
      : inner_(inner), is_here_(stage == fault.stage), fault_(fault), fired_(std::move(fired)) {}

  Tensors forward(int m, Tensors in) override {
    Tensors given = in;
    if (is_hit(StageFault::Action::kStaleInput, m)) given = last_input_;
    if (is_hit(StageFault::Action::kScaleInput, m)) scale(given);
    last_input_ = copy(in);
    return inner_.forward(sample(m), std::move(given));
  }
  Tensors backward(int m, Tensors grads) override {
    return sent(m, inner_.backward(sample(m), taken(m, std::move(grads))));
  }
  Tensors input_grad(int m, Tensors grads) override {
    return sent(m, inner_.input_grad(sample(m), taken(m, std::move(grads))));
  }
  void weight_grad(int m) override { inner_.weight_grad(sample(m)); }
  const FlowTensors& inputs() const override { return inner_.inputs(); }
  const FlowTensors& outputs() const override { return inner_.outputs(); }

 private:
  /// Once, in the first step.
  bool is_hit(StageFault::Action action, int m) {
    if (!is_here_ || action != fault_.action || m != fault_.micro_batch || is_done_) return false;
    is_done_ = true;
    ++*fired_;
    return true;
  }
  int sample(int m) {
    if (!is_here_ || fault_.action != StageFault::Action::kSwapSamples || m > 1) return m;
    ++*fired_;
    return 1 - m;
  }
  Tensors taken(int m, Tensors grads) {
    Tensors given = grads;
    if (is_hit(StageFault::Action::kStaleGrad, m)) given = last_grad_;
    if (is_hit(StageFault::Action::kScaleGrad, m)) scale(given);
    last_grad_ = copy(grads);
    return given;
  }
  Tensors sent(int m, Tensors grads) {
    if (is_hit(StageFault::Action::kScaleSent, m)) scale(grads);
    return grads;
  }
  void scale(Tensors& tensors) const {
    for (Tensor& t : tensors) t = t * fault_.factor;
  }
  static Tensors copy(const Tensors& tensors) {
    Tensors copies;
    for (const Tensor& t : tensors) copies.push_back(t.detach().clone());
    return copies;
  }

  StageWork& inner_;
  bool is_here_;
  StageFault fault_;
  Fired fired_;
  bool is_done_ = false;
  Tensors last_input_, last_grad_;
};

struct Named {
  const char* schedule;
  int ranks, chunks;
  int before;  ///< of two micro-batches in the middle, the one whose gradient comes first
};

const std::vector<Named>& schedules() {
  static const std::vector<Named> all = {{"gpipe", 3, 1, 2},
                                         {"1f1b", 3, 1, 1},
                                         {"interleaved", 2, 2, 1},
                                         {"zero_bubble", 3, 1, 1},
                                         {"zbv", 2, 2, 1}};
  return all;
}

/// SGD with a clip that bites, so that neither the scale nor the norm of gradients may be off.
Plan plan_of(const Named& n) {
  return small_plan({{"parallel.pipeline.size", text(n.ranks)},
                     {"parallel.pipeline.schedule", n.schedule},
                     {"parallel.pipeline.chunks", text(n.chunks)},
                     {"optimizer.kind", "sgd"},
                     {"optimizer.lr", "0.1"},
                     {"optimizer.clip", "0.1"},
                     {"model.sequence", "8"},
                     {"model.hidden", "16"},
                     {"train.micro_batch", "2"}});
}

class PipelineKit {
 public:
  explicit PipelineKit(const Named& schedule) : schedule_(schedule) {}

  template <class Fault>
  void add(const std::string& what, const Fault& fault) {
    mutants.push_back({.name = text(schedule_.schedule, ": ", what),
                       .plan = plan_of(schedule_),
                       .fired = std::make_shared<std::atomic<int64_t>>(0)});
    set_fault(mutants.back(), fault);
  }

  std::vector<Mutant> mutants;

 private:
  Named schedule_;
};

void add_messages(PipelineKit& kit) {
  using Wrong = CommFault::Action;
  for (const int rank : {0, 1}) {
    for (const int64_t at : {1, 4}) {
      kit.add(text("rank ", rank, " uses nothing for message ", at),
              CommFault{.action = Wrong::kDrop,
                        .axis = "pipeline",
                        .verb = Verb::kRecv,
                        .at = at,
                        .rank = rank});
    }
    kit.add(text("rank ", rank, " scales message 3 by 1.001"), CommFault{.action = Wrong::kScale,
                                                                         .axis = "pipeline",
                                                                         .verb = Verb::kRecv,
                                                                         .at = 3,
                                                                         .factor = 1.001,
                                                                         .rank = rank});
    kit.add(text("rank ", rank, " reuses the buffer of message 2 for message 3"),
            CommFault{.action = Wrong::kStale,
                      .axis = "pipeline",
                      .verb = Verb::kRecv,
                      .at = 3,
                      .rank = rank});
  }
  kit.add("the loss of the last stage stays there",
          CommFault{.action = Wrong::kDrop, .axis = "pipeline", .at = 1});
  kit.add("each stage clips by a norm of its own",
          CommFault{.action = Wrong::kDrop, .axis = "pipeline", .at = 2});
  kit.add("rank 1 clips by a norm of its own",
          CommFault{.action = Wrong::kDrop, .axis = "pipeline", .at = 2, .rank = 1});
}

void add_tied(PipelineKit& kit) {
  using Wrong = CommFault::Action;
  kit.add("the tied table's gradients are not summed",
          CommFault{.action = Wrong::kDrop, .axis = "pipeline", .at = 1, .depth = 1});
  kit.add("the last stage keeps its own gradient of the tied table",
          CommFault{.action = Wrong::kDrop, .axis = "pipeline", .at = 1, .rank = 1, .depth = 1});
  kit.add(
      "the tied table's gradients are averaged",
      CommFault{.action = Wrong::kScale, .axis = "pipeline", .at = 0, .factor = 0.5, .depth = 1});
}

void add_stages(PipelineKit& kit, const Named& n) {
  const int last = n.ranks * n.chunks - 1;
  for (const int stage : {1, last}) {
    kit.add(
        text("stage ", stage, " reuses the activations before"),
        StageFault{.action = StageFault::Action::kStaleInput, .stage = stage, .micro_batch = 1});
    kit.add(text("stage ", stage, " scales an activation"),
            StageFault{.action = StageFault::Action::kScaleInput, .stage = stage, .factor = 1.001});
    kit.add(text("stage ", stage, " loses the gradient it sends on"),
            StageFault{.action = StageFault::Action::kScaleSent, .stage = stage, .factor = 0});
  }
  for (const int stage : {0, last - 1}) {
    kit.add(text("stage ", stage, " reuses the gradient before"),
            StageFault{
                .action = StageFault::Action::kStaleGrad, .stage = stage, .micro_batch = n.before});
    kit.add(text("stage ", stage, " loses a gradient"),
            StageFault{.action = StageFault::Action::kScaleGrad, .stage = stage, .factor = 0});
  }
  kit.add("the first stage swaps two micro-batches",
          StageFault{.action = StageFault::Action::kSwapSamples, .stage = 0});
  kit.add("the last stage swaps two micro-batches",
          StageFault{.action = StageFault::Action::kSwapSamples, .stage = last});
  kit.add("a weight gradient is skipped",
          SchemeFault{.product = SchemeFault::Product::kWeightGrad, .at = 3, .factor = 0});
  kit.add("a weight gradient is that of the micro-batch before",
          SchemeFault{.product = SchemeFault::Product::kWeightGrad,
                      .action = SchemeFault::Action::kStale,
                      .at = 9});
}

}  // namespace

void set_fault(Mutant& m, const StageFault& fault) {
  m.options.wraps.stage = [fault, fired = m.fired](StageWork& inner, int stage) {
    return std::make_unique<SpoilingStage>(inner, stage, fault, fired);
  };
}

std::vector<Mutant> pipeline_mutants() {
  std::vector<Mutant> all;
  for (const Named& n : schedules()) {
    PipelineKit kit(n);
    add_messages(kit);
    // Where the first and the last stage share a rank, nothing is tied across ranks.
    if (std::string(n.schedule) != "zbv") add_tied(kit);
    add_stages(kit, n);
    all.insert(all.end(), kit.mutants.begin(), kit.mutants.end());
  }
  return all;
}

Mutant harmless_pipeline(const std::string& schedule) {
  constexpr int64_t kNever = int64_t{1} << 40;
  for (const Named& n : schedules()) {
    if (n.schedule != schedule) continue;
    PipelineKit kit(n);
    kit.add("changes nothing", CommFault{.axis = "pipeline", .verb = Verb::kRecv, .at = kNever});
    set_fault(kit.mutants[0], StageFault{.stage = -1});
    return kit.mutants[0];
  }
  throw ConfigError("no schedule " + schedule);
}

}  // namespace kuafu::tests
