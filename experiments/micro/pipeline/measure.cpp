// SPDX-License-Identifier: Apache-2.0
#include "experiments/micro/pipeline/measure.h"

#include <sys/prctl.h>

#include <algorithm>
#include <limits>
#include <memory>

#include "kuafu/comm/worlds.h"
#include "kuafu/parallel/pipeline/choose.h"
#include "kuafu/parallel/pipeline/play.h"

namespace kuafu::micro {
namespace {

/// The spans of one rank's rounds; called from the rank's thread alone.
class Recording : public pipeline::ActionObserver {
 public:
  void begin(double start_s) {
    begin_ = start_s;
    rounds.emplace_back();
  }
  void note(int, const pipeline::Action& a, double start_s, double end_s) override {
    RankSpans& now = rounds.back();
    (pipeline::is_message(a.op) ? now.messages : now.computed)
        .push_back({a, start_s - begin_, end_s - begin_});
  }
  std::vector<RankSpans> rounds;

 private:
  double begin_ = 0;
};

/// The stages of one rank, each working so long.
using OwnStages = std::vector<std::unique_ptr<TimedStage>>;

PipelineRank pipeline_rank(const PipelineCase& c, const pipeline::Timetable& t,
                           const TimedWork& work, Communicator& world, OwnStages& mine) {
  const int stages = c.shape.stages();
  PipelineRank at{
      .pipeline = &world, .rank_of_stage = pipeline::ranks_of_stages(t, stages), .stages = {}};
  for (int s = 0; s < stages; ++s) {
    at.stages.push_back(nullptr);
    if (at.rank_of_stage[static_cast<size_t>(s)] != world.rank()) continue;
    mine.push_back(std::make_unique<TimedStage>(TimedStage::Place{s, stages}, work, c.message));
    at.stages.back() = mine.back().get();
  }
  return at;
}

/// One rank: its row once without work to warm up, then `rounds` times to be recorded.
void run_rank(const PipelineCase& c, const pipeline::Timetable& t, Communicator& world,
              Recording& recording, double* begin) {
  prctl(PR_SET_TIMERSLACK, 1UL);  // of this thread: sleeps end when they should, not 50 us later
  const pipeline::Row row = pipeline::lower(t)[static_cast<size_t>(world.rank())];
  OwnStages idle, mine;
  Executor(pipeline_rank(c, t, {}, world, idle)).run(row);
  Executor executor(pipeline_rank(c, t, c.stage_work(), world, mine));
  executor.observe(&recording);
  for (int64_t round = 0; round < c.rounds; ++round) {
    world.barrier();
    if (world.rank() == 0) *begin = seconds_now();
    world.barrier();
    recording.begin(*begin);
    executor.run(row);
  }
}

}  // namespace

TimedWork PipelineCase::stage_work() const {
  const double share = 1.0 / shape.chunks;
  return {work.forward_s * share, work.input_grad_s * share, work.weight_grad_s * share};
}

double Round::length() const {
  double begin = std::numeric_limits<double>::infinity(), end = 0;
  for (const RankSpans& rank : ranks) {
    begin = std::min(begin, rank.computed.front().start);
    end = std::max(end, rank.computed.back().end);
  }
  return end - begin;
}

double Round::bubble() const {
  double most = 0;
  for (const RankSpans& rank : ranks) {
    double busy = 0;
    for (const pipeline::TimedAction& s : rank.computed) busy += s.end - s.start;
    most = std::max(most, busy);
  }
  return length() / most - 1;
}

std::vector<double> Round::gaps() const {
  std::vector<double> all;
  for (const RankSpans& rank : ranks) {
    size_t m = 0;
    for (size_t i = 0; i + 1 < rank.computed.size(); ++i) {
      const double from = rank.computed[i].end, to = rank.computed[i + 1].start;
      double waited = 0;
      while (m < rank.messages.size() && rank.messages[m].start < from) ++m;
      for (; m < rank.messages.size() && rank.messages[m].start < to; ++m) {
        const pipeline::TimedAction& s = rank.messages[m];
        const bool is_wait =
            s.action.op == pipeline::Op::kRecvForward || s.action.op == pipeline::Op::kRecvBackward;
        if (is_wait) waited += s.end - s.start;
      }
      all.push_back(to - from - waited);
    }
  }
  return all;
}

std::vector<Round> measure(const PipelineCase& c) {
  const pipeline::Timetable t = pipeline::make_timetable(c.schedule, c.shape);
  std::vector<Recording> recordings(static_cast<size_t>(c.shape.ranks));
  double begin = 0;  // written by rank 0 between two barriers
  run_on_threads(c.shape.ranks, [&](Communicator& world) {
    run_rank(c, t, world, recordings[static_cast<size_t>(world.rank())], &begin);
  });
  std::vector<Round> rounds(static_cast<size_t>(c.rounds));
  for (Recording& recording : recordings) {
    for (size_t r = 0; r < rounds.size(); ++r) {
      rounds[r].ranks.push_back(std::move(recording.rounds[r]));
    }
  }
  return rounds;
}

pipeline::Estimate played(const PipelineCase& c) {
  const TimedWork work = c.stage_work();
  return pipeline::estimate(pipeline::make_timetable(c.schedule, c.shape),
                            {.forward = work.forward_s,
                             .input_grad = work.input_grad_s,
                             .weight_grad = work.weight_grad_s});
}

}  // namespace kuafu::micro
