// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "kuafu/comm/communicator.h"

namespace kuafu::conformance {

/// A rank program that checks what every back end must do, with closed-form data: value(rank,
/// index) of values.h. Runs on any number of ranks and reports through GoogleTest.
struct Body {
  const char* name;
  void (*run)(Communicator& world);
};

const std::vector<Body>& bodies();

/// Refuses bad input before anything is communicated: the world still works afterwards.
void refuses_bad_input(Communicator& world);

}  // namespace kuafu::conformance
