// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kuafu/parallel/pipeline/timetable.h"

namespace kuafu::pipeline {

/// Durations in any one unit; `transfer` is the time a message takes from one rank to another.
struct OpCosts {
  double forward = 1, input_grad = 1, weight_grad = 1, transfer = 0;
  std::vector<double> stage_weight = {};  ///< factor of each stage; empty = 1

  double of(const Action& a) const;
};

/// When each action of a row starts and ends.
struct TimedAction {
  Action action;
  double start = 0, end = 0;
};

/// What a timetable costs when every rank works down its row and waits for what it needs.
struct Estimate {
  double length = 0;            ///< end of the last action
  std::vector<double> busy;     ///< working time of each rank
  std::vector<int> peak_alive;  ///< most stage inputs kept at once, by rank
  std::vector<std::vector<TimedAction>> spans;
  /// Idle time of the busiest rank / its working time: (p-1)/m for GPipe and 1F1B.
  double bubble() const;
};

/// Checks a schedule: every stage on one rank; each forward and its gradients exactly once for each
/// micro-batch; nothing waits in a circle; on no rank more than `max_alive` stage inputs alive
/// (0 = no limit). Throws ConfigError that prints the table with the culprit between > and <.
void validate(const Timetable& t, PipeShape s, int max_alive = 0);

/// Inserts the messages: a send behind the action that makes the data, a receive as early as the
/// rows allow without ever reordering two messages between the same two ranks. Stages on one rank
/// hand over without a message. @pre validate(t)
Timetable lower(const Timetable& t);

/// Plays a timetable (lowered or not) with the given costs. @pre validate(t)
Estimate estimate(const Timetable& t, const OpCosts& costs);

/// Gantt chart in characters: a row a rank, a column a unit of time (at most `columns`), the
/// micro-batch number in each action, '.' for idle.
std::string render_text(const Timetable& t, const OpCosts& costs, int columns = 120);
/// The same as an SVG picture with axis and legend.
std::string render_svg(const Timetable& t, const OpCosts& costs);

/// Layers a stage: contiguous, the largest stage's cost least (within one layer's cost of the
/// optimum by construction: it is the optimum). Throws Refused for fewer layers than stages.
std::vector<int> partition(const std::vector<double>& layer_costs, int stages);

}  // namespace kuafu::pipeline
