// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kuafu/engine/certificate.h"

namespace kuafu {

/// The certificate of a plan whose replicas go on by themselves: its f64 twin against one rank that
/// replays the order of its pushes. Complete on rank 0 alone. Collective.
void certify_replayed(Plan plan, const Registries& registries, Communicator& world,
                      const std::function<std::unique_ptr<Dataset>(const Plan&)>& make_data,
                      const EngineOptions& options, Certificate& c);

}  // namespace kuafu
