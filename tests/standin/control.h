// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

/// What tests say to the stand-in for CUDA and NCCL.
namespace kuafu::standin {

/// Back to one device, no pauses, no faults. Ends what is stuck and joins the threads of streams
/// that are gone.
void reset();

/// Devices of this machine from now on.
void set_devices(int count);

/// Random pauses before each operation of a stream and before each call; 0: none.
void set_pauses(uint64_t seed);

/// The n-th call of that name from now on, from 1, does nothing but return `code`.
void fail(const std::string& call, int n, int code);

/// Bytes of device memory that were not given back.
int64_t bytes_in_use();

}  // namespace kuafu::standin
