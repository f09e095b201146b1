// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "kuafu/dataset/dataset.h"
#include "kuafu/engine/run.h"
#include "kuafu/record/json.h"
#include "kuafu/simulate/model_parts.h"
#include "kuafu/simulate/simulate.h"

namespace kuafu {

/// The parts of the document of one case that do not depend on how it ended. docs/record.md has the
/// schema.
Json document_head(const Plan& plan, const std::string& world, int64_t ranks);

/// Bytes by category; scratch is no part of what a rank holds.
Json by_category(const BytesByCategory& bytes);

/// The field `parameters`.
Json parameters_json(const ModelParts& parts);

/// Model FLOPs of a token of the global batch.
double flops_per_token(const Plan& plan, uint64_t flops_per_step);

/// What a run read.
Json data_json(const Plan& plan, const DataIdentity& identity);

/// Losses, scales and times of the steps that were made; `seconds`: of each.
StepTime add_steps(Json& document, const Plan& plan, const RankResult& rank,
                   const std::vector<double>& seconds);
/// Completes a document with what the ranks measured; status "ok".
void add_results(Json& document, const Plan& plan, const std::vector<RankResult>& ranks);
/// The same for the simulated world: loss and certificate are null.
void add_prediction(Json& document, const Plan& plan, const Prediction& prediction);
/// status and reason of a case that did not finish; for OutOfMemory its fields too.
void add_failure(Json& document, const std::string& status, const std::exception& cause);

/// Writes through a temporary name, so that a reader never sees half a document.
void write_document(const Json& document, const std::string& file);

/// One rank's result as JSON and back: what travels to rank 0.
Json to_json(const RankResult& r);
RankResult rank_result_from(const Json& j);
/// What all ranks measured, on rank 0, with what only rank 0 has; empty on others. Collective.
std::vector<RankResult> gather_results(Communicator& world, const RankResult& mine);

}  // namespace kuafu
