// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kuafu/base/philox.h"
#include "kuafu/engine/registries.h"
#include "kuafu/plan/keys.h"
#include "kuafu/plan/plan.h"

// Random plans over all keys, each run as small as it goes: none may end otherwise than a plan may.
namespace kuafu::fuzz {

/// How a plan ended. The first five are what may happen.
enum class Ending : uint8_t {
  kEqual,        ///< certified, and metered as simulated
  kRefused,      ///< before anything ran, with a message
  kOutOfMemory,  ///< of memory.device, in the simulated world too
  kDiverged,     ///< a loss that is not finite, with its step
  kNotProven,    ///< not certified, for the reason that the certificate gives
  kDifferent,    ///< the certificate says so
  kMetered,      ///< traffic, FLOPs or peaks are not the simulated ones
  kError,        ///< any other exception
  kCrash,        ///< a signal or an exit of the process
  kHang,         ///< no end within the time limit
};
inline constexpr int kNumEndings = 10;
std::string to_string(Ending ending);
/// Throws ConfigError for a word that names none.
Ending ending_of(const std::string& word);
/// True for what is to be mended.
bool is_finding(Ending ending);

struct Outcome {
  Ending ending = Ending::kCrash;
  std::string why;  ///< message, what differs, the end of what was printed
  int64_t ranks = 0;
};

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
/// modes. Few plans are drawn that cannot be placed, none of more than `most_ranks`.
Overrides draw_plan(const Registries& registries, int64_t most_ranks, Draw& draw);

/// The plan of settings, resolved and placed. Throws what refuses it.
Plan placed(const Overrides& settings, const Registries& registries);

struct World {
  std::string name = "threads";  ///< or "mpi"
  std::string folder;            ///< for the files of MPI runs
  double timeout_s = 60;         ///< of one plan
};

/// Runs the plan in this process (MPI: in processes of its own): certified and metered, simulated,
/// and both compared.
Outcome run_here(const Overrides& settings, const Registries& registries, const World& world);

/// The same in a process forked for it, so that a crash or a hang is an outcome.
Outcome run_apart(const Overrides& settings, const Registries& registries, const World& world);

/// Fewer and smaller settings with the same ending: keys are dropped one by one and numbers halved
/// as long as `ending_of` says the same, at most `trials` times.
Overrides minimise(Overrides settings, Ending wanted, int64_t trials,
                   const std::function<Ending(const Overrides&)>& try_plan);

/// `kuafu run ...` with these settings, to paste into a shell.
std::string command_of(const Overrides& settings, const std::string& world);

}  // namespace kuafu::fuzz
