// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "app/worker/mpi_ranks.h"
#include "kuafu/base/philox.h"
#include "kuafu/engine/registries.h"
#include "kuafu/plan/keys.h"
#include "kuafu/plan/plan.h"
#include "kuafu/record/json.h"

// Random plans over all keys, each run as small as it goes: none may end otherwise than a plan may.
namespace kuafu::fuzz {

/// How a plan ended. The first four are what may happen, and to a plug-in's model the fifth.
enum class PlanEnding : uint8_t {
  kEqual,        ///< certified, and metered as simulated
  kRefused,      ///< before anything ran, by a message that names a key
  kOutOfMemory,  ///< of memory.device
  kDiverged,  ///< a loss that is no number, or numbers that rounding decides: the cause says which
  kNoOracle,  ///< a plug-in's model without an oracle on one rank: there is nothing to compare
  kUnexplained,  ///< the certificate was not run for another reason
  kDifferent,    ///< the certificate says so
  kMetered,      ///< traffic, FLOPs or peaks are not the simulated ones
  kError,        ///< any other exception
  kCrash,        ///< a signal or an exit of a process
  kHang,         ///< no end within the time limit
};
inline constexpr int kNumEndings = 11;
std::string to_string(PlanEnding ending);
/// Throws ConfigError for a word that names none.
PlanEnding ending_of(const std::string& word);
/// True for what is to be mended.
bool is_finding(PlanEnding ending);

struct PlanOutcome {
  PlanEnding ending = PlanEnding::kCrash;
  std::string why;    ///< message, what differs, the end of what was printed
  std::string cause;  ///< class of a reason: the key of a refusal, the name of a divergence, kBlind
  int64_t ranks = 0;
};

/// Equal, with something that the certificate could not see: `why` says what.
inline constexpr const char* kBlind = "blind to a part of the plan";
/// The name of a divergence that ended a run.
inline constexpr const char* kNoNumber = "a loss that is no number";
/// How a plan ended whose certificate is `not_run` for this reason; a divergence has a cause: that
/// rounding alone decides its numbers, or that all steps overflow.
PlanOutcome outcome_of_not_run(const std::string& reason);

/// Real ranks that a plan can run on; each is compared with the simulated world for its transport.
enum class RealWorld : uint8_t { kThreads, kMpi, kMpiNative };
/// "threads", "mpi", "mpi-native"
std::string to_string(RealWorld world);
RealWorld world_of(const std::string& word);
/// Those of this build, by name.
std::vector<std::string> world_names();

/// Numbers of one plan, one after the other: the same for a seed and an index everywhere.
class Draw {
 public:
  Draw(uint64_t seed, uint64_t index) : random_(seed, index + 1) {}
  /// 0 to n - 1.
  int64_t below(int64_t n) { return static_cast<int64_t>(random_.bits(next_++) % uint64_t(n)); }
  bool once_in(int64_t n) { return below(n) == 0; }
  /// log-uniform between two positive numbers.
  double between(double low, double high);
  template <class T>
  const T& one_of(const std::vector<T>& all) {
    return all[static_cast<size_t>(below(static_cast<int64_t>(all.size())))];
  }

 private:
  CounterRandom random_;
  uint64_t next_ = 0;
};

/// A value of a key as --set takes it: of its form, range and choices, small where it is a size;
/// names come from the registries. A key that is new in the table is drawn by its form alone.
std::string draw_value(const plan::Key& key, const Registries& registries, Draw& draw);

/// Settings of a plan: some keys of the table, each with a value, and now and then layers of other
/// modes. Few plans are drawn that cannot be placed, none of more than `most_ranks`. What placing
/// one throws beside a refusal comes out again where it runs.
Overrides draw_plan(const Registries& registries, int64_t most_ranks, Draw& draw);

/// The plan of settings, resolved and placed. Throws what refuses it, and PluginError for what one
/// of `plugins` throws that is no exception.
Plan placed(const Overrides& settings, const Registries& registries,
            const std::vector<std::string>& plugins = {});

/// The world of a plan of a campaign.
RealWorld draw_world(const std::vector<RealWorld>& worlds, uint64_t seed, uint64_t index);

/// Runs plans, each in a process forked for it, so that a crash or a hang is an outcome: certified
/// and metered on real ranks, simulated, and both compared. MPI ranks are processes of their own,
/// started once and used by one plan after the other; what ends wrong there runs again on ranks
/// that are new.
class Trier {
 public:
  struct Options {
    int64_t most_ranks = 8;
    double timeout_s = 60;  ///< of one plan
    std::vector<std::string> plugins = {};
  };
  Trier(const Registries& registries, Options options);

  PlanOutcome run(const Overrides& settings, RealWorld world);

 private:
  PlanOutcome run_apart(const Overrides& settings, RealWorld world, const MpiRanks* ranks) const;
  PlanOutcome run_by_mpi(const Overrides& settings, RealWorld world);

  const Registries& registries_;
  const Options options_;
  MpiRanks own_, native_;
};

/// Fewer and smaller settings with the same ending: keys are dropped one by one and numbers halved
/// as long as `ending_of` says the same, at most `trials` times.
Overrides minimise(Overrides settings, PlanEnding wanted, int64_t trials,
                   const std::function<PlanEnding(const Overrides&)>& try_plan);

/// `kuafu run ...` with these settings on so many ranks, to paste into a shell; `kuafu fuzz ...` for
/// what `run` does not compare.
std::string command_of(const Overrides& settings, RealWorld world, PlanEnding ending, int64_t ranks,
                       const std::vector<std::string>& plugins = {});

/// A campaign as it is kept: plans of one seed, in the order of their numbers, and which program
/// ran them from which number on.
class Record {
 public:
  /// Goes on where `folder` holds one of the same seed, ranks and worlds; refuses others.
  /// No folder: nothing is kept.
  Record(std::string folder, uint64_t seed, int64_t most_ranks, std::vector<RealWorld> worlds);

  /// How many there are, and with them the number of the next.
  int64_t num_plans() const { return static_cast<int64_t>(endings_.size()); }
  int64_t num_findings() const { return static_cast<int64_t>(findings_.size()); }
  /// `finding`: what there is to say about one; null elsewhere.
  void add(RealWorld world, const PlanOutcome& outcome, const Json& finding);
  /// Writes result.json and README.md.
  void write() const;
  /// "9 plans: 8 equal, 1 refused"
  std::string describe() const;

 private:
  void go_on(const Json& kept);
  void begin_block();
  Json to_json() const;
  std::string page() const;
  int64_t count(RealWorld world, PlanEnding ending) const;

  const std::string folder_;
  const uint64_t seed_;
  const int64_t most_ranks_;
  const std::vector<RealWorld> worlds_;
  std::string endings_, in_worlds_;                               ///< a letter a plan
  std::map<std::string, std::map<std::string, int64_t>> causes_;  ///< by ending
  Json findings_ = Json::array();
  const Json now_;  ///< provenance of this program, from its start on
  Json blocks_ = Json::array();
};

}  // namespace kuafu::fuzz
