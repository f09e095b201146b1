// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include "kuafu/parallel/pipeline/timetable.h"

namespace kuafu::tests {

using pipeline::Action;
using pipeline::Op;
using pipeline::PipeShape;
using pipeline::Timetable;

/// A random order of actions that a run could have taken: repeatedly any rank takes any action that
/// is ready. Valid by construction.
inline Timetable random_schedule(PipeShape s, std::mt19937& random) {
  Timetable t(static_cast<size_t>(s.ranks));
  std::map<Action, bool> done;
  std::vector<Action> open;
  for (int stage = 0; stage < s.stages(); ++stage) {
    for (int m = 0; m < s.micro_batches; ++m) {
      open.push_back({Op::kForward, stage, m});
      open.push_back({Op::kInputGrad, stage, m});
      open.push_back({Op::kWeightGrad, stage, m});
    }
  }
  const auto is_ready = [&](const Action& a) {
    const int last = s.stages() - 1;
    if (a.op == Op::kForward) return a.stage == 0 || done[{a.op, a.stage - 1, a.micro_batch}];
    if (a.op == Op::kWeightGrad) return done[{Op::kInputGrad, a.stage, a.micro_batch}];
    return done[{Op::kForward, a.stage, a.micro_batch}] &&
           (a.stage == last || done[{Op::kInputGrad, a.stage + 1, a.micro_batch}]);
  };
  while (!open.empty()) {
    std::shuffle(open.begin(), open.end(), random);
    const auto next = std::find_if(open.begin(), open.end(), is_ready);
    t[static_cast<size_t>(next->stage % s.ranks)].push_back(*next);
    done[*next] = true;
    open.erase(next);
  }
  return t;
}

}  // namespace kuafu::tests
