// SPDX-License-Identifier: Apache-2.0
#include "kuafu/kernels/card.h"

namespace kuafu::kernels::card {

namespace {
constexpr int kNotBuilt = 100;  // cudaErrorNoDevice
}

bool is_built() { return false; }
int adam(Decay, const AdamCall&, const AdamWFactors&, void*) { return kNotBuilt; }
int sgd(Momentum, const SgdCall&, const SgdFactors&, void*) { return kNotBuilt; }
int sum_of_squares(Element, const void*, int64_t, double*, double*, void*) { return kNotBuilt; }
int cross_entropy_stats(const Logits&, void*, void*, void*, void*) { return kNotBuilt; }
int cross_entropy_backward(const Logits&, const void*, const void*, double, void*, void*) {
  return kNotBuilt;
}
int lamb_norms(const LayerRun&, int64_t, const AdamCall&, const LambFactors&, double*, double*,
               void*) {
  return kNotBuilt;
}
int lamb(const LayerRun&, const AdamCall&, const LambFactors&, const double*, void*) {
  return kNotBuilt;
}
int lars_norms(const LayerRun&, int64_t, const SgdCall&, const SgdFactors&, double*, double*,
               void*) {
  return kNotBuilt;
}
int lars(const LayerRun&, const SgdCall&, const SgdFactors&, const double*, void*) {
  return kNotBuilt;
}
int split_heads(const Heads&, const void*, const HeadPart*, void*) { return kNotBuilt; }
int join_heads(const Heads&, void*, const HeadPart*, void*) { return kNotBuilt; }
int add_bias(const RowMatrix&, void*, const void*, void*) { return kNotBuilt; }
int sum_rows(const RowMatrix&, const void*, void*, void*, void*) { return kNotBuilt; }
int layer_norm(const RowMatrix&, const LayerNorm&, void*) { return kNotBuilt; }
int layer_norm_backward(const RowMatrix&, const LayerNormBackward&, void*) { return kNotBuilt; }

}  // namespace kuafu::kernels::card
