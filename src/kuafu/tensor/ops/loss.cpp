// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
#include <tuple>

#include "kuafu/tensor/ops.h"
#include "kuafu/tensor/ops/card.h"
#include "kuafu/tensor/ops/library.h"

namespace kuafu {
namespace {

using Three = std::tuple<Tensor, Tensor, Tensor>;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
/// Elements of logits handled at a time on a CPU, so that a temporary stays in cache.
constexpr int64_t kBlock = 64 * 1024;

/// Columns of my shard [first, first + n) that are no padding.
int64_t real_columns(const Tensor& logits, int64_t first, int64_t vocab) {
  return std::clamp<int64_t>(vocab - first, 0, logits.size(-1));
}

/// Calls f(offset, length) for blocks of rows: few on a GPU, cache-sized on a CPU.
template <class F>
void for_blocks(const Tensor& rows, F f) {
  const int64_t step = rows.is_cuda()
                           ? rows.size(0)
                           : std::max<int64_t>(1, kBlock / std::max<int64_t>(1, rows.size(1)));
  for (int64_t i = 0; i < rows.size(0); i += step) f(i, std::min(step, rows.size(0) - i));
}

/// Where each row's target is in my columns: its index (0 where it is not) and whether it is.
std::pair<Tensor, Tensor> locate(const Tensor& targets, int64_t first, int64_t columns) {
  const Tensor index = targets.reshape(-1) - first;
  const Tensor is_mine = index.ge(0).logical_and_(index.lt(columns));
  return {at::where(is_mine, index, at::zeros({}, index.options())), is_mine};
}

kernels::card::Logits on_card(const Tensor& logits, const Tensor& targets, int64_t first,
                              int64_t vocab) {
  const int64_t width = logits.size(-1);
  return {.kind = kind_of(logits),
          .x = logits.const_data_ptr(),
          .targets = targets.const_data_ptr<int64_t>(),
          .rows = targets.numel(),
          .width = width,
          .columns = real_columns(logits, first, vocab),
          .first = first,
          .vocab = vocab};
}

Three stats_on_card(const Tensor& logits, const Tensor& targets, int64_t first, int64_t vocab) {
  const Tensor x = logits.contiguous(), wanted = targets.contiguous();
  const Tensor max = at::empty(targets.sizes(), logits.options().dtype(accumulator(logits)));
  const Tensor sumexp = at::empty_like(max), target = at::empty_like(max);
  check_started(kernels::card::cross_entropy_stats(
                    on_card(x, wanted, first, vocab), max.mutable_data_ptr(),
                    sumexp.mutable_data_ptr(), target.mutable_data_ptr(), card_stream_of(x)),
                "cross entropy");
  return {max, sumexp, target};
}

Three stats_kernel(const Tensor& logits, const Tensor& targets, int64_t first, int64_t vocab) {
  if (has_card_kernel(logits)) return stats_on_card(logits, targets, first, vocab);
  const Tensor rows = logits.reshape({-1, logits.size(-1)});
  const auto options = logits.options().dtype(accumulator(logits));
  const Tensor max = at::full({rows.size(0)}, -kInfinity, options);
  const Tensor sumexp = at::zeros({rows.size(0)}, options);
  const Tensor target = at::zeros({rows.size(0)}, options);
  const int64_t columns = real_columns(logits, first, vocab);
  if (columns > 0) {
    const Tensor real = rows.narrow(1, 0, columns);
    for_blocks(rows, [&](int64_t at, int64_t n) {
      const Tensor x = real.narrow(0, at, n).to(options.dtype());
      const Tensor top = x.amax(1, true);
      max.narrow(0, at, n).copy_(top.squeeze(1));
      sumexp.narrow(0, at, n).copy_((x - top).exp_().sum(1));
    });
    const auto [index, is_mine] = locate(targets, first, columns);
    target.copy_(real.gather(1, index.unsqueeze(1)).squeeze(1)).mul_(is_mine);
  }
  // An ignored row adds nothing to the loss: log(1) + 0 - 0, the one counted by the first shard.
  const Tensor ignored = targets.reshape(-1).eq(-1);
  max.masked_fill_(ignored, 0);
  sumexp.masked_fill_(ignored, first == 0 ? 1 : 0);
  target.masked_fill_(ignored, 0);
  const auto shape = targets.sizes();
  return {max.view(shape), sumexp.view(shape), target.view(shape)};
}

Three stats_cpu(const Tensor& logits, const Tensor& targets, int64_t first, int64_t vocab) {
  const bool is_legal = targets.numel() == 0 || (targets.min().item<int64_t>() >= -1 &&
                                                 targets.max().item<int64_t>() < vocab);
  KUAFU_REQUIRE(is_legal, "a target is outside [0, ", vocab, ") and is not -1 (ignored)");
  return stats_kernel(logits, targets, first, vocab);
}

Three stats_meta(const Tensor& logits, const Tensor& targets, int64_t, int64_t) {
  const auto options = logits.options().dtype(accumulator(logits));
  return {at::empty(targets.sizes(), options), at::empty(targets.sizes(), options),
          at::empty(targets.sizes(), options)};
}

Tensor loss_backward_kernel(const Tensor& logits, const Tensor& targets, const Tensor& max,
                            const Tensor& sumexp, double scale, int64_t first, int64_t vocab) {
  if (has_card_kernel(logits)) {
    const Tensor x = logits.contiguous(), wanted = targets.contiguous(), dx = at::empty_like(x);
    check_started(kernels::card::cross_entropy_backward(on_card(x, wanted, first, vocab),
                                                        max.contiguous().const_data_ptr(),
                                                        sumexp.contiguous().const_data_ptr(), scale,
                                                        dx.mutable_data_ptr(), card_stream_of(x)),
                  "the gradient of cross entropy");
    return dx;
  }
  const Tensor rows = logits.reshape({-1, logits.size(-1)});
  const Tensor out = at::empty(rows.sizes(), rows.options());
  const int64_t columns = real_columns(logits, first, vocab);
  if (columns < rows.size(1)) out.narrow(1, columns, rows.size(1) - columns).zero_();
  if (columns == 0) return out.view(logits.sizes());
  const Tensor top = max.reshape({-1, 1}), ignored = targets.reshape({-1, 1}).eq(-1);
  const Tensor factor = at::full_like(sumexp, scale).reshape({-1, 1}).div_(sumexp.reshape({-1, 1}));
  const auto [index, is_mine] = locate(targets, first, columns);
  const Tensor onehot = is_mine.to(sumexp.scalar_type()).mul_(-scale).unsqueeze(1);
  for_blocks(rows, [&](int64_t at, int64_t n) {
    const Tensor x = rows.narrow(0, at, n).narrow(1, 0, columns);
    const Tensor y = out.narrow(0, at, n).narrow(1, 0, columns);
    const bool is_wide = y.scalar_type() == factor.scalar_type();
    Tensor g = is_wide ? y : at::empty(y.sizes(), factor.options());
    at::sub_out(g, x, top.narrow(0, at, n)).exp_().mul_(factor.narrow(0, at, n));
    // An ignored row's own maximum is not known, so that exp of its logits may be infinite.
    g.masked_fill_(ignored.narrow(0, at, n), 0);
    g.scatter_add_(1, index.narrow(0, at, n).unsqueeze(1), onehot.narrow(0, at, n));
    if (!is_wide) y.copy_(g);
  });
  return out.view(logits.sizes());
}

Tensor loss_backward_meta(const Tensor& logits, const Tensor&, const Tensor&, const Tensor&, double,
                          int64_t, int64_t) {
  return at::empty(logits.sizes(), logits.options());
}

void check_targets(const Tensor& logits, const Tensor& targets) {
  KUAFU_CHECK(targets.scalar_type() == at::kLong && logits.dim() == targets.dim() + 1,
              "cross entropy of logits ", to_string(shape_of(logits)), " and targets ",
              to_string(shape_of(targets)), " of type ", targets.scalar_type());
}

}  // namespace

void add_loss_ops(OpLibrary& lib) {
  lib.add(
      "cross_entropy_stats(Tensor logits, Tensor targets, int first, int vocab) -> "
      "(Tensor, Tensor, Tensor)",
      "cross_entropy_stats", &stats_cpu, &stats_kernel, &stats_meta);
  lib.add(
      "cross_entropy_backward(Tensor logits, Tensor targets, Tensor max, Tensor sumexp, "
      "float scale, int first, int vocab) -> Tensor",
      "cross_entropy_backward", &loss_backward_kernel, &loss_backward_kernel, &loss_backward_meta);
}

namespace ops {

LossStats cross_entropy_stats(const Tensor& logits, const Tensor& targets, int64_t first,
                              int64_t vocab) {
  static const auto op =
      find_op<Three(const Tensor&, const Tensor&, int64_t, int64_t)>("cross_entropy_stats");
  check_targets(logits, targets);
  const OpScope scope;
  const auto [max, sumexp, target] = op.call(logits, targets, first, vocab);
  for (const Tensor& t : {max, sumexp, target}) scope.keep(t);
  scope.work(0, bytes_of(logits, targets, max, sumexp, target));
  return {max, sumexp, target};
}

Tensor cross_entropy_backward(const Tensor& logits, const Tensor& targets, const Tensor& max,
                              const Tensor& sumexp, double scale, int64_t first, int64_t vocab) {
  static const auto op = find_op<Tensor(const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                        double, int64_t, int64_t)>("cross_entropy_backward");
  check_targets(logits, targets);
  const OpScope scope;
  const Tensor g = scope.keep(op.call(logits, targets, max, sumexp, scale, first, vocab));
  scope.work(0, bytes_of(logits, targets, max, sumexp, g));
  return g;
}

}  // namespace ops
}  // namespace kuafu
