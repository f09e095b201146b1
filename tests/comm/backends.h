// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "kuafu/comm/turns.h"
#include "kuafu/comm/worlds.h"

namespace kuafu::conformance {

/// A back end under test: how to run a rank program on some numbers of ranks.
struct Backend {
  std::string name;
  std::vector<int> ranks;
  std::function<void(int ranks, const std::function<void(Communicator&)>& body)> run;
};

/// Those that need no launcher.
inline std::vector<Backend> in_process_backends() {
  return {
      {"self", {1}, [](int, const auto& body) { body(*make_self()); }},
      {"threads",
       {1, 2, 3, 4, 5, 8},
       [](int ranks, const auto& body) { run_on_threads(ranks, body); }},
      {"turns",  // threads, of those that outnumber the cores
       {3, 5, 8},
       [](int ranks, const auto& body) {
         run_on_threads(ranks, [&](Communicator& world) {
           const TurnsScope turns(turns_of(world));
           body(world);
         });
       }},
  };
}

}  // namespace kuafu::conformance
