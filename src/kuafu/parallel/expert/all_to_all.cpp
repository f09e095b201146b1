// SPDX-License-Identifier: Apache-2.0
//
// Experts by all-to-all.                                 [GShard, arXiv 2006.16668, section 3.2]
//
// Picture (expert n = 2, E = 4). Each rank fills the slots of all experts for its own samples, then
// slots travel to the rank that has the expert.
//
//   rank 0, samples a:  slots of expert  0 1 2 3       rank 0, experts 0 1:  a0 b0  a1 b1
//   rank 1, samples b:                   0 1 2 3       rank 1, experts 2 3:  a2 b2  a3 b3
//
// Math, for expert f and its slots c of sample b:
//   dispatch   D[f, b, c] = X[b, token(b, f, c)], 0 where the slot is empty
//   combine    Y[b, s]    = sum over the slots with token s of gate(b, f, c) expert_f(D[f, b, c])
//   Where axes of sp ranks shard the sequence, each rank fills the slots of its own tokens and
//   leaves the others zero; the sum of these parts is the whole, of which each rank keeps C / sp
//   slots. No expert row is computed twice, and no slot depends on the layout. Back again slots are
//   gathered.
//
// Cost, elements received per rank, |D| = E B C H: 2 (n-1)/n |D| / sp forward, the same backward;
//   over the sequence 2 (sp-1)/sp |D| forward, the same backward.

#include "kuafu/parallel/expert/interface.h"
#include "kuafu/tensor/collectives.h"
#include "kuafu/tensor/differentiable.h"
#include "kuafu/tensor/expert_ops.h"

namespace kuafu {
namespace {

constexpr int64_t kExpert = 0, kSample = 1, kSlot = 2;  // dims of (E, B, C, H)

Tensor fill(const Tensor& x, const Slots& slots) {
  const Forward forward = [&](const Tensors& in) -> ForwardResult {
    return {{ops::take_slots(in[0], slots.rows)}, {}};
  };
  const Backward backward = [rows = slots.rows, n = slots.num_rows](
                                const Tensors&, const Tensors& grads,
                                const std::vector<bool>&) -> Tensors {
    return {ops::sum_slots(grads[0], rows, n)};
  };
  return differentiable({x}, forward, backward)[0];
}

Tensor weighted_sum(const Tensor& filled, const Tensor& gates, const Slots& slots) {
  const Forward forward = [&](const Tensors& in) -> ForwardResult {
    return {{ops::combine(in[0], in[1], slots.rows, slots.num_rows)}, {in[0], in[1]}};
  };
  const Backward backward = [rows = slots.rows](const Tensors& saved, const Tensors& grads,
                                                const std::vector<bool>&) -> Tensors {
    const auto [dslots, dgates] = ops::combine_backward(grads[0], saved[0], saved[1], rows);
    return {dslots, dgates};
  };
  return differentiable({filled, gates}, forward, backward)[0];
}

class AllToAll : public ExpertParallel {
 public:
  explicit AllToAll(const Mesh& mesh) : mesh_(mesh) {}

  Tensor dispatch(const Tensor& x, const Slots& slots) const override {
    Tensor rows = fill(x, slots);
    for (const std::string& axis : slots.sequence) {
      rows = scatter_sum(rows, mesh_.comm(axis), kSlot);
    }
    return exchange(rows, mesh_.comm("expert"), kExpert, kSample);
  }

  Tensor combine(const Tensor& rows, const Tensor& gates, const Slots& slots) const override {
    Tensor filled = exchange(rows, mesh_.comm("expert"), kSample, kExpert);
    for (size_t i = slots.sequence.size(); i-- > 0;) {
      filled = gather(filled, mesh_.comm(slots.sequence[i]), kSlot);
    }
    return weighted_sum(filled, gates, slots);
  }

 private:
  const Mesh& mesh_;
};

}  // namespace

std::unique_ptr<ExpertParallel> make_all_to_all_experts(const Mesh& mesh) {
  return std::make_unique<AllToAll>(mesh);
}

}  // namespace kuafu
