// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kuafu/record/json.h"

namespace kuafu {

/// Busy threads a core. Above 1 ranks share cores, and their times say how they would wait for each
/// other, not how they would scale.
double oversubscription(int64_t busy_threads, int64_t cores);

/// The smallest number of one-threaded ranks that share cores.
int64_t first_oversubscribed(int64_t cores);

/// The machine's load average over the last minute; none where the system does not tell.
std::optional<double> load_average();

/// What a core did since the machine started, in seconds.
struct CoreTime {
  double idle = 0;  ///< waiting for a disk included
  double all = 0;
};
/// Times of every core, by number, from the words of /proc/stat; empty where they say nothing.
std::map<int, CoreTime> core_times(std::string_view proc_stat);

/// What a process saw of its machine from one moment to another.
struct CpuWindow {
  std::string host;
  int64_t process = 0;
  double seconds = 0;
  double own_s = 0;            ///< CPU time of the process and of children that have ended
  std::vector<int> cores;      ///< that the process may use
  std::map<int, double> busy;  ///< seconds in which each core of the machine was not idle;
                               ///< empty: the system does not tell
};

/// Opens a window at its construction. Costs two looks at /proc; never throws.
class LoadMeter {
 public:
  LoadMeter();
  CpuWindow window() const;

 private:
  std::chrono::steady_clock::time_point began_;
  double own_s_;
  std::map<int, CoreTime> cores_;
};

/// Share of the cores' time that went to others than these processes, on the machine of the first:
/// what is sure of it, which is what /proc/stat shows less its tick a core. `windows`: one a rank;
/// ranks of one process count once. None where the first knows nothing of its machine.
std::optional<double> foreign_share(const std::vector<CpuWindow>& windows);

/// Above this share a row is said to be timed under foreign load. Where ranks use all cores, a step
/// is then 1 / 0.9 = 11 % slower: twice the smallest effect that a comparison looks for (5 %). Less
/// is in the scatter of rounds anyway.
inline constexpr double kForeignShare = 0.10;

/// The field `load` of a run that has not begun: null shares.
Json load_before(int64_t ranks, int64_t threads_per_rank);
/// Completes it with what the ranks saw while their timed steps ran. Cores and ranks are those of
/// the first rank's machine.
void add_windows(Json& load, const std::vector<CpuWindow>& windows);

Json to_json(const CpuWindow& window);
CpuWindow cpu_window_from(const Json& j);

}  // namespace kuafu
