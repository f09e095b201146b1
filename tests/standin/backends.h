// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kuafu/comm/nccl.h"
#include "tests/comm/backends.h"
#include "tests/comm/values.h"
#include "tests/standin/control.h"

namespace kuafu::conformance {

/// A run on a machine of its own: nothing is left of the one before, and nothing in use after it.
inline void on_fresh_machine(int devices, uint64_t seed, const std::function<void()>& run) {
  standin::reset();
  standin::set_devices(devices);
  standin::set_pauses(seed);
  run();
  standin::reset();
  EXPECT_EQ(standin::bytes_in_use(), 0) << "device memory was not given back";
}

/// Thread ranks that share one card.
inline std::vector<Backend> one_card_backends() {
  const auto backend = [](const char* name, std::vector<int> ranks, uint64_t seed) {
    return Backend{name, std::move(ranks), [seed](int n, const auto& body) {
                     on_fresh_machine(1, seed, [&] { run_on_threads(n, on_a_stream(body)); });
                   }};
  };
  return {backend("one_card", {1, 2, 3, 4, 5, 8}, 0),
          backend("one_card_with_pauses", {2, 3, 8}, 1)};
}

/// NCCL ranks, each with a device, as threads of this process.
inline void run_on_nccl_threads(int ranks, const std::function<void(Communicator&)>& body,
                                const NcclOptions& options = {}) {
  run_on_threads(ranks, [&](Communicator& host) { run_on_nccl_over(host, body, options); });
}

inline std::vector<Backend> nccl_backends() {
  const auto backend = [](const char* name, std::vector<int> ranks, uint64_t seed) {
    return Backend{name, std::move(ranks), [seed](int n, const auto& body) {
                     on_fresh_machine(n, seed, [&] {
                       run_on_nccl_threads(n, on_a_stream(body),
                                           {.timeout = std::chrono::milliseconds(30'000)});
                     });
                   }};
  };
  return {backend("nccl", {1, 2, 3, 4, 8}, 0),
          backend("nccl_with_pauses", {2, 3, 8}, 1),
          // Buffers on the host: calls go to the ranks' host world.
          {"nccl_on_host", {1, 2, 4}, [](int n, const auto& body) {
             on_fresh_machine(n, 0, [&] { run_on_nccl_threads(n, body); });
           }}};
}

}  // namespace kuafu::conformance
