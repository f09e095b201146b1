// SPDX-License-Identifier: Apache-2.0
#include "kuafu/engine/stepping/executor.h"

#include <chrono>
#include <optional>

#include <ATen/ATen.h>

#include "kuafu/base/errors.h"
#include "kuafu/base/trace.h"

namespace kuafu {
namespace {

using pipeline::Action;
using pipeline::Op;

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// "forward 2F0": the phase of an action that computes.
std::string phase_of(const Action& action) {
  switch (action.op) {
    case Op::kForward:
      return "forward " + to_string(action);
    case Op::kBackward:
      return "backward " + to_string(action);
    case Op::kInputGrad:
      return "input_grad " + to_string(action);
    default:
      return "weight_grad " + to_string(action);
  }
}

/// Messages of one stage and direction share a tag and are met in order.
int tag_of(int boundary, Op op) {
  const bool is_gradient = op == Op::kSendBackward || op == Op::kRecvBackward;
  return 2 * boundary + (is_gradient ? 1 : 0);
}

void check_flow(const Tensors& tensors, const FlowTensors& expected, const Action& a) {
  KUAFU_CHECK(tensors.size() == expected.size(), to_string(a), " gave ", tensors.size(),
              " tensors to hand over, expected ", expected.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    KUAFU_CHECK(
        shape_of(tensors[i]) == expected[i].shape && tensors[i].scalar_type() == expected[i].type,
        to_string(a), " gave tensor ", i, " as ", to_string(shape_of(tensors[i])), ", expected ",
        to_string(expected[i].shape));
  }
}

}  // namespace

void Executor::Message::wait() {
  for (Work& work : works) work.wait();
  works.clear();
}

void Executor::run(const pipeline::Row& row) {
  for (const Action& a : row) {
    switch (a.op) {
      case Op::kRecvForward:
      case Op::kRecvBackward:
        post_receive(a);
        break;
      case Op::kSendForward:
      case Op::kSendBackward:
        send(a);
        break;
      default:
        compute(a);
    }
  }
  for (auto& [key, messages] : under_way_) {
    for (Message& message : messages) message.wait();
  }
  under_way_.clear();
  KUAFU_CHECK(
      activations_.empty() && gradients_.empty() && made_.empty() && made_gradients_.empty(),
      "a row ended with data that nothing used");
}

void Executor::compute(const Action& a) {
  StageWork* stage = rank_.stages[static_cast<size_t>(a.stage)];
  KUAFU_CHECK(stage != nullptr, "action ", to_string(a), " of a stage that lives on another rank");
  const bool is_first = a.stage == 0,
             is_last = a.stage + 1 == static_cast<int>(rank_.stages.size());
  Tensors in, out;
  if (a.op == Op::kForward) {
    if (!is_first) in = take(activations_, a, Op::kRecvForward);
  } else if (a.op != Op::kWeightGrad && !is_last) {
    in = take(gradients_, a, Op::kRecvBackward);
  }
  const double start = observer_ == nullptr ? 0 : seconds_now();
  std::optional<TracePhase> phase;
  if (current_trace() != nullptr) phase.emplace(phase_of(a));
  switch (a.op) {
    case Op::kForward:
      out = stage->forward(a.micro_batch, std::move(in));
      break;
    case Op::kBackward:
      out = stage->backward(a.micro_batch, std::move(in));
      break;
    case Op::kInputGrad:
      out = stage->input_grad(a.micro_batch, std::move(in));
      break;
    default:
      stage->weight_grad(a.micro_batch);
  }
  phase.reset();
  note(a, start);
  if (a.op != Op::kWeightGrad) hand_on(a, std::move(out));
}

/// To the neighbour on this rank at once, to another when the row sends it.
void Executor::hand_on(const Action& a, Tensors tensors) {
  const bool is_forward = a.op == Op::kForward;
  const int to = is_forward ? a.stage + 1 : a.stage - 1;
  if (to < 0 || to >= static_cast<int>(rank_.stages.size())) return;
  const StageWork& mine = *rank_.stages[static_cast<size_t>(a.stage)];
  check_flow(tensors, is_forward ? mine.outputs() : mine.inputs(), a);
  for (Tensor& t : tensors) t = t.detach();
  if (rank_.stages[static_cast<size_t>(to)] != nullptr) {
    (is_forward ? activations_ : gradients_)[{to, a.micro_batch}] = {std::move(tensors), {}};
  } else {
    (is_forward ? made_ : made_gradients_)[{a.stage, a.micro_batch}] = std::move(tensors);
  }
}

void Executor::post_receive(const Action& a) {
  const StageWork& mine = *rank_.stages[static_cast<size_t>(a.stage)];
  const bool is_gradient = a.op == Op::kRecvBackward;
  const int neighbour = is_gradient ? a.stage + 1 : a.stage - 1;
  const int from = rank_.rank_of_stage[static_cast<size_t>(neighbour)];
  Message message;
  for (const FlowTensor& t : is_gradient ? mine.outputs() : mine.inputs()) {
    message.tensors.push_back(at::empty(t.shape, at::TensorOptions(t.type).device(rank_.device)));
    message.works.push_back(
        rank_.pipeline->recv(view(message.tensors.back()), from, tag_of(neighbour, a.op)));
  }
  (is_gradient ? gradients_ : activations_)[{a.stage, a.micro_batch}] = std::move(message);
}

void Executor::send(const Action& a) {
  const double start = observer_ == nullptr ? 0 : seconds_now();
  const bool is_gradient = a.op == Op::kSendBackward;
  const int to = rank_.rank_of_stage[static_cast<size_t>(is_gradient ? a.stage - 1 : a.stage + 1)];
  std::map<Key, Tensors>& box = is_gradient ? made_gradients_ : made_;
  const auto found = box.find({a.stage, a.micro_batch});
  KUAFU_CHECK(found != box.end(), to_string(a), " has nothing to send");
  std::deque<Message>& before = under_way_[{a.stage, is_gradient ? 1 : 0}];
  while (before.size() >= kSendsUnderWay) {
    before.front().wait();
    before.pop_front();
  }
  Message message;
  for (const Tensor& t : found->second) {
    message.tensors.push_back(t.contiguous());
    message.works.push_back(
        rank_.pipeline->send(view(message.tensors.back()), to, tag_of(a.stage, a.op)));
  }
  box.erase(found);
  before.push_back(std::move(message));
  note(a, start);
}

Tensors Executor::take(std::map<Key, Message>& box, const Action& a, Op as) {
  const auto found = box.find({a.stage, a.micro_batch});
  KUAFU_CHECK(found != box.end(), to_string(a), " has no input");
  Message message = std::move(found->second);
  box.erase(found);
  if (!message.works.empty()) {
    const double start = observer_ == nullptr ? 0 : seconds_now();
    message.wait();
    note({as, a.stage, a.micro_batch}, start);
  }
  return std::move(message.tensors);
}

void Executor::note(const Action& a, double start) const {
  if (observer_ != nullptr) observer_->note(rank_.pipeline->rank(), a, start, seconds_now());
}

}  // namespace kuafu
