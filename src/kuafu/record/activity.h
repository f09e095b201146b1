// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "kuafu/base/trace.h"

namespace kuafu {

/// What one rank did for a while.
struct Activity {
  enum class Kind : uint8_t {
    kCompute,
    kCommunication,  ///< inside a call, or waiting for one under way
    kIdle,           ///< waiting for what another rank has not begun to send, or for nothing
    kCopy,           ///< between tiers of memory
  };
  /// Who: the rank, or a queue that copies beside it.
  enum class Row : uint8_t { kRank, kToDevice, kToHost, kFromDisk, kToDisk };
  int rank = 0;
  Kind kind = Kind::kCompute;
  std::string what;   ///< "forward", "all_reduce", ...: one colour and one line of the legend
  std::string label;  ///< "2F0": this one
  double start_s = 0, end_s = 0;
  Row row = Row::kRank;
  bool operator==(const Activity&) const = default;
};

/// What all ranks of a run did in one step, from its begin at 0.
struct ActivityLog {
  std::string name;
  double length_s = 0;
  std::vector<Activity> activities;
};

/// "compute", "communication", "idle", "copy".
std::string to_string(Activity::Kind kind);

/// "rank 3", "rank 3 to device".
std::string row_name(int rank, Activity::Row row);
/// Of what carries an event out.
Activity::Row row_of(TraceQueue queue);
/// "to device", "from disk"; empty of the rank itself.
std::string queue_name(Activity::Row row);

/// Those of a log, a rank's own before those of its queues.
std::vector<std::pair<int, Activity::Row>> rows_of(const ActivityLog& log);

/// Sorts by row and start, and fills what no activity covers with idle time, so that the row of
/// every rank reaches from 0 to length_s; not those of its queues.
void complete(ActivityLog& log, int ranks);

/// What is wrong with a log, a sentence each: activities of one row that overlap, that end before
/// they start, that lie outside 0 and length_s. Clocks and additions may err by `slack_s`.
std::vector<std::string> problems(const ActivityLog& log, double slack_s = 0);

/// The logs as one Chrome trace (JSON object format): a process a log, a thread a row, complete
/// events with ts and dur in microseconds, the kind as category.
std::string chrome_trace(const std::vector<ActivityLog>& logs);

/// One log as a picture: a row a rank and a queue that copied, an axis with its unit, a legend with the share of time.
std::string activity_svg(const ActivityLog& log);

/// Throws ConfigError unless `path` ends in .json or .svg.
void check_activity_path(const std::string& path);

/// Writes the trace or the picture, by the end of `path`. Throws ConfigError.
void write_activities(const ActivityLog& log, const std::string& path);

}  // namespace kuafu
