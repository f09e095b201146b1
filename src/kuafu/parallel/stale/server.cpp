// SPDX-License-Identifier: Apache-2.0
#include "kuafu/parallel/stale/server.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "kuafu/base/errors.h"
#include "kuafu/comm/communicator.h"
#include "kuafu/meter/allocator.h"

namespace kuafu {

StaleServer::StaleServer(Communicator& group, const FlatBucket& layout, const StaleOptions& options)
    : group_(group),
      layout_(layout),
      options_(options),
      optimizer_(make_optimizer(options.plan.optimizer, options.rules, &slots_)),
      workers_(static_cast<size_t>(group.size())) {
  const CategoryScope scope(Category::kParameter);
  values_ = at::empty({part().size()}, layout_.options());
  for (const FlatSlot& slot : layout_.slots) {
    const FlatPart piece = overlap(part(), slot);
    if (piece.size() > 0) in_values(piece).copy_(value_in(slot, piece));
  }
  optimizer_->begin(pieces({}));
}

void StaleServer::push_own(const Tensor& gradient, const Note& note) {
  Worker& me = workers_[static_cast<size_t>(group_.rank())];
  me.gradient = gradient;
  me.note = note;
  arrive(me);
}

/// All meet after the next step that nobody has begun. Every worker learns of it in time: with the
/// values of that step or of an earlier one.
void StaleServer::arrive(Worker& worker) {
  worker.has_arrived = true;
  worker.losses.push_back(worker.note.loss);
  if (worker.note.wants_to_meet == 0 || meets_at_ >= 0) return;
  for (const Worker& w : workers_) {
    meets_at_ = std::max(meets_at_, w.is_waiting ? w.pushed : w.pushed + 1);
  }
}

std::vector<double> StaleServer::take_means() {
  size_t all = workers_[0].losses.size();
  for (const Worker& w : workers_) all = std::min(all, w.losses.size());
  std::vector<double> means(all);
  for (Worker& w : workers_) {
    for (size_t i = 0; i < all; ++i) means[i] += w.losses[i];
    w.losses.erase(w.losses.begin(), w.losses.begin() + static_cast<int64_t>(all));
  }
  for (double& x : means) x /= static_cast<double>(workers_.size());
  return means;
}

void StaleServer::go_on_from(int64_t steps) {
  first_version_ = optimizer_->state().num_steps;
  for (Worker& w : workers_) w.pushed = steps;
}

bool StaleServer::has_settled() const {
  return std::all_of(workers_.begin(), workers_.end(),
                     [](const Worker& w) { return w.has_settled; });
}

void StaleServer::end_phase() {
  std::vector<Work> works;
  for (int w = 0; w < group_.size() && part().size() > 0; ++w) {
    if (w != group_.rank()) works.push_back(group_.send(view(values_), w, kSettleTag));
  }
  for (Work& work : works) work.wait();
  for (Reply& reply : replies_) reply.work.wait();
  replies_.clear();
  meets_at_ = -1;
  for (Worker& worker : workers_) {
    worker.has_settled = false;
    worker.version = version();
  }
}

bool StaleServer::serve() {
  bool has_moved = false;
  for (int w = 0; w < group_.size(); ++w) has_moved = listen(w) || has_moved;
  for (int w = next(); w >= 0; w = next()) {
    apply(w);
    answer();
    has_moved = true;
  }
  while (!replies_.empty() && replies_.front().work.test()) replies_.pop_front();
  return has_moved;
}

bool StaleServer::listen(int w) {
  if (w == group_.rank()) return false;
  Worker& worker = workers_[static_cast<size_t>(w)];
  if (worker.has_arrived || worker.is_waiting || worker.has_settled) return false;
  if (!worker.is_listened_to) {
    worker.note_under_way = group_.recv({&worker.note, kNoteNumbers, DType::kI64}, w, kNoteTag);
    worker.is_listened_to = true;
  }
  if (!worker.is_sending) {
    if (!worker.note_under_way.test()) return false;
    if (worker.note.step == kSettles) {
      worker.is_listened_to = false;
      worker.has_settled = true;
      return true;
    }
    KUAFU_CHECK(worker.note.step == worker.pushed, "worker ", w, " pushes step ", worker.note.step,
                " after step ", worker.pushed - 1);
    const CategoryScope scope(Category::kCommunication);
    worker.gradient = at::empty({part().size()}, layout_.options());
    if (part().size() > 0) {
      worker.push_under_way = group_.recv(view(worker.gradient), w, kPushTag);
    }
    worker.is_sending = true;
  }
  if (!worker.push_under_way.test()) return false;
  worker.is_listened_to = worker.is_sending = false;
  arrive(worker);
  return true;
}

int StaleServer::next() const {
  if (order_.size() < options_.script.size()) {
    const int w = options_.script[order_.size()];
    return workers_[static_cast<size_t>(w)].has_arrived ? w : -1;
  }
  for (int w = 0; w < group_.size(); ++w) {
    if (workers_[static_cast<size_t>(w)].has_arrived) return w;
  }
  return -1;
}

std::vector<ParamShard> StaleServer::pieces(const Tensor& gradient) const {
  std::vector<ParamShard> all;
  for (const FlatSlot& slot : layout_.slots) {
    const FlatPart piece = overlap(part(), slot);
    if (piece.size() == 0) continue;
    Tensor grad;
    if (gradient.defined()) grad = gradient.narrow(0, piece.begin - part().begin, piece.size());
    all.push_back({in_values(piece), grad, slot.param, {"data"}, piece.begin - slot.offset});
  }
  return all;
}

void StaleServer::apply(int w) {
  const at::NoGradGuard no_grad;
  const Plan& plan = options_.plan;
  Worker& worker = workers_[static_cast<size_t>(w)];
  const AppliedPush push{w, worker.pushed, worker.version};
  const bool is_wanted = witness_ != nullptr && witness_->wanted().has(w, worker.pushed);
  if (is_wanted) witness_->see_before(push, worker.gradient, values_, *optimizer_);
  std::vector<ParamShard> shards = pieces(worker.gradient);
  optimizer_->step(shards, learning_rate(plan.optimizer, worker.pushed, plan.schedule_steps(),
                                         plan.train.batch));
  if (is_wanted) witness_->see_after(values_, *optimizer_);
  order_.push_back(push);
  ++worker.pushed;
  worker.gradient = Tensor();
  worker.has_arrived = false;
  worker.is_waiting = true;
}

void StaleServer::answer() {
  int64_t slowest = workers_[0].pushed;
  for (const Worker& worker : workers_) slowest = std::min(slowest, worker.pushed);
  const CategoryScope scope(Category::kCommunication);
  for (int w = 0; w < group_.size(); ++w) {
    Worker& worker = workers_[static_cast<size_t>(w)];
    if (!worker.is_waiting || worker.pushed - slowest > options_.plan.parallel.data.staleness)
      continue;
    worker.is_waiting = false;
    worker.version = version();
    const Tensor copy = values_.clone();
    if (w == group_.rank()) {
      own_reply_ = copy;
      continue;
    }
    if (part().size() > 0) replies_.push_back({group_.send(view(copy), w, kPullTag), copy});
    if (group_.rank() != 0) continue;
    auto at = std::make_unique<int64_t>(meets_at_);
    Work sending = group_.send({at.get(), 1, DType::kI64}, w, kMeetTag);
    replies_.push_back({std::move(sending), {}, std::move(at)});
  }
}

}  // namespace kuafu
