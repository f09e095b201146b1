// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/support/plans.h"

// Plans of ZeRO: layouts it is composed with, and a model with a tied and an unused parameter.
namespace kuafu::tests {

/// Stages of ZeRO: 1 to this.
constexpr int64_t kStages = 3;

/// Replicas beside every kind of parallelism.
const std::vector<Family>& zero_families();
/// The family with that stage.
Plan zero_plan(const Family& family, int64_t stage, Overrides more = {});

/// Built-in registries and the model "idle_gpt": a GPT (its output is tied to its embedding) whose
/// first layer is followed by a block of two parameters, one of them never used.
Registries idle_registries();
/// The plan with that model.
Plan with_idle(Plan plan);

/// The plan's steps on thread ranks, as train() does, for plans of either model; every rank's
/// parameters are compared with those of rank 0.
Trained train_replicas(const Plan& plan);

}  // namespace kuafu::tests
