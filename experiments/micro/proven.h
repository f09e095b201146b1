// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "kuafu/engine/proof/certificate.h"
#include "kuafu/engine/proof/witness.h"
#include "kuafu/record/json.h"

namespace kuafu::micro {

/// Nothing is timed that is not checked: the steps of a benchmark, and the certificate of these
/// very steps. Copies are taken outside of what `timed` times.
class ProvenSteps {
 public:
  /// All plan.train.steps steps of one engine will be made through step().
  explicit ProvenSteps(const Plan& plan)
      : plan_(plan),
        witness_(plan, 0,
                 is_certified_whole(plan, kMemory) ? Witness::Depth::kFull
                                                   : Witness::Depth::kReportsOnly) {}

  /// One step; `timed` calls the function that it is given once and returns what it took.
  template <class Timed>
  auto step(Engine& engine, const Timed& timed) {
    witness_.before_step(engine);
    StepReport report;
    auto took = timed([&] { report = engine.step(); });
    witness_.after_step(engine, report);
    return took;
  }

  /// {verdict, level, reason} of the certificate. Collective; after the engine is gone.
  Json certificate(const Registries& registries, Communicator& world) const {
    const auto data_of = [](const Plan& p) {
      return make_dataset(p.data, p.model, p.train.seed, "");
    };
    const Certificate c =
        certify(plan_, registries, world, data_of, {}, kMemory, {.witness = &witness_});
    return {{"verdict", c.verdict},
            {"level", c.level},
            {"reason", c.reason.empty() ? Json() : Json(c.reason)},
            {"steps", c.native.steps}};
  }

 private:
  static constexpr int64_t kMemory = int64_t{4} << 30;
  const Plan plan_;
  Witness witness_;
};

}  // namespace kuafu::micro
