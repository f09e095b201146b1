// SPDX-License-Identifier: Apache-2.0
#include "kuafu/engine/measured_peak.h"

#include <chrono>

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

/// Products of one extent.
class Products {
 public:
  Products(int64_t n, const at::TensorOptions& options)
      : n_(n), a_(at::full({n, n}, 0.5, options)), c_(at::empty({n, n}, options)) {}

  double flops() const { return 2.0 * static_cast<double>(n_) * static_cast<double>(n_ * n_); }
  /// Seconds of one.
  double time() {
    const double start = seconds_now();
    at::mm_out(c_, a_, a_);
    if (!c_.is_cpu()) c_.select(0, 0).select(0, 0).cpu();  // a device works on until it is asked
    return seconds_now() - start;
  }

 private:
  int64_t n_;
  Tensor a_, c_;
};

}  // namespace

double measured_peak(const Plan& plan, at::Device device, Communicator& world) {
  constexpr double kLongEnough = 0.004, kMeasured = 0.15;  // seconds
  constexpr int64_t kSmallest = 64, kLargest = 2048;
  const BookScope unbooked(nullptr);
  const at::NoGradGuard no_grad;
  at::init_num_threads();  // as the engine does
  const auto options = at::TensorOptions(scalar_type(plan.model.dtype)).device(device);
  // The first extent whose product takes a while: larger ones are no faster.
  int64_t n = kSmallest;
  while (true) {
    Products some(n, options);
    some.time();
    if (n == kLargest || some.time() > kLongEnough) break;
    n *= 2;
  }
  Products products(n, options);
  world.barrier();  // all at once: cores and memory are shared
  double seconds = 0, rate = 0;
  int64_t count = 0;
  for (; seconds < kMeasured; ++count) seconds += products.time();
  rate = products.flops() * static_cast<double>(count) / seconds;
  if (world.size() > 1) world.all_reduce({&rate, 1, DType::kF64}, ReduceOp::kSum).wait_host();
  return rate;
}

}  // namespace kuafu
