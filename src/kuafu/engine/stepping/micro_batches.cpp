// SPDX-License-Identifier: Apache-2.0
#include "kuafu/engine/stepping/micro_batches.h"

#include <type_traits>

#include <ATen/ATen.h>

#include "kuafu/meter/op_trace.h"

namespace kuafu {
namespace {

/// Each sample's tokens in the order given.
std::vector<int64_t> in_order(const std::vector<int64_t>& ids, const std::vector<int64_t>* order) {
  if (order == nullptr) return ids;
  std::vector<int64_t> out = ids;
  for (size_t i = 0; i < ids.size(); ++i) {
    const size_t place = i % order->size();
    out[i] = ids[i - place + static_cast<size_t>((*order)[place])];
  }
  return out;
}

/// Where the document of each position begins, by position: behind the last end token before it.
std::vector<int64_t> document_begins(const Tokens& tokens) {
  std::vector<int64_t> out(tokens.inputs.size());
  for (size_t i = 0; i < out.size(); ++i) {
    const auto position = static_cast<int64_t>(i) % tokens.sequence;
    const bool is_new = position > 0 && tokens.inputs[i - 1] == tokens.end_token;
    out[i] = position == 0 ? 0 : is_new ? position : out[i - 1];
  }
  return out;
}

/// Numbers of the host on the device; on meta their extents alone.
template <class T>
Tensor to_tensor(const std::vector<T>& numbers, const Shape& shape, at::ScalarType type,
                 at::Device device) {
  const Tensor t = at::empty(shape, at::TensorOptions(type).device(device));
  const OneOpScope load("load", t);
  if (device.is_meta()) return t;
  const at::ScalarType given = std::is_same_v<T, float> ? at::kFloat : at::kLong;
  t.copy_(at::from_blob(const_cast<T*>(numbers.data()), shape, given));
  return t;
}

}  // namespace

Side make_side(const Plan& plan, const Tokens& tokens, const std::vector<int64_t>* order,
               at::Device device) {
  Side s;
  s.order = order;
  s.batch = tokens.samples;
  s.sequence = tokens.sequence;
  const auto ids = [&](const std::vector<int64_t>& numbers) {
    return to_tensor(in_order(numbers, order), {s.batch, s.sequence}, at::kLong, device);
  };
  const bool is_image = tokens.patches > 0;
  if (!is_image) {
    s.tokens = ids(tokens.inputs);
    s.targets = ids(tokens.targets);
  }
  if (tokens.end_token || (device.is_meta() && plan.data.document_mask)) {  // data that meta lacks
    s.first = to_tensor(document_begins(tokens), {s.batch, s.sequence}, at::kLong, device);
  }
  if (tokens.is_pair) s.segments = ids(tokens.segments);
  if (tokens.is_pair || is_image) {
    s.labels = to_tensor(tokens.labels, {s.batch}, at::kLong, device);
  }
  if (is_image) {
    s.images = to_tensor(tokens.images, {s.batch, tokens.patches, tokens.pixels},
                         scalar_type(plan.model.dtype), device);
  }
  return s;
}

void MicroBatches::use_step(int64_t step) {
  step_ = step;
  validation_batch_ = -1;
  given_ = nullptr;
}

void MicroBatches::use_validation(int64_t step, int64_t batch) {
  step_ = step;
  validation_batch_ = batch;
  given_ = nullptr;
}

void MicroBatches::use_given(const Tokens& batch, Inference& inference) {
  given_ = &batch;
  inference_ = &inference;
}

void MicroBatches::use_given(const Tokens& batch) {
  given_ = &batch;
  inference_ = nullptr;
}

const Side& MicroBatches::side(int micro_batch) {
  const auto found = sides_.find(micro_batch);
  if (found != sides_.end()) return found->second.side;
  return sides_.emplace(micro_batch, Entry{read(micro_batch), users_}).first->second.side;
}

void MicroBatches::release(int micro_batch) {
  const auto found = sides_.find(micro_batch);
  KUAFU_CHECK(found != sides_.end(), "micro-batch ", micro_batch, " is not held");
  if (--found->second.users == 0) sides_.erase(found);
}

Side MicroBatches::read(int64_t micro_batch) const {
  const TrainPlan& train = plan_.train;
  const int64_t per_replica = plan_.num_micro_batches() * train.micro_batch;
  const int64_t in_batch = replica_ * per_replica + micro_batch * train.micro_batch;
  if (given_ != nullptr) return read_given(in_batch);
  if (validation_batch_ < 0) {
    return side_of(dataset_.train(step_ * train.batch + in_batch, train.micro_batch), in_batch,
                   train.batch);
  }
  const int64_t first = validation_batch_ * train.batch + in_batch;
  Side side = side_of(dataset_.validation(first, train.micro_batch), first,
                      train.validation_batches * train.batch);
  side.is_training = false;
  return side;
}

Side MicroBatches::read_given(int64_t first) const {
  const int64_t samples = plan_.train.micro_batch, sequence = given_->sequence;
  const auto part = [&](const std::vector<int64_t>& of) {
    const auto begin = of.begin() + first * sequence;
    return std::vector<int64_t>(begin, begin + samples * sequence);
  };
  const std::vector<int64_t> none(static_cast<size_t>(samples * sequence), -1);
  Tokens mine{.inputs = part(given_->inputs),
              .targets = inference_ == nullptr ? part(given_->targets) : none,
              .samples = samples,
              .sequence = sequence};
  mine.end_token = given_->end_token;
  mine.is_pair = plan_.model.input() == ModelInput::kMaskedPairs;
  if (mine.is_pair) {  // a text that is the first of its pair
    mine.segments.assign(mine.inputs.size(), 0);
    mine.labels.assign(static_cast<size_t>(samples), 0);
  }
  Side side = side_of(mine, first, plan_.train.batch);
  side.is_training = false;
  side.inference = inference_;
  side.loss_scale = 1;
  return side;
}

Side MicroBatches::side_of(const Tokens& tokens, int64_t first, int64_t global_samples) const {
  Side s = make_side(plan_, tokens, order_, device_);
  if (given_ != nullptr && !tokens.end_token) s.first = Tensor();  // a prompt is one document
  s.sample_scale = 1.0 / static_cast<double>(global_samples);
  s.loss_scale = 1.0 / static_cast<double>(global_samples * tokens.predictions);
  s.first_sample = first;
  s.step = step_;
  return s;
}

}  // namespace kuafu
