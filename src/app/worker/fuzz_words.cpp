// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <utility>

#include "app/worker/fuzz.h"
#include "kuafu/base/build_info.h"
#include "kuafu/base/errors.h"
#include "kuafu/base/kernel_choice.h"
#include "kuafu/base/suggest.h"
#include "kuafu/base/worlds.h"

namespace kuafu::fuzz {
namespace {

constexpr std::array<const char*, kNumEndings> kEndings = {
    "equal",     "refused", "out of memory", "diverged", "no oracle", "unexplained",
    "different", "metered", "error",         "crash",    "hang"};
constexpr std::array<const char*, 3> kWorlds = {worlds::kThreads, worlds::kMpi, "mpi-native"};

struct Reason {
  const char* part;  ///< what it contains
  PlanEnding ending;
  const char* cause;
};
/// Every reason that is not here is a finding.
constexpr std::array<Reason, 4> kReasons = {{
    {"training diverged", PlanEnding::kDiverged, kNoNumber},
    {"the run has diverged", PlanEnding::kDiverged, "numbers that rounding alone decides"},
    {"step that was compared was skipped", PlanEnding::kDiverged, "an overflow in every step"},
    {"compared with itself", PlanEnding::kNoOracle, ""},
}};

template <size_t N>
size_t place_of(const std::array<const char*, N>& words, const std::string& word,
                const char* what) {
  const auto found = std::find(words.begin(), words.end(), word);
  KUAFU_REQUIRE(found != words.end(), in_quotes(word), " is no ", what,
                "; allowed: ", join(std::vector<std::string>(words.begin(), words.end())));
  return static_cast<size_t>(found - words.begin());
}

}  // namespace

std::string to_string(PlanEnding ending) { return kEndings.at(static_cast<size_t>(ending)); }

PlanEnding ending_of(const std::string& word) {
  return static_cast<PlanEnding>(place_of(kEndings, word, "ending of a plan"));
}

bool is_finding(PlanEnding ending) { return ending > PlanEnding::kNoOracle; }

PlanOutcome outcome_of_not_run(const std::string& reason) {
  for (const Reason& known : kReasons) {
    if (reason.find(known.part) != std::string::npos) return {known.ending, reason, known.cause, 0};
  }
  return {PlanEnding::kUnexplained, reason, "", 0};
}

std::string to_string(RealWorld world) { return kWorlds.at(static_cast<size_t>(world)); }

RealWorld world_of(const std::string& word) {
  return static_cast<RealWorld>(place_of(kWorlds, word, "world of real ranks"));
}

std::vector<std::string> world_names() {
  return {kWorlds.begin(), kWorlds.begin() + (build_info::kMpi.found ? 3 : 1)};
}

RealWorld draw_world(const std::vector<RealWorld>& worlds, uint64_t seed, uint64_t index) {
  // A stream of its own: plans are the same whatever the worlds.
  Draw draw(seed, index | uint64_t{1} << 63);
  return draw.one_of(worlds);
}

std::string command_of(const Overrides& settings, RealWorld world, PlanEnding ending, int64_t ranks,
                       const std::vector<std::string>& plugins) {
  const bool is_run = ending != PlanEnding::kMetered;
  const KernelChoice kernels = kernel_choice();
  std::string out =
      kernels == KernelChoice::kOwn ? "" : text("KUAFU_KERNELS=", to_string(kernels), " ");
  out += is_run ? "kuafu run /dev/null --certify" : "kuafu fuzz";
  if (!is_run) {
    out += " --world " + to_string(world);
  } else if (world != RealWorld::kThreads) {
    out += text(" --world mpi --ranks ", ranks);
    if (world == RealWorld::kMpiNative) out += " --mpi-collectives native";
  }
  for (const std::string& plugin : plugins) out += " --plugin " + plugin;
  for (const auto& [key, value] : settings) {
    const bool is_plain = value.find_first_of(" \"'[]{}") == std::string::npos;
    out += text(" --set ", is_plain ? "" : "'", key, "=", value, is_plain ? "" : "'");
  }
  return out;
}

}  // namespace kuafu::fuzz
