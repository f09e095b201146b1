// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "kuafu/base/registry.h"
#include "kuafu/mesh/layout.h"
#include "kuafu/plan/plan.h"
#include "kuafu/tensor/tensor.h"

namespace kuafu {

/// expand: outer -> inner (QKV, MLP up). contract: inner -> outer (attention out, MLP down).
enum class Role : uint8_t { kExpand, kContract };
/// outer = the residual stream; inner = between an expand and its contract.
enum class Stream : uint8_t { kOuter, kInner };

/// Elements of my shards of one linear layer: y (R, M) = x (R, K) w (K, M).
struct LinearShape {
  int64_t x = 0, w = 0, y = 0;
};

/// Elements one rank receives. backward is both gradients in one go, which may share a gather.
struct Cost {
  int64_t forward = 0, backward = 0, input_grad = 0, weight_grad = 0;
  bool operator==(const Cost&) const = default;
};

struct LinearGrads {
  Tensor dx, dw;
};

/// How activations and weights are laid out over the mesh, and how shards are multiplied. Shards
/// in, shards out; nothing gathered is ever saved. The three products are apart so that only shards
/// live between forward and backward and a schedule can run the weight gradient later.
/// Activations are (B, S, *), weights (in, out). No method is called under autograd recording.
class TensorParallel {
 public:
  explicit TensorParallel(const Mesh& mesh) : mesh_(mesh) {}
  virtual ~TensorParallel() = default;
  TensorParallel(const TensorParallel&) = delete;
  TensorParallel& operator=(const TensorParallel&) = delete;

  virtual Layout activation(Stream s) const = 0;                                    // of (B, S, H)
  virtual Layout weight(Role r) const = 0;                                          // of (in, out)
  virtual Tensor forward(const Tensor& x, const Tensor& w, Role r) const = 0;       // y  = x w
  virtual Tensor input_grad(const Tensor& dy, const Tensor& w, Role r) const = 0;   // dx = dy w^T
  virtual Tensor weight_grad(const Tensor& x, const Tensor& dy, Role r) const = 0;  // dw = x^T dy
  /// Both gradients; a scheme overrides it where they share a gather of dy.
  virtual LinearGrads backward(const Tensor& x, const Tensor& w, const Tensor& dy, Role r) const {
    return {input_grad(dy, w, r), weight_grad(x, dy, r)};
  }
  virtual Cost cost(const LinearShape& local, Role r) const = 0;
  /// Whether forward() is the product of the very shards that it is given and nothing more: a bias is
  /// then added while it is made.
  virtual bool is_local(Role) const { return false; }

  const Mesh& mesh() const { return mesh_; }

 private:
  const Mesh& mesh_;
};

/// A scheme as the registry knows it: its axes (plan side) and its code. The mesh need not be
/// connected when the scheme is made, only when a product is called.
struct TensorScheme {
  TensorMode mode;
  std::function<std::unique_ptr<TensorParallel>(const Mesh& mesh)> make;
};

/// Each in the file of its name.
#define KUAFU_TENSOR_MODE(constant, name, axes, scheme, summary) \
  std::unique_ptr<TensorParallel> scheme(const Mesh& mesh);
#include "kuafu/plan/tensor_modes.def"

/// Those of plan/tensor_modes.def.
void register_tensor_schemes(Registry<TensorScheme>& schemes);

}  // namespace kuafu
