// SPDX-License-Identifier: Apache-2.0
#include <numeric>

#include "kuafu/meter/book.h"
#include "kuafu/parallel/sequence/sight.h"
#include "kuafu/tensor/differentiable.h"
#include "kuafu/tensor/ops.h"

namespace kuafu {
namespace {

class LocalAttention : public DocumentAttention {
 public:
  explicit LocalAttention(Recompute recompute)
      : is_selective_(recompute == Recompute::kSelective) {}

  Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v,
                const Sight& sight) const override {
    const bool again = is_selective_;
    const Forward forward = [&](const Tensors& in) -> ForwardResult {
      auto [out, lse] = ops::attention(in[0], in[1], in[2], sight.is_causal(), mask(sight, q));
      if (again) return {{out}, {in[0], in[1], in[2]}};
      return {{out}, {in[0], in[1], in[2], out, lse}};
    };
    const Backward backward = [sight, again](const Tensors& saved, const Tensors& grads,
                                             const std::vector<bool>&) -> Tensors {
      const Tensor &q = saved[0], &k = saved[1], &v = saved[2], hiding = mask(sight, q);
      const bool causal = sight.is_causal();
      ops::AttentionOut out;
      if (again) {
        const RecomputeScope scope;
        out = ops::attention(q, k, v, causal, hiding);
      } else {
        out = {saved[3], saved[4]};
      }
      const auto [dq, dk, dv] = ops::attention_backward(grads[0], q, k, v, out, causal, hiding);
      return {dq, dk, dv};
    };
    return differentiable({q, k, v}, forward, backward)[0];
  }

 private:
  static Tensor mask(const Sight& sight, const Tensor& q) {
    return sight.inside(q.size(2), q.scalar_type());
  }

  bool is_selective_;
};

}  // namespace

Tensor Sight::inside(int64_t positions, at::ScalarType type) const {
  if (!first.defined()) return {};
  std::vector<int64_t> all(static_cast<size_t>(positions));
  std::iota(all.begin(), all.end(), int64_t{0});
  return between(all, all, type);
}

Tensor AttentionParallel::attend_documents(const Tensor&, const Tensor&, const Tensor&,
                                           const Tensor&) const {
  KUAFU_CHECK(false, "attention that does not know documents was given some");
}

std::unique_ptr<AttentionParallel> make_local_attention(Recompute recompute) {
  return std::make_unique<LocalAttention>(recompute);
}

}  // namespace kuafu
