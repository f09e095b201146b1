// SPDX-License-Identifier: Apache-2.0
#include "kuafu/conformance/kinds.h"

#include "kuafu/conformance/models.h"
#include "kuafu/conformance/optimizers.h"
#include "kuafu/conformance/policies.h"
#include "kuafu/conformance/schedules.h"
#include "kuafu/conformance/schemes.h"
#include "kuafu/conformance/sequences.h"

namespace kuafu::conformance {

const std::vector<Kind>& kinds() {
  static const std::vector<Kind> kAll = {{"scheme",
                                          "tensor mode",
                                          [](const Registries& r) { return r.tensor.names(); },
                                          {1, 2, 3, 4, 5, 8, 9, 12, 27},
                                          check_scheme},
                                         {"sequence",
                                          "sequence mode",
                                          [](const Registries& r) { return r.sequence.names(); },
                                          {1, 2, 3, 4, 8},
                                          check_sequence},
                                         {"model",
                                          "model",
                                          [](const Registries& r) { return r.models.names(); },
                                          {1, 2, 3, 4, 5, 6, 7, 8},
                                          check_model},
                                         {"schedule",
                                          "pipeline schedule",
                                          [](const Registries& r) { return r.schedules.names(); },
                                          {2, 3, 4, 5, 6, 7, 8},
                                          check_schedule},
                                         {"optimizer",
                                          "optimizer",
                                          [](const Registries& r) { return r.optimizers.names(); },
                                          {1, 2, 3, 4, 5, 6, 7, 8},
                                          check_optimizer},
                                         {"policy",
                                          "memory policy",
                                          [](const Registries& r) { return r.policies.names(); },
                                          {1, 2, 3},
                                          check_policy}};
  return kAll;
}

}  // namespace kuafu::conformance
