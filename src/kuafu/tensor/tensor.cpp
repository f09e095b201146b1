// SPDX-License-Identifier: Apache-2.0
#include "kuafu/tensor/tensor.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/AutogradState.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>

#include "kuafu/base/errors.h"
#include "kuafu/comm/worlds.h"
#include "kuafu/device/device.h"
#include "kuafu/meter/allocator.h"
#include "kuafu/meter/op_trace.h"
#include "kuafu/tensor/ops/library.h"

namespace kuafu {
namespace {

std::atomic<at::DeviceType> computes_on = at::kCPU;

/// Calls every function of a vector once. LibTorch hands them to MKL, which chooses the kernel of each at
/// its first call: of several threads that make it at once one may get that of low accuracy (MKL 2024.2,
/// pytorch/pytorch#188792). One fresh process in 20 of two thread ranks had a first loss 4e-6 off.
void choose_vector_kernels() {
  using Function = Tensor (*)(const Tensor&);
  constexpr Function kAll[] = {&at::exp,     &at::expm1,     &at::log,   &at::log1p, &at::log2,
                               &at::log10,   &at::sqrt,      &at::rsqrt, &at::tanh,  &at::sin,
                               &at::cos,     &at::tan,       &at::sinh,  &at::cosh,  &at::asin,
                               &at::acos,    &at::atan,      &at::erf,   &at::erfc,  &at::erfinv,
                               &at::sigmoid, &at::reciprocal};
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    const Tensor x = at::full({64}, 0.5, at::TensorOptions().dtype(type));
    for (const Function f : kAll) f(x);
    at::pow(x, 0.3);
    at::log_softmax(x, 0);
    at::softmax(x, 0);
  }
}

/// LibTorch's kernels for cards, which take half a second to load.
void load_cuda_kernels() {
  if (device::num_devices() == 0) throw Unavailable("no CUDA device: " + device::why_none());
  // By name: it lies beside the LibTorch that this process has.
  if (dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    throw Unavailable(text("LibTorch's CUDA kernels cannot be loaded: ", dlerror()));
  }
  install_cuda_allocator();
}

/// A rank's share of its card: what other streams did before comes first, and what it did comes
/// before whoever joins its thread.
class RankOnCard {
 public:
  RankOnCard() : card_(at::kCUDA), stream_(card_.getStreamFromGlobalPool(card_.getDevice())) {
    card_.synchronizeDevice(stream_.device_index());
    card_.exchangeStream(stream_);
    c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
  }
  // By its name: at the end of a thread LibTorch no longer knows which stream was current.
  ~RankOnCard() {
    try {
      card_.synchronizeStream(stream_);
    } catch (const std::exception&) {  // the card failed: whoever asks it next is told
    }
  }
  RankOnCard(const RankOnCard&) = delete;
  RankOnCard& operator=(const RankOnCard&) = delete;

 private:
  c10::impl::VirtualGuardImpl card_;
  c10::Stream stream_;
};

/// What each thread that is a rank sets for itself.
void start_tensor_rank() {
  at::init_num_threads();
  if (!compute_device().is_cuda()) return;
  static std::once_flag once;
  std::call_once(once, &load_cuda_kernels);
  thread_local std::unique_ptr<RankOnCard> mine;
  mine = nullptr;
  mine = std::make_unique<RankOnCard>();
}

}  // namespace

DType dtype_of(const Tensor& t) {
  switch (t.scalar_type()) {
    case at::kDouble:
      return DType::kF64;
    case at::kFloat:
      return DType::kF32;
    case at::kBFloat16:
      return DType::kBF16;
    case at::kHalf:
      return DType::kF16;
    case at::kLong:
      return DType::kI64;
    case at::kInt:
      return DType::kI32;
    case at::kByte:
      return DType::kU8;
    default:
      throw InternalError(text("element type ", t.scalar_type(), " has no DType"));
  }
}

at::ScalarType scalar_type(DType t) {
  switch (t) {
    case DType::kF64:
      return at::kDouble;
    case DType::kF32:
      return at::kFloat;
    case DType::kBF16:
      return at::kBFloat16;
    case DType::kF16:
      return at::kHalf;
    case DType::kI64:
      return at::kLong;
    case DType::kI32:
      return at::kInt;
    case DType::kU8:
      return at::kByte;
  }
  throw InternalError("unknown DType");
}

Shape shape_of(const Tensor& t) { return t.sizes().vec(); }

Buffer view(const Tensor& t) {
  KUAFU_CHECK(t.is_contiguous(), "only a contiguous tensor is a buffer; sizes ",
              to_string(shape_of(t)), ", strides ", to_string(t.strides().vec()));
  Buffer b;
  b.count = t.numel();
  b.dtype = dtype_of(t);
  if (t.is_meta()) {
    b.place = Place::kMeta;
    return b;
  }
  b.data = t.data_ptr();
  KUAFU_CHECK(b.data != nullptr || b.count == 0, "the storage of a ", to_string(shape_of(t)),
              " tensor is freed");
  if (t.is_cuda()) {
    const c10::impl::VirtualGuardImpl guard(c10::DeviceType::CUDA);
    b.place = Place::kDevice;
    b.stream = guard.getStream(t.device()).native_handle();
  } else {
    KUAFU_CHECK(t.is_cpu(), "no place for device ", t.device());
  }
  return b;
}

void initialise_tensors() {
  static std::once_flag once;
  std::call_once(once, [] {
    at::set_num_threads(1);
    choose_vector_kernels();
    install_allocators();
    install_op_watch();
    // The number is each thread's own, and LibTorch tells it to MKL at a thread's first parallel loop:
    // until then its products took all cores, which adds large ones up in another order.
    set_start_of_ranks(&start_tensor_rank);
    // LibTorch replaces its thread pool at the first use after a fork, without a lock: a forked
    // child does so at once, before its ranks are threads that would find no pool.
    ::pthread_atfork(nullptr, nullptr, [] { at::set_num_threads(1); });
    register_ops();
  });
}

at::Device compute_device() { return computes_on.load(); }

void compute_on(at::DeviceType device) {
  KUAFU_REQUIRE(device == at::kCPU || device == at::kCUDA, "ranks compute on cpu or cuda, not on ",
                c10::DeviceTypeName(device, true));
  computes_on = device;
}

}  // namespace kuafu
