// SPDX-License-Identifier: Apache-2.0
#include <optional>

#include "kuafu/base/errors.h"
#include "kuafu/base/trace.h"
#include "kuafu/engine/divergence.h"
#include "kuafu/engine/proof/certificate_step.h"
#include "kuafu/meter/op_kinds.h"
#include "kuafu/meter/op_trace.h"

namespace kuafu {
namespace {

/// Writes down a step's ops while it is there, but for what evidence is made of.
class StepOps {
 public:
  explicit StepOps(std::set<std::string>* unbooked) : unbooked_(unbooked) {
    if (unbooked_ != nullptr) watch_.emplace(recorder_);
  }
  ~StepOps() {
    if (unbooked_ == nullptr) return;
    for (const std::string& op : unknown_ops(recorder_.trace())) unbooked_->insert(op);
  }
  StepOps(const StepOps&) = delete;
  StepOps& operator=(const StepOps&) = delete;

 private:
  std::set<std::string>* const unbooked_;
  TraceRecorder recorder_{TraceRecorder::Clock::kNone};
  std::optional<OpTraceScope> watch_;
};

}  // namespace

Evidence observe(Engine& engine, Communicator& world, WholeState before, Look look, RankBook* book,
                 std::set<std::string>* unbooked) {
  Evidence e;
  e.step = engine.steps_done();
  e.is_first = e.step == 0;
  e.scale_before = engine.loss_scaler().state();
  e.before = std::move(before);
  engine.keep_routes();
  if (look == Look::kBlocksToo) engine.keep_flows();
  try {
    const StepOps watched(unbooked);
    const BookScope booked(book);
    e.report = engine.step([&](std::span<const ParamShard> ready) {
      const TraceScope untraced(nullptr);
      const BookScope apart(nullptr);
      WholeGradients all = whole_gradients(ready, 1 / e.scale_before.scale, engine, world);
      e.gradients = std::move(all.tensors);
      e.gradients_disagreement = std::move(all.disagreement);
    });
  } catch (const Diverged& why) {  // on all ranks, before the update
    e.diverged = cause_of(why);
    e.report.loss_scale = e.scale_before.scale;
    e.after = e.before;
    e.routes = whole_routes(engine, world);
    return e;
  }
  e.after = whole_state(engine, world);
  e.scale_after = engine.loss_scaler().state();
  e.routes = whole_routes(engine, world);
  e.is_by_blocks = look == Look::kBlocksToo;
  if (e.is_by_blocks) e.flows = whole_flows(engine, world);
  return e;
}

}  // namespace kuafu
