// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "kuafu/kernels/kernels.h"
#include "kuafu/tensor/ops.h"
#include "kuafu/tensor/ops/library.h"

namespace kuafu {
namespace {

constexpr int64_t kLow32 = 0xffffffff;

uint64_t mix(uint64_t x) {  // splitmix64: every input bit reaches every output bit
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

/// Words below it are dropped: a share that rounds to 1 drops all but one word of 2^32.
uint32_t threshold_of(double p) {
  return static_cast<uint32_t>(std::min(std::llround(p * 0x1.0p32), 0xffffffffLL));
}

/// Each step of each site has a stream of its own.
kernels::DropoutStream stream_of(double p, int64_t seed, int64_t site, int64_t step) {
  return {static_cast<uint64_t>(seed),
          mix(static_cast<uint64_t>(site) ^ mix(static_cast<uint64_t>(step))), threshold_of(p)};
}

template <class T>
void drop_rows(const Tensor& x, const Tensor& y, double p, kernels::DropoutStream stream,
               at::IntArrayRef global, at::IntArrayRef offset) {
  const int64_t batch = x.size(0), sequence = x.size(1), hidden = x.size(2);
  const T scale = static_cast<T>(1 / (1 - p));
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t s = 0; s < sequence; ++s) {
      const int64_t row = (b + offset[0]) * global[1] + s + offset[1];
      const int64_t at = (b * sequence + s) * hidden;
      kernels::dropout(x.const_data_ptr<T>() + at, y.mutable_data_ptr<T>() + at, hidden,
                       static_cast<uint64_t>(row * global[2] + offset[2]), scale, stream);
    }
  }
}

Tensor dropout_cpu(const Tensor& x, double p, int64_t seed, int64_t site, int64_t step,
                   at::IntArrayRef global, at::IntArrayRef offset) {
  const Tensor in = widened(x), y = at::empty(x.sizes(), in.options());
  const kernels::DropoutStream stream = stream_of(p, seed, site, step);
  if (x.scalar_type() == at::kDouble) {
    drop_rows<double>(in, y, p, stream, global, offset);
  } else {
    drop_rows<float>(in, y, p, stream, global, offset);
  }
  return y.to(x.scalar_type());
}

/// Philox4x32-10 on tensors of 32-bit words kept in i64: products wrap, shifts are masked.
Tensor philox_word(const Tensor& element, kernels::DropoutStream stream) {
  const Tensor block = element.bitwise_right_shift(2);
  std::array<Tensor, 4> c = {
      block.bitwise_and(kLow32), block.bitwise_right_shift(32),
      at::full({}, static_cast<int64_t>(stream.site & 0xffffffff), element.options()),
      at::full({}, static_cast<int64_t>(stream.site >> 32), element.options())};
  uint32_t k0 = static_cast<uint32_t>(stream.seed), k1 = static_cast<uint32_t>(stream.seed >> 32);
  const auto high = [](const Tensor& p) { return p.bitwise_right_shift(32).bitwise_and_(kLow32); };
  for (int round = 0; round < 10; ++round) {
    const Tensor p0 = c[0] * int64_t{0xD2511F53}, p1 = c[2] * int64_t{0xCD9E8D57};
    c = {high(p1).bitwise_xor(c[1]).bitwise_xor(static_cast<int64_t>(k0)), p1.bitwise_and(kLow32),
         high(p0).bitwise_xor(c[3]).bitwise_xor(static_cast<int64_t>(k1)), p0.bitwise_and(kLow32)};
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  const Tensor word = element.bitwise_and(3);
  Tensor bits = c[0].expand(element.sizes());
  for (int64_t w = 1; w < 4; ++w) bits = at::where(word.eq(w), c[static_cast<size_t>(w)], bits);
  return bits;
}

Tensor dropout_plain(const Tensor& x, double p, int64_t seed, int64_t site, int64_t step,
                     at::IntArrayRef global, at::IntArrayRef offset) {
  const auto i64 = x.options().dtype(at::kLong);
  const auto index = [&](int64_t d) {
    return at::arange(offset[static_cast<size_t>(d)], offset[static_cast<size_t>(d)] + x.size(d),
                      i64);
  };
  const Tensor row = index(0).unsqueeze(1) * global[1] + index(1).unsqueeze(0);
  const Tensor element = row.unsqueeze(2) * global[2] + index(2);
  const kernels::DropoutStream stream = stream_of(p, seed, site, step);
  const Tensor stays = philox_word(element, stream).ge(static_cast<int64_t>(stream.threshold));
  return at::where(stays, widened(x) * (1 / (1 - p)),
                   at::zeros({}, x.options().dtype(accumulator(x))))
      .to(x.scalar_type());
}

Tensor dropout_meta(const Tensor& x, double, int64_t, int64_t, int64_t, at::IntArrayRef,
                    at::IntArrayRef) {
  return at::empty(x.sizes(), x.options());
}

using DropoutOp = Tensor(const Tensor&, double, int64_t, int64_t, int64_t, at::IntArrayRef,
                         at::IntArrayRef);

}  // namespace

void add_dropout_ops(OpLibrary& lib) {
  lib.add(
      "dropout(Tensor x, float p, int seed, int site, int step, int[] extents, int[] offset) -> "
      "Tensor",
      "dropout", &dropout_cpu, &dropout_plain, &dropout_meta);
}

namespace ops {

Tensor dropout(const Tensor& x, double p, const DropoutKey& key) {
  static const auto op = find_op<DropoutOp>("dropout");
  KUAFU_REQUIRE(p >= 0 && p < 1, "dropout probability ", p, "; allowed are 0 <= p < 1");
  KUAFU_CHECK(x.dim() == 3 && key.global.size() == 3 && key.offset.size() == 3, "dropout of x ",
              to_string(shape_of(x)), " in ", to_string(key.global));
  for (size_t d = 0; d < 3; ++d) {
    KUAFU_CHECK(key.offset[d] >= 0 && key.offset[d] + x.sizes()[d] <= key.global[d], "a shard ",
                to_string(shape_of(x)), " at ", to_string(key.offset), " leaves ",
                to_string(key.global));
  }
  const OpScope scope;
  const Tensor y =
      scope.keep(op.call(x, p, static_cast<int64_t>(key.seed), static_cast<int64_t>(key.site),
                         key.step, key.global, key.offset));
  scope.work(0, bytes_of(x, y));
  return y;
}

}  // namespace ops
}  // namespace kuafu
