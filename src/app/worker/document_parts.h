// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "kuafu/engine/run.h"
#include "kuafu/record/json.h"

// Fields of the document of a run, each null where a run has no such thing. docs/record.md has them.
namespace kuafu {

/// NaN and infinity have no JSON number: null.
Json finite_or_null(double x);

Json memory_json(const std::vector<RankResult>& ranks);
/// Null where everything stays on the device.
Json moves_json(const Plan& plan, const std::vector<RankResult>& ranks);
Json ledger_json(const std::vector<RankResult>& ranks);
Json certificate_json(const Certificate& certificate);
/// Summed over blocks, and block by block.
Json experts_json(const std::vector<ExpertLoad>& loads);
/// Columns of each server's order.
Json pushes_json(const std::vector<PushOrder>& servers);
Json scale_json(const RankResult& rank);
Json checkpoint_json(const std::vector<RankResult>& ranks);
Json validation_json(const ValidationSeries& series);
Json telemetry_json(const TelemetrySeries& series);
/// `flops` of a step, all ranks, with what is recomputed; `peak` 0: not measured.
Json compute_json(double peak, double flops, double step_seconds);

}  // namespace kuafu
