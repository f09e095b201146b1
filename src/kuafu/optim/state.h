// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kuafu/optim/optimizer.h"

// What optimizers share. Internal to optim/.
namespace kuafu {

/// f32 and f64 values are updated in place. Half-precision ones have an f32 master copy, which is
/// optimizer state: a step of lr 1e-4 is lost in a bf16's 8 bits.
bool needs_master(const Tensor& value);

/// A state tensor like value, in the type it is updated in; booked as optimizer memory.
Tensor new_state(const Tensor& value);
/// The master copy of a half-precision value; undefined for others.
Tensor new_master(const Tensor& value);

/// Copies the tensors of one state into those of another. Throws ConfigError where names or shapes
/// differ.
void copy_state(const std::vector<NamedTensor>& from, const std::vector<NamedTensor>& to);

/// Throws where the shards of this step are not those the state was made for.
void check_shards(std::span<const ParamShard> shards, size_t num_states);

}  // namespace kuafu
