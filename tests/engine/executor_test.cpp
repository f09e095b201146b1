// SPDX-License-Identifier: Apache-2.0
//
// The executor alone, with stages of plain arithmetic.

#include "kuafu/engine/stepping/executor.h"

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <chrono>
#include <cmath>
#include <map>
#include <memory>
#include <mutex>

#include "kuafu/parallel/pipeline/analysis.h"
#include "kuafu/parallel/pipeline/schedules.h"
#include "tests/support/random_schedule.h"
#include "tests/support/ranks.h"

namespace kuafu {
namespace {

using tests::Action;
using tests::Op;
using tests::PipeShape;
using tests::Timetable;

/// y = 2 x + stage + 10 micro_batch on a pair of tensors of different shapes; gradients triple.
class Arithmetic : public StageWork {
 public:
  Arithmetic(int stage, int stages)
      : stage_(stage),
        is_last_(stage + 1 == stages),
        in_(stage == 0 ? FlowTensors{} : flow()),
        out_(is_last_ ? FlowTensors{} : flow()) {}

  Tensors forward(int m, Tensors in) override {
    if (stage_ == 0) in = {at::full({2, 3}, m, at::kDouble), at::full({2000}, -m, at::kDouble)};
    for (Tensor& t : in) t = 2 * t + stage_ + 10 * m;
    if (!is_last_) return in;
    results[m] = in[0][1][2].item<double>() + in[1][1999].item<double>();
    return {};
  }
  Tensors backward(int m, Tensors grads) override {
    if (is_last_) grads = {at::full({2, 3}, m, at::kDouble), at::full({2000}, m, at::kDouble)};
    for (Tensor& t : grads) t = 3 * t;
    if (stage_ > 0) return grads;
    results[m] = grads[0][1][2].item<double>() + grads[1][0].item<double>();
    return {};
  }
  Tensors input_grad(int m, Tensors grads) override { return backward(m, std::move(grads)); }
  void weight_grad(int m) override { ++weight_grads[m]; }
  const FlowTensors& inputs() const override { return in_; }
  const FlowTensors& outputs() const override { return out_; }

  std::map<int, double> results;  // of forward on the last stage, of backward on the first
  std::map<int, int> weight_grads;

 private:
  static FlowTensors flow() { return {{{2, 3}, at::kDouble}, {{2000}, at::kDouble}}; }
  int stage_;
  bool is_last_;
  FlowTensors in_, out_;
};

double expected_forward(int stages, int m) {
  double a = m, b = -m;
  for (int s = 0; s < stages; ++s) {
    a = 2 * a + s + 10 * m;
    b = 2 * b + s + 10 * m;
  }
  return a + b;
}

void run_and_check(const Timetable& schedule) {
  const PipeShape shape = pipeline::shape_of(schedule);
  const std::vector<int> rank_of = pipeline::ranks_of_stages(schedule, shape.stages());
  const Timetable lowered = pipeline::lower(schedule);
  tests::run_ranks(shape.ranks, [&](Communicator& world) {
    std::vector<std::unique_ptr<Arithmetic>> mine;
    PipelineRank rank{.pipeline = &world, .rank_of_stage = rank_of, .stages = {}};
    for (int s = 0; s < shape.stages(); ++s) {
      const bool is_mine = rank_of[static_cast<size_t>(s)] == world.rank();
      if (is_mine) mine.push_back(std::make_unique<Arithmetic>(s, shape.stages()));
      rank.stages.push_back(is_mine ? mine.back().get() : nullptr);
    }
    Executor executor(std::move(rank));
    executor.run(lowered[static_cast<size_t>(world.rank())]);
    for (const auto& stage : mine) {
      const bool is_first = stage->inputs().empty(), is_last = stage->outputs().empty();
      for (const auto& [m, result] : stage->results) {
        double expected = expected_forward(shape.stages(), m);
        if (is_first) expected = 2 * m * std::pow(3.0, shape.stages());
        EXPECT_EQ(result, expected) << pipeline::to_csv(schedule);
      }
      if (is_first || is_last) {
        EXPECT_EQ(static_cast<int>(stage->results.size()), shape.micro_batches);
      }
    }
  });
}

TEST(Executor, HandsEveryMicroBatchOnUnderEverySchedule) {
  for (const int ranks : {2, 3, 5}) {
    for (const int m : {1, 2, 7}) {
      for (const Timetable& t :
           {pipeline::gpipe({ranks, m, 1}), pipeline::one_f_one_b({ranks, m, 1}),
            pipeline::interleaved({ranks, m, 2}), pipeline::interleaved({ranks, m, 3}),
            pipeline::zero_bubble_h1({ranks, m, 1}), pipeline::zbv({ranks, m, 2})}) {
        run_and_check(t);
      }
    }
  }
}

TEST(Executor, RunsRandomSchedulesToTheirEnd) {
  std::mt19937 random(3);
  for (int trial = 0; trial < 60; ++trial) {
    run_and_check(tests::random_schedule({2 + trial % 4, 1 + trial % 5, 1 + trial % 3}, random));
  }
}

class Notes : public pipeline::ActionObserver {
 public:
  struct Note {
    int rank;
    Action action;
    double start, end;
  };
  void note(int rank, const Action& action, double start, double end) override {
    const std::lock_guard lock(mutex_);
    notes.push_back({rank, action, start, end});
  }
  std::vector<Note> notes;

 private:
  std::mutex mutex_;
};

TEST(Executor, TellsATimelineOfEveryActionInOrder) {
  const Timetable t = pipeline::one_f_one_b({2, 3, 1});
  const Timetable lowered = pipeline::lower(t);
  Notes notes;
  tests::run_ranks(2, [&](Communicator& world) {
    Arithmetic mine(world.rank(), 2);
    PipelineRank rank{.pipeline = &world, .rank_of_stage = {0, 1}, .stages = {nullptr, nullptr}};
    rank.stages[static_cast<size_t>(world.rank())] = &mine;
    Executor executor(std::move(rank));
    executor.observe(&notes);
    executor.run(lowered[static_cast<size_t>(world.rank())]);
  });
  for (int rank = 0; rank < 2; ++rank) {
    pipeline::Row computed;
    double clock = 0;
    for (const Notes::Note& n : notes.notes) {
      if (n.rank != rank) continue;
      EXPECT_LE(n.start, n.end);
      EXPECT_GE(n.start, clock);
      clock = n.end;
      if (n.action.op == Op::kForward || n.action.op == Op::kBackward) computed.push_back(n.action);
    }
    EXPECT_EQ(computed, t[static_cast<size_t>(rank)]);
  }
}

/// Stages that compute nothing: what remains is the executor's own time.
TEST(Executor, TakesLessThanFiftyMicrosecondsAnAction) {
  class Nothing : public StageWork {
   public:
    Nothing(bool is_first, bool is_last)
        : in_(is_first ? FlowTensors{} : flow()), out_(is_last ? FlowTensors{} : flow()) {}
    Tensors forward(int, Tensors) override { return out_.empty() ? Tensors{} : Tensors{tensor_}; }
    Tensors backward(int, Tensors) override { return in_.empty() ? Tensors{} : Tensors{tensor_}; }
    Tensors input_grad(int m, Tensors grads) override { return backward(m, std::move(grads)); }
    void weight_grad(int) override {}
    const FlowTensors& inputs() const override { return in_; }
    const FlowTensors& outputs() const override { return out_; }

   private:
    static FlowTensors flow() { return {{{4, 8}, at::kFloat}}; }
    FlowTensors in_, out_;
    Tensor tensor_ = at::zeros({4, 8});
  };
  Nothing first(true, false), last(false, true);
  const auto alone = make_self();
  Executor executor({.pipeline = alone.get(), .rank_of_stage = {0, 0}, .stages = {&first, &last}});
  pipeline::Row row;
  for (int m = 0; m < 2000; ++m) {
    for (const Action& a : {Action{Op::kForward, 0, m},
                            {Op::kForward, 1, m},
                            {Op::kBackward, 1, m},
                            {Op::kBackward, 0, m}}) {
      row.push_back(a);
    }
  }
  double best = 1;
  for (int round = 0; round < 5; ++round) {
    const auto start = std::chrono::steady_clock::now();
    executor.run(row);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    best = std::min(best, took.count() / static_cast<double>(row.size()));
  }
  RecordProperty("microseconds_an_action", text(best * 1e6));
  EXPECT_LT(best, 50e-6);
}

}  // namespace
}  // namespace kuafu
