// SPDX-License-Identifier: Apache-2.0
#include "kuafu/meter/book.h"
#include "kuafu/parallel/sequence/interface.h"
#include "kuafu/tensor/differentiable.h"
#include "kuafu/tensor/ops.h"

namespace kuafu {
namespace {

class LocalAttention : public AttentionParallel {
 public:
  explicit LocalAttention(Recompute recompute)
      : is_selective_(recompute == Recompute::kSelective) {}

  Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v, Mask mask) const override {
    const bool causal = mask == Mask::kCausal, again = is_selective_;
    const Forward forward = [&](const Tensors& in) -> ForwardResult {
      auto [out, lse] = ops::attention(in[0], in[1], in[2], causal);
      if (again) return {{out}, {in[0], in[1], in[2]}};
      return {{out}, {in[0], in[1], in[2], out, lse}};
    };
    const Backward backward = [causal, again](const Tensors& saved, const Tensors& grads,
                                              const std::vector<bool>&) -> Tensors {
      const Tensor &q = saved[0], &k = saved[1], &v = saved[2];
      ops::AttentionOut out;
      if (again) {
        const RecomputeScope scope;
        out = ops::attention(q, k, v, causal);
      } else {
        out = {saved[3], saved[4]};
      }
      const auto [dq, dk, dv] = ops::attention_backward(grads[0], q, k, v, out, causal);
      return {dq, dk, dv};
    };
    return differentiable({q, k, v}, forward, backward)[0];
  }

 private:
  bool is_selective_;
};

}  // namespace

std::unique_ptr<AttentionParallel> make_local_attention(Recompute recompute) {
  return std::make_unique<LocalAttention>(recompute);
}

}  // namespace kuafu
