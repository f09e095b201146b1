// SPDX-License-Identifier: Apache-2.0
#include "kuafu/record/load.h"

#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>

namespace kuafu {
namespace {

constexpr double kTickS = 0.01;  ///< of /proc/stat: 1 / USER_HZ, 100 in every Linux ABI

double cpu_seconds(int who) {
  rusage usage{};
  if (::getrusage(who, &usage) != 0) return 0;
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

double own_cpu_seconds() { return cpu_seconds(RUSAGE_SELF) + cpu_seconds(RUSAGE_CHILDREN); }

std::map<int, CoreTime> core_times_now() {
  std::ifstream file("/proc/stat");
  std::ostringstream words;
  words << file.rdbuf();
  return core_times(words.str());
}

/// Of the whole process: a rank's thread may be placed on one core for a moment.
std::vector<int> usable_cores() {
  cpu_set_t allowed;
  std::vector<int> cores;
  if (::sched_getaffinity(::getpid(), sizeof allowed, &allowed) != 0) return cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &allowed)) cores.push_back(core);
  }
  return cores;
}

int64_t num_usable_cores() {
  const auto found = static_cast<int64_t>(usable_cores().size());
  return found > 0 ? found : std::max<int64_t>(1, ::sysconf(_SC_NPROCESSORS_ONLN));
}

std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "";
}

/// What the machine of the first window gave to all of them.
struct Share {
  std::set<int> cores;
  int64_t ranks = 0;
  double own_s = 0;
};

Share share_of(const std::vector<CpuWindow>& windows) {
  Share share;
  std::set<int64_t> counted;
  for (const CpuWindow& w : windows) {
    if (w.host != windows.front().host) continue;
    ++share.ranks;
    share.cores.insert(w.cores.begin(), w.cores.end());
    if (counted.insert(w.process).second) share.own_s += w.own_s;
  }
  return share;
}

}  // namespace

double oversubscription(int64_t busy_threads, int64_t cores) {
  return static_cast<double>(busy_threads) / static_cast<double>(std::max<int64_t>(cores, 1));
}

int64_t first_oversubscribed(int64_t cores) {
  int64_t ranks = 1;
  while (oversubscription(ranks, cores) <= 1) ++ranks;
  return ranks;
}

std::optional<double> load_average() {
  double average = 0;
  if (::getloadavg(&average, 1) != 1) return std::nullopt;
  return average;
}

std::map<int, CoreTime> core_times(std::string_view proc_stat) {
  std::map<int, CoreTime> times;
  std::istringstream lines{std::string(proc_stat)};
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string name;
    words >> name;
    int core = 0;
    const char* end = name.data() + name.size();
    if (name.rfind("cpu", 0) != 0 || name.size() == 3) continue;  // all cores together
    if (const auto [at, error] = std::from_chars(name.data() + 3, end, core);
        at != end || error != std::errc()) {
      continue;
    }
    // user nice system idle iowait irq softirq steal; guest times are in user and nice already
    CoreTime time;
    double ticks = 0;
    for (int field = 0; field < 8 && words >> ticks; ++field) {
      time.all += ticks * kTickS;
      if (field == 3 || field == 4) time.idle += ticks * kTickS;
    }
    times[core] = time;
  }
  return times;
}

LoadMeter::LoadMeter()
    : began_(std::chrono::steady_clock::now()),
      own_s_(own_cpu_seconds()),
      cores_(core_times_now()) {}

CpuWindow LoadMeter::window() const {
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - began_;
  CpuWindow w{host_name(),    ::getpid(), seconds.count(), own_cpu_seconds() - own_s_,
              usable_cores(), {}};
  double counted = 0;
  for (const auto& [core, now] : core_times_now()) {
    const auto before = cores_.find(core);
    if (before == cores_.end()) continue;
    counted += now.all - before->second.all;
    // The clock is finer than ticks: a core was busy for as long as it was not idle.
    const double idle = now.idle - before->second.idle;
    w.busy[core] = std::clamp(w.seconds - idle, 0.0, w.seconds);
  }
  // Some containers show a file that never changes.
  if (counted == 0 && w.seconds > 2 * kTickS) w.busy.clear();
  return w;
}

std::optional<double> foreign_share(const std::vector<CpuWindow>& windows) {
  if (windows.empty() || windows.front().seconds <= 0) return std::nullopt;
  const CpuWindow& first = windows.front();
  const Share share = share_of(windows);
  double busy = 0;
  for (const int core : share.cores) {
    const auto found = first.busy.find(core);
    if (found == first.busy.end()) return std::nullopt;
    busy += std::max(0.0, found->second - kTickS);
  }
  if (share.cores.empty()) return std::nullopt;
  const double all = first.seconds * static_cast<double>(share.cores.size());
  return std::clamp((busy - share.own_s) / all, 0.0, 1.0);
}

Json load_before(int64_t ranks, int64_t threads_per_rank) {
  const std::optional<double> average = load_average();
  const int64_t cores = num_usable_cores();
  return {{"average", average ? Json(*average) : Json(nullptr)},
          {"foreign_share", nullptr},
          {"window_s", nullptr},
          {"cores", cores},
          {"threads_per_rank", threads_per_rank},
          {"threads", ranks * threads_per_rank},
          {"oversubscription", oversubscription(ranks * threads_per_rank, cores)}};
}

void add_windows(Json& load, const std::vector<CpuWindow>& windows) {
  if (windows.empty() || !load.is_object()) return;
  const Share share = share_of(windows);
  if (!share.cores.empty()) load["cores"] = share.cores.size();
  const int64_t threads = share.ranks * load["threads_per_rank"].get<int64_t>();
  load["threads"] = threads;
  load["oversubscription"] = oversubscription(threads, load["cores"].get<int64_t>());
  load["window_s"] = windows.front().seconds;
  const std::optional<double> foreign = foreign_share(windows);
  load["foreign_share"] = foreign ? Json(*foreign) : Json(nullptr);
}

Json to_json(const CpuWindow& w) {
  Json busy = Json::array();
  for (const auto& [core, seconds] : w.busy) busy.push_back({core, seconds});
  return {{"host", w.host},   {"process", w.process}, {"seconds", w.seconds},
          {"own_s", w.own_s}, {"cores", w.cores},     {"busy", busy}};
}

CpuWindow cpu_window_from(const Json& j) {
  CpuWindow w{j.at("host"),
              j.at("process"),
              j.at("seconds"),
              j.at("own_s"),
              j.at("cores").get<std::vector<int>>(),
              {}};
  for (const Json& core : j.at("busy")) w.busy[core.at(0).get<int>()] = core.at(1);
  return w;
}

}  // namespace kuafu
