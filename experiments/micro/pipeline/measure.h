// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "experiments/micro/pipeline/timed_stage.h"
#include "kuafu/parallel/pipeline/analysis.h"

namespace kuafu::micro {

/// One pipeline to be run on thread ranks.
struct PipelineCase {
  std::string schedule = "1f1b";
  pipeline::PipeShape shape{2, 8, 1};
  TimedWork work;          ///< of all chunks of a rank together, one micro-batch
  int64_t message = 4096;  ///< f32 elements that travel between stages
  int64_t rounds = 3;

  /// Of one stage: an even share of its rank's.
  TimedWork stage_work() const;
};

/// What a rank did in one round, by the executor's own timeline; seconds from the round's begin.
struct RankSpans {
  std::vector<pipeline::TimedAction> computed;
  std::vector<pipeline::TimedAction> messages;  ///< sends, and waits for what had not arrived
};

/// One run of a timetable by all ranks.
struct Round {
  std::vector<RankSpans> ranks;
  double length() const;  ///< from the first action's start to the last one's end
  /// Idle time of the busiest rank / its working time, as pipeline::Estimate has it.
  double bubble() const;
  /// Of each pair of neighbours in a row, the time between them that was no wait for a message.
  std::vector<double> gaps() const;
};

/// Runs a case on thread ranks: one round without work to warm up, then those that count. Every
/// element that travels is checked. Throws what an unknown schedule or an impossible shape throws.
std::vector<Round> measure(const PipelineCase& c);

/// The same timetable played, with free messages.
pipeline::Estimate played(const PipelineCase& c);

}  // namespace kuafu::micro
