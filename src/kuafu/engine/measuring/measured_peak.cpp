// SPDX-License-Identifier: Apache-2.0
#include "kuafu/engine/measuring/measured_peak.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include "kuafu/meter/book.h"
#include "kuafu/tensor/tensor.h"

namespace kuafu {
namespace {

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// How a product's factors lie in memory. A library may be several times faster for some than for
/// others: in bf16 on a processor without such instructions LibTorch's CPU products reach from 1 to
/// 17 GFLOP/s, and a training step has all of them (y = x W, dx = dy W^T, dW = x^T dy).
enum class Layout : uint8_t { kPlain, kLeftTransposed, kRightTransposed };
constexpr std::array<Layout, 3> kLayouts = {Layout::kPlain, Layout::kLeftTransposed,
                                            Layout::kRightTransposed};

/// Square products of one extent.
class Products {
 public:
  Products(int64_t n, Layout layout, const at::TensorOptions& options)
      : n_(n),
        a_(at::full({n, n}, 0.5, options)),
        b_(at::full({n, n}, 0.5, options)),
        c_(at::empty({n, n}, options)) {
    if (layout == Layout::kLeftTransposed) a_ = a_.t();
    if (layout == Layout::kRightTransposed) b_ = b_.t();
  }

  double flops() const { return 2.0 * static_cast<double>(n_) * static_cast<double>(n_ * n_); }
  /// Seconds of one.
  double time() {
    const double start = seconds_now();
    at::mm_out(c_, a_, b_);
    if (!c_.is_cpu()) c_.select(0, 0).select(0, 0).cpu();  // a device works on until it is asked
    return seconds_now() - start;
  }

 private:
  int64_t n_;
  Tensor a_, b_, c_;
};

/// FLOP/s of the extent that is fastest in one product, of those that do not take long.
double rate_of(Layout layout, const at::TensorOptions& options, Communicator& world) {
  constexpr double kLongEnough = 0.004, kMeasured = 0.05;  // seconds
  constexpr int64_t kSmallest = 64;
  const int64_t largest = options.device().is_cpu() ? 2048 : 16384;  // a card needs more at once
  double fastest = 0;
  int64_t n = 0;
  for (int64_t tried = kSmallest; tried <= largest; tried *= 2) {
    Products some(tried, layout, options);
    some.time();
    const double seconds = some.time();
    if (some.flops() / seconds > fastest) {
      fastest = some.flops() / seconds;
      n = tried;
    }
    if (seconds > kLongEnough) break;
  }
  Products products(n, layout, options);
  world.barrier();  // all at once: cores and memory are shared
  double seconds = 0;
  int64_t count = 0;
  for (; seconds < kMeasured; ++count) seconds += products.time();
  return products.flops() * static_cast<double>(count) / seconds;
}

}  // namespace

double measured_peak(const Plan& plan, at::Device device, Communicator& world) {
  const BookScope unbooked(nullptr);
  const at::NoGradGuard no_grad;
  at::init_num_threads();  // as the engine does
  const auto options = at::TensorOptions(scalar_type(plan.model.dtype)).device(device);
  std::array<double, kLayouts.size()> rates{};
  for (size_t i = 0; i < rates.size(); ++i) rates[i] = rate_of(kLayouts[i], options, world);
  if (world.size() > 1)
    world.all_reduce({rates.data(), std::ssize(rates), DType::kF64}, ReduceOp::kSum).wait_host();
  return *std::ranges::max_element(rates);
}

}  // namespace kuafu
