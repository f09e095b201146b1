// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <optional>
#include <utility>

#include "kuafu/base/errors.h"
#include "kuafu/base/kernel_choice.h"
#include "kuafu/kernels/kernels.h"
#include "kuafu/meter/allocator.h"
#include "kuafu/meter/op_trace.h"
#include "kuafu/tensor/tensor.h"

// How own ops are defined and called. Internal to tensor/.
namespace kuafu {

/// What an op runs on a CPU: a loop of src/kuafu/kernels, or ATen's kernel for CPUs, which needs no
/// twin.
enum class CpuKernel : uint8_t { kLoop, kAten };

/// The op library kuafu:: with its kernels by device. CUDA kernels are made of ATen calls only: they
/// are the twins of the CPU's, registered there too, as kuafu_portable::, so that each is tested
/// without a GPU, and in the CPU's place where KUAFU_KERNELS asks for them.
struct OpLibrary {
  torch::Library schemas, cpu, cuda, meta, portable_schemas, portable;
  KernelChoice choice = KernelChoice::kOwn;

  /// Defines kuafu::<name> by its schema and one kernel a device.
  template <class Cpu, class Cuda, class Meta>
  void add(const char* schema, const char* name, Cpu on_cpu, Cuda on_cuda, Meta on_meta,
           CpuKernel of = CpuKernel::kLoop) {
    schemas.def(schema);
    if (choice == KernelChoice::kOwn || of == CpuKernel::kAten) {
      cpu.impl(name, on_cpu);
    } else {
      cpu.impl(name, on_cuda);
    }
    cuda.impl(name, on_cuda);
    meta.impl(name, on_meta);
    portable_schemas.def(schema);
    portable.impl(name, on_cuda);
  }
};

void add_head_ops(OpLibrary& lib);
void add_matmul_ops(OpLibrary& lib);
void add_orthogonal_ops(OpLibrary& lib);
void add_attention_ops(OpLibrary& lib);
void add_merge_ops(OpLibrary& lib);
void add_document_ops(OpLibrary& lib);
void add_rope_ops(OpLibrary& lib);
void add_sum_ops(OpLibrary& lib);
void add_norm_ops(OpLibrary& lib);
void add_sharded_norm_ops(OpLibrary& lib);
void add_rms_norm_ops(OpLibrary& lib);
void add_activation_ops(OpLibrary& lib);
void add_embedding_ops(OpLibrary& lib);
void add_loss_ops(OpLibrary& lib);
void add_dropout_ops(OpLibrary& lib);
void add_update_ops(OpLibrary& lib);
void add_layer_ops(OpLibrary& lib);
void add_route_ops(OpLibrary& lib);
void add_slot_ops(OpLibrary& lib);

/// All of them, once; called by initialise_tensors().
void register_ops();

/// An own op, called through the dispatcher; it writes its event where ops are traced.
template <class Signature>
class OwnOp;

template <class Result, class... A>
class OwnOp<Result(A...)> {
 public:
  explicit OwnOp(const c10::TypedOperatorHandle<Result(A...)>& op) : op_(op) {}

  Result call(A... arguments) const {
    if (!are_ops_traced()) [[likely]]
      return op_.call(std::forward<A>(arguments)...);
    OwnOpEvent event(op_, number_);
    event.start(arguments...);
    return op_.call(std::forward<A>(arguments)...);
  }

 private:
  c10::TypedOperatorHandle<Result(A...)> op_;
  size_t number_ = OwnOpEvent::next_number();
};

/// The op kuafu::<name>, to be kept in a function-local static.
template <class Signature>
OwnOp<Signature> find_op(const char* name) {
  return OwnOp<Signature>(c10::Dispatcher::singleton()
                              .findSchemaOrThrow(text("kuafu::", name).c_str(), "")
                              .template typed<Signature>());
}

/// An op whose twin is the formula of a rule, which is handed to each call: a loop on a CPU, a kernel
/// on a card.
template <class Cpu, class Cuda, class Meta>
void add_rule(OpLibrary& lib, const char* schema, const char* name, Cpu on_cpu, Cuda on_cuda,
              Meta on_meta) {
  lib.schemas.def(schema);
  lib.cpu.impl(name, on_cpu);
  lib.cuda.impl(name, on_cuda);
  lib.meta.impl(name, on_meta);
}

/// An update as an op, and as the same op made by a formula.
template <class Signature>
class UpdateOp {
 public:
  explicit UpdateOp(const char* name)
      : loop_(find_op<Signature>(name)),
        handle_(c10::Dispatcher::singleton().findSchemaOrThrow(text("kuafu::", name).c_str(), "")) {
  }

  const OwnOp<Signature>& loop() const { return loop_; }
  /// What the formula returns.
  template <class F, class... T>
  auto by_formula(F formula, const T&... tensors) const {
    std::optional<OwnOpEvent> event;
    if (are_ops_traced()) {
      event.emplace(handle_, number_);
      event->start(tensors...);
    }
    return formula();
  }

 private:
  OwnOp<Signature> loop_;
  c10::OperatorHandle handle_;
  size_t number_ = OwnOpEvent::next_number();
};

/// Around one op: below autograd, and everything allocated is scratch until it is kept.
class OpScope {
 public:
  OpScope() : caller_(current_category()), scratch_(Category::kScratch) {}

  /// Books an output to the caller's category.
  Tensor keep(const Tensor& t) const {
    KUAFU_CHECK(!t.defined() || t.storage().nbytes() == t.nbytes(), "an output of ", t.nbytes(),
                " bytes keeps a storage of ", t.storage().nbytes());
    recategorise(t, caller_);
    return t;
  }
  /// Books the op's work by its formula.
  static void work(int64_t flops, int64_t bytes, FlopsOf of = FlopsOf::kModel) {
    if (RankBook* book = current_book()) book->work(flops, bytes, of);
  }

 private:
  at::AutoDispatchBelowADInplaceOrView below_autograd_;
  Category caller_;
  CategoryScope scratch_;
};

/// Bytes of all elements of all tensors: what an op that touches each once moves.
template <class... T>
int64_t bytes_of(const T&... tensors) {
  return (0 + ... + static_cast<int64_t>(tensors.defined() ? tensors.nbytes() : 0));
}

/// The rows of x's last dim.
inline kernels::RowExtents rows_of(const Tensor& x) { return {x.numel() / x.size(-1), x.size(-1)}; }

/// t as an op's `Tensor?`: none where it is undefined.
inline std::optional<Tensor> maybe(const Tensor& t) {
  return t.defined() ? std::optional<Tensor>(t) : std::nullopt;
}

/// f64 for f64, else f32: what statistics and accumulators are kept in.
inline at::ScalarType accumulator(const Tensor& t) {
  return t.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

/// Calls f<float> or f<double> by the accumulator type of x.
template <class F>
void by_type(const Tensor& x, F f) {
  if (x.scalar_type() == at::kDouble) {
    f(double{});
  } else {
    f(float{});
  }
}

/// t, copied where its last dim is strided: kernels read any strides but that one.
inline Tensor unit_stride(const Tensor& t) { return t.stride(-1) == 1 ? t : t.contiguous(); }

/// t itself in the accumulator type, contiguous.
inline Tensor widened(const Tensor& t) { return t.to(accumulator(t)).contiguous(); }

/// The rows (B, N, S) of t, whose data is given: D elements of unit stride each, or one number.
template <class T>
kernels::HeadRows<T> head_rows(T* data, const Tensor& t) {
  return {data, t.stride(0), t.stride(1), t.stride(2)};
}

}  // namespace kuafu
