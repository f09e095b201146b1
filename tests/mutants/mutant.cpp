// SPDX-License-Identifier: Apache-2.0
#include "tests/mutants/mutant.h"

#include <algorithm>
#include <bit>
#include <filesystem>

#include "kuafu/base/errors.h"
#include "kuafu/comm/worlds.h"
#include "kuafu/engine/proof/miniature.h"
#include "kuafu/engine/proof/whole_state.h"
#include "kuafu/engine/proof/witness.h"
#include "tests/support/plans.h"

namespace kuafu::tests {
namespace {

using Kind = Fate::Kind;

/// Steps of a timed run: the first three are certified, then one drawn by the seed, then the last.
constexpr const char* kTimedSteps = "5";
constexpr int64_t kNoLimit = int64_t{1} << 40;

bool names_cause(const Mutant& m, const std::string& message) {
  return std::any_of(m.causes.begin(), m.causes.end(), [&](const std::string& word) {
    return message.find(word) != std::string::npos;
  });
}

/// Without the folder of files that a mutant wrote.
std::string without_folder(std::string message) {
  const std::string folder = std::filesystem::temp_directory_path().string() + "/";
  for (size_t at; (at = message.find(folder)) != std::string::npos;)
    message.erase(at, folder.size());
  return message;
}

Fate of_error(const Mutant& m, const std::string& whole) {
  const std::string message = without_folder(whole);
  if (names_cause(m, message)) return {Kind::kError, message};
  return {Kind::kSurvived, "an error that does not name it: " + message};
}

/// A fault counted from an engine's first call strikes again where the run's later steps are made
/// again by a new engine, and not in the timed run. That difference is the mutant's own.
bool is_of_replay_alone(const Certificate& c) {
  const Proof& n = c.native;
  const bool holds = n.loss.holds() && n.gradient.holds() && n.update.holds() && c.loss.holds() &&
                     c.gradient.holds() && c.update.holds();
  return holds && n.reason.find("made again") != std::string::npos;
}

Fate judged(const Mutant& m, const Certificate& c) {
  const std::string words = text(c.describe(), "; native ", c.native.describe());
  // The twin is in f64, and tells what a type of fewer bits may not.
  if ((m.dtype ? c.native.verdict : c.verdict) == "different") {
    const bool counts = m.is_of_timed_run || !is_of_replay_alone(c);
    return {counts ? Kind::kComparison : Kind::kSurvived, words};
  }
  for (const Proof* p : {static_cast<const Proof*>(&c), &c.native}) {
    if (p->verdict == "not_run") return of_error(m, p->reason);
  }
  return {Kind::kSurvived, words};
}

/// One rank as `kuafu run --certify` has it: the timed steps, then the certificate.
Certificate certificate_of(const Mutant& m, const Plan& plan, Communicator& world, bool is_scaled) {
  const Registries registries = builtin_registries();
  const int rank = world.rank();
  const OpFaultScope ops(m.ops, rank, m.fired);
  const auto wrapped = m.wrap_world ? m.wrap_world(world) : nullptr;
  Communicator& own_world = wrapped ? *wrapped : world;
  const auto make_data = [&](const Plan& p) {
    auto data = data_of(p);
    return m.read ? m.read(std::move(data), rank) : std::move(data);
  };
  const Plan own = m.believe ? m.believe(plan, rank) : plan;
  if (is_scaled) return certify(own, registries, own_world, make_data, m.options, 1);
  Witness witness(own, 0, Witness::Depth::kFull);
  {
    const auto data = make_data(own);
    Engine engine(own, registries, own_world, *data, m.options);
    for (int64_t step = 0; step < own.train.steps; ++step) {
      witness.before_step(engine);
      witness.after_step(engine, engine.step());
    }
  }
  return certify(own, registries, own_world, make_data, m.options, kNoLimit, {.witness = &witness});
}

Fate certified(const Mutant& m, const Plan& plan, bool is_scaled) {
  Certificate c;
  try {
    run_on_threads(static_cast<int>(num_ranks(plan)), [&](Communicator& world) {
      const Certificate mine = certificate_of(m, plan, world, is_scaled);
      if (world.rank() == 0) c = mine;
    });
  } catch (const ConfigError& e) {
    return of_error(m, e.what());
  } catch (const CollectiveMismatch& e) {
    return of_error(m, e.what());
  } catch (const std::exception& e) {
    return {Kind::kSurvived, text("a crash: ", e.what())};
  }
  return judged(m, c);
}

uint64_t bits_of(const Tensor& t) {
  const Tensor flat = t.contiguous();
  const auto* bytes = static_cast<const char*>(flat.const_data_ptr());
  return std::hash<std::string_view>{}({bytes, static_cast<size_t>(flat.nbytes())});
}

/// By rank: of each step loss, norm, gradients, and what the optimizer updates.
using Bits = std::vector<std::vector<uint64_t>>;

Bits bits_of(const Mutant& m, const Plan& plan) {
  Bits all(static_cast<size_t>(num_ranks(plan)));
  const auto one_rank = [&](Communicator& world) {
    std::vector<uint64_t>& mine = all[static_cast<size_t>(world.rank())];
    const Registries registries = builtin_registries();
    const OpFaultScope ops(m.ops, world.rank(), m.fired);
    const auto wrapped = m.wrap_world ? m.wrap_world(world) : nullptr;
    const Plan own = m.believe ? m.believe(plan, world.rank()) : plan;
    const auto data = m.read ? m.read(data_of(own), world.rank()) : data_of(own);
    Engine engine(own, registries, wrapped ? *wrapped : world, *data, m.options);
    for (int64_t step = 0; step < own.train.steps; ++step) {
      const StepReport report = engine.step([&](std::span<const ParamShard> ready) {
        for (const ParamShard& shard : ready) mine.push_back(bits_of(shard.grad));
      });
      for (const double value : {report.loss, report.grad_norm}) {
        mine.push_back(std::bit_cast<uint64_t>(value));
      }
      mine.push_back(hash_of(engine));
    }
  };
  run_on_threads(static_cast<int>(all.size()), one_rank);
  return all;
}

/// Whether all ranks have, in each step, the same bits of loss, norm, gradients, weights and
/// optimizer state with the fault as without: in the plan's type and in f64.
bool changes_nothing(const Mutant& m, Plan plan) {
  for (const DType dtype : {plan.model.dtype, DType::kF64}) {
    plan.model.dtype = dtype;
    if (bits_of(m, plan) != bits_of(Mutant{}, plan)) return false;
  }
  return true;
}

}  // namespace

std::string to_string(const Combination& c) {
  return text(to_string(c.dtype), " ", c.optimizer, " ", c.level);
}

Mutant& Kit::believe(const std::string& what, const Overrides& overrides,
                     const std::function<void(Plan&)>& change) {
  Mutant& m = mutants.emplace_back(Mutant{.name = what, .overrides = overrides});
  m.believe = [change, fired = m.fired](Plan plan, int rank) {
    if (rank == 1) {
      change(plan);
      ++*fired;
    }
    return plan;
  };
  return m;
}

std::vector<Kit> all_kits(uint64_t seed) {
  return {communication_kit(seed), layout_kit(),   kernel_kit(),
          optimizer_kit(),         schedule_kit(), trace_kit()};
}

Plan plan_of(const Mutant& m, const Combination& c) {
  const bool is_large = c.level == "scaled";
  const Overrides base = {{"optimizer.clip", "0.1"},
                          {"model.sequence", is_large ? "24" : "8"},
                          {"model.hidden", is_large ? "32" : "16"},
                          {"train.micro_batch", "2"},
                          {"train.steps", kTimedSteps},
                          {"train.validation_batches", "0"}};
  const bool has_momentum = c.optimizer == "sgd" || c.optimizer == "lars";
  Overrides combined = {{"model.dtype", std::string(to_string(c.dtype))},
                        {"optimizer.kind", c.optimizer},
                        {"optimizer.lr", has_momentum ? "0.1" : "0.01"}};
  const bool has_tiers = std::any_of(m.overrides.begin(), m.overrides.end(),
                                     [](const auto& o) { return o.first == "memory.policy"; });
  if (!has_tiers)
    combined.emplace_back("parallel.data.bucket", "1");  // of tiers chunks are buckets
  return small_plan(keys::both(keys::both(base, m.overrides), combined));
}

Fate fate_of(Mutant& m, const Combination& c) {
  Plan plan = plan_of(m, c);
  const bool is_scaled = c.level == "scaled";
  Plan certified_plan = plan;
  if (is_scaled) {
    const Miniature small = miniature(plan, builtin_registries());
    if (!small.plan) return {Kind::kOutOfReach, small.reason};
    certified_plan = *small.plan;
  }
  if (m.aim) m.aim(m, certified_plan);
  if (m.trial) return m.trial(m, certified_plan);
  Fate fate = certified(m, plan, is_scaled);
  const bool is_put_in = *m.met + *m.fired > 0, is_equal = fate.words.starts_with("equal");
  if (is_put_in && is_equal && changes_nothing(m, certified_plan)) {
    fate.kind = Kind::kNothing;
  } else if (*m.fired == 0 && is_equal && is_scaled) {
    fate = {Kind::kOutOfReach, "equal; the miniature never comes by it"};
  }
  return fate;
}

}  // namespace kuafu::tests
