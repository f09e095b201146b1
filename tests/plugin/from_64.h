// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
#include <tuple>

#include "kuafu/engine/registries.h"
#include "kuafu/model/blocks.h"
#include "kuafu/oracle/transformer.h"
#include "kuafu/parallel/pipeline/schedules.h"
#include "kuafu/parallel/sequence/interface.h"
#include "kuafu/parallel/tensor/interface.h"
#include "kuafu/tensor/differentiable.h"

// Choices that are right as long as everything is small, for the conformance kit to find out.
namespace kuafu::tests {

constexpr int64_t kSmallest = 64;     ///< elements of a shard from which they are wrong
constexpr double kSlightly = 1.0001;  ///< factor of a result

/// 1D whose products are wrong where dim `dim` of the shard of x (B, S, K) has so many elements or more.
class From64Scheme : public TensorParallel {
 public:
  From64Scheme(const Mesh& mesh, int64_t dim, int64_t smallest)
      : TensorParallel(mesh), right_(make_megatron_1d(mesh)), dim_(dim), smallest_(smallest) {}
  Layout activation(Stream s) const override { return right_->activation(s); }
  Layout weight(Role r) const override { return right_->weight(r); }
  Tensor forward(const Tensor& x, const Tensor& w, Role r) const override {
    const Tensor y = right_->forward(x, w, r);
    return x.size(dim_) >= smallest_ ? y.mul_(kSlightly) : y;
  }
  Tensor input_grad(const Tensor& dy, const Tensor& w, Role r) const override {
    return right_->input_grad(dy, w, r);
  }
  Tensor weight_grad(const Tensor& x, const Tensor& dy, Role r) const override {
    return right_->weight_grad(x, dy, r);
  }
  Cost cost(const LinearShape& s, Role r) const override { return right_->cost(s, r); }

 private:
  std::unique_ptr<TensorParallel> right_;
  int64_t dim_, smallest_;
};

/// 1D whose weight gradient is a tenth too large in one type of half precision.
class OffInHalf : public TensorParallel {
 public:
  OffInHalf(const Mesh& mesh, at::ScalarType type)
      : TensorParallel(mesh), right_(make_megatron_1d(mesh)), type_(type) {}
  Layout activation(Stream s) const override { return right_->activation(s); }
  Layout weight(Role r) const override { return right_->weight(r); }
  Tensor forward(const Tensor& x, const Tensor& w, Role r) const override {
    return right_->forward(x, w, r);
  }
  Tensor input_grad(const Tensor& dy, const Tensor& w, Role r) const override {
    return right_->input_grad(dy, w, r);
  }
  Tensor weight_grad(const Tensor& x, const Tensor& dy, Role r) const override {
    const Tensor g = right_->weight_grad(x, dy, r);
    return x.scalar_type() == type_ ? g * 1.1 : g;
  }
  Cost cost(const LinearShape& s, Role r) const override { return right_->cost(s, r); }

 private:
  std::unique_ptr<TensorParallel> right_;
  at::ScalarType type_;
};

/// 1D, right, with an op in it that nothing books.
class Unbooked : public OffInHalf {
 public:
  explicit Unbooked(const Mesh& mesh) : OffInHalf(mesh, at::kComplexDouble) {}
  Tensor weight_grad(const Tensor& x, const Tensor& dy, Role r) const override {
    const Tensor g = OffInHalf::weight_grad(x, dy, r);
    at::cumsum(g.flatten(), 0);
    return g;
  }
};

/// A ring whose result is wrong where dim `dim` of the shard of q (B, N, S, D) has so many elements or
/// more.
class From64Ring : public AttentionParallel {
 public:
  From64Ring(const AttentionSetup& setup, int64_t dim, int64_t smallest)
      : right_(make_ring_attention(setup)), dim_(dim), smallest_(smallest) {}
  Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v, Mask mask) const override {
    const Tensor out = right_->attend(q, k, v, mask);
    return q.size(dim_) >= smallest_ ? out * kSlightly : out;
  }
  AttentionCost cost(const AttentionShape& s) const override { return right_->cost(s); }

 private:
  std::unique_ptr<AttentionParallel> right_;
  int64_t dim_, smallest_;
};

/// GPT's layer, off where the stream (B, S, H) has a dim of 64 elements or more: in its values, or in
/// their gradients alone.
enum class Off : uint8_t { kValues, kGradients };
class From64Block : public TransformerBlock {
 public:
  From64Block(const Context& ctx, const ModelPlan& plan, int64_t index, Off off, int64_t dim,
              int64_t smallest)
      : TransformerBlock(ctx, plan, index), off_(off), dim_(dim), smallest_(smallest) {}
  Flow forward(const Flow& in, const Side& side) override {
    const Flow out = TransformerBlock::forward(in, side);
    if (in[0].size(dim_) < smallest_) return out;
    if (off_ == Off::kValues) return {out[0] * kSlightly};
    return differentiable(
        out,
        [](const Tensors& x) -> ForwardResult {
          return {{x[0].clone()}, {}};
        },
        [](const Tensors&, const Tensors& grads, const std::vector<bool>&) -> Tensors {
          return {grads[0] * 1.01};
        });
  }

 private:
  Off off_;
  int64_t dim_, smallest_;
};

/// Of its layers those from `first` on are off.
inline MakeModel from_64_model(Off off, int64_t dim, int64_t smallest = kSmallest,
                               int64_t first = 0) {
  return [off, dim, smallest, first](const ModelPlan& plan, const Context& ctx) {
    check_block(ctx, plan);
    Model model;
    auto embedding = std::make_unique<Embedding>(ctx, plan);
    Param& table = embedding->table();
    model.blocks.push_back(std::move(embedding));
    for (int64_t i = 0; i < plan.layers; ++i) {
      const int64_t from = i < first ? std::numeric_limits<int64_t>::max() : smallest;
      model.blocks.push_back(std::make_unique<From64Block>(ctx, plan, i, off, dim, from));
    }
    model.blocks.push_back(std::make_unique<Head>(ctx, plan, table));
    model.loss_axes = loss_axes(ctx, Stream::kInner);
    return model;
  };
}

/// 1F1B without its last micro-batch, where it has `least` or more.
template <int least>
pipeline::Timetable drops_one(pipeline::PipeShape s) {
  pipeline::Timetable t = pipeline::one_f_one_b(s);
  if (s.micro_batches < least) return t;
  for (pipeline::Row& row : t) {
    std::erase_if(row,
                  [&](const pipeline::Action& a) { return a.micro_batch == s.micro_batches - 1; });
  }
  return t;
}

/// 1F1B whose first rank, with more than 4 micro-batches, wants the fifth gradient before it has sent
/// the fifth forward.
inline pipeline::Timetable swaps_two(pipeline::PipeShape s) {
  pipeline::Timetable t = pipeline::one_f_one_b(s);
  if (s.micro_batches <= 4) return t;
  pipeline::Row& row = t[0];
  const auto at = [&](pipeline::Op op) {
    return std::find(row.begin(), row.end(), pipeline::Action{op, 0, 4});
  };
  std::iter_swap(at(pipeline::Op::kForward), at(pipeline::Op::kBackward));
  return t;
}

inline void add_from_64(Registries& all) {  // names end in the length from which they are wrong
  const auto line = [](int64_t size, int64_t) -> std::vector<Axis> { return {{"tensor", size}}; };
  struct Wrong {
    const char* name;
    int64_t dim, smallest;
  };
  for (const Wrong w : {Wrong{"1d-batch-64", 0, kSmallest},
                        {"1d-tokens-64", 1, kSmallest},
                        {"1d-width-64", 2, kSmallest},
                        {"1d-batch-512", 0, 512},
                        {"1d-tokens-2048", 1, 2048},
                        {"1d-width-1024", 2, 1024}}) {
    const TensorMode mode{w.name, "1d, wrong where a dim is long", line};
    all.tensor.add(mode.name, mode.summary, TensorScheme{mode, [w](const Mesh& mesh) {
                                                           return std::make_unique<From64Scheme>(
                                                               mesh, w.dim, w.smallest);
                                                         }});
  }
  for (const auto& [name, type] :
       {std::pair{"1d-off-in-bf16", at::kBFloat16}, {"1d-off-in-f16", at::kHalf}}) {
    const TensorMode mode{name, "1d, wrong in half precision", line};
    all.tensor.add(mode.name, mode.summary, TensorScheme{mode, [type = type](const Mesh& mesh) {
                                                           return std::make_unique<OffInHalf>(mesh,
                                                                                              type);
                                                         }});
  }
  const TensorMode unbooked{"1d-unbooked", "1d, with an op that nothing books", line};
  all.tensor.add(
      unbooked.name, unbooked.summary,
      TensorScheme{unbooked, [](const Mesh& mesh) { return std::make_unique<Unbooked>(mesh); }});
  for (const Wrong w : {Wrong{"ring-batch-64", 0, kSmallest},
                        {"ring-heads-64", 1, kSmallest},
                        {"ring-tokens-64", 2, kSmallest},
                        {"ring-head-64", 3, kSmallest},
                        {"ring-batch-512", 0, 512},
                        {"ring-tokens-512", 2, 512}}) {
    all.sequence.add(w.name, "ring, wrong where a dim is long", [w](const AttentionSetup& setup) {
      return std::make_unique<From64Ring>(setup, w.dim, w.smallest);
    });
  }
  for (const auto& [name, dim, smallest, first] : {std::tuple{"gpt-batch-64", 0, kSmallest, 0},
                                                   {"gpt-tokens-64", 1, kSmallest, 0},
                                                   {"gpt-width-64", 2, kSmallest, 0},
                                                   {"gpt-width-300", 2, int64_t{300}, 0},
                                                   {"gpt-layer-4", 2, int64_t{1}, 3}}) {
    all.models.add(name, "GPT, wrong where something is large",
                   from_64_model(Off::kValues, dim, smallest, first));
    all.oracles.add(name, "GPT", [](const ModelPlan& plan, uint64_t seed) {
      return std::make_unique<oracle::Gpt>(plan, seed);
    });
  }
  all.models.add("gpt-slope-64", "GPT, wrong gradients from a width of 64 on; it brings no oracle",
                 from_64_model(Off::kGradients, 2));
  const auto all_of_them = [](pipeline::PipeShape s, int) { return s.micro_batches; };
  all.schedules.add("drops-one", "1F1B that drops a micro-batch beyond 4",
                    {drops_one<5>, 1, all_of_them});
  all.schedules.add("drops-of-64", "1F1B that drops a micro-batch from 64 on",
                    {drops_one<kSmallest>, 1, all_of_them});
  all.schedules.add("swaps-two", "1F1B that runs two in a wrong order beyond 4",
                    {swaps_two, 1, all_of_them});
  all.schedules.add("keeps-more", "GPipe that declares less than it keeps",
                    {pipeline::gpipe, 1,
                     [](pipeline::PipeShape s, int) { return std::min(4, s.micro_batches); }});
  all.schedules.add("keeps-silent", "GPipe that does not declare what it keeps",
                    {pipeline::gpipe, 1});
}

}  // namespace kuafu::tests
