// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kuafu/mesh/layout.h"
#include "kuafu/tensor/tensor.h"

namespace kuafu {

/// How a parameter's elements come about: a function of the global index only.
struct Init {
  enum class Kind : uint8_t { kNormal, kZeros, kOnes };
  Kind kind = Kind::kNormal;
  double std = 0.02;
};

/// Which tensors of the published model a parameter holds: what optimizers call layers.
struct LayerSplit {
  bool is_stacked = false;  ///< each index of dim 0 is a tensor by itself (experts)
  int64_t parts = 1;        ///< tensors side by side in the last dim (q, k, v), in turns of
  int64_t width = 1;        ///< so many columns of each
  bool operator==(const LayerSplit&) const = default;
};

/// What a parameter meets where it is used. How it lies, and over which axes its gradient is partial,
/// follow from this and the scheme (engine/placing/row_types.h). Streams: parallel/tensor/interface.h.
enum class RowUse : uint8_t {
  kUnstated,
  kExpand,    ///< (in, out): the weight of an expand
  kContract,  ///< (in, out): the weight of a contract
  kTable,     ///< (V, H): rows for the tokens of the outer stream; laid out as a contract's weight
  kOuterWidth,   ///< (.., H): its last dim is the outer width: scales of norms, biases, positions
  kInnerWidth,   ///< (.., F): the same of the inner stream
  kFromOuter,    ///< (H, C): makes C whole columns of the outer width: routers, classes
  kFromInner,    ///< (F, C): the same of the inner width
  kOuterTokens,  ///< whole, meets what outer tokens have whole: what is added to the C columns
  kInnerTokens,  ///< the same of the inner stream
  kOuterGain,    ///< whole, meets every column of the outer stream: a factor of a branch
  kInnerGain,    ///< the same of the inner stream
  kLogits,       ///< (V): added to logits of a tied table
  kSharedHeads,  ///< (H, columns): key-value heads that several ranks share, whole on each
  kSharedHeadsBias,  ///< what is added to their columns
  kOwn,              ///< as nothing here says: its declared axes stand on its maker's word
};

/// "weights of an expand"
std::string_view to_string(RowUse use);

/// What every optimizer, ZeRO stage and checkpoint needs to know about one parameter.
struct Param {
  std::string name;  ///< "blocks.3.mlp.up.weight", identical under every scheme
  Shape global;      ///< logical shape, without padding
  Shape padded;      ///< global, with sharded dims rounded up to their ranks
  Layout layout;     ///< of `padded`
  Axes grad_axes;    ///< axes to sum gradients over, besides "data"
  Tensor value;      ///< my shard; a leaf that requires grad
  Init init;         ///< how `value` comes about
  /// Tied to a parameter that another pipeline stage owns: kept equal to it, and counted there.
  bool is_copy = false;
  LayerSplit layers = {};
  RowUse use = RowUse::kUnstated;
};

/// How many tensors of the published model a parameter holds.
int64_t num_layers(const Param& p);
/// Whether these are vectors: biases and scales of norms.
bool holds_vectors(const Param& p);

/// Where parameters are made: device, dtype, seed.
struct ParamFactory {
  const Mesh* mesh = nullptr;
  at::Device device = compute_device();
  DType dtype = DType::kF32;
  uint64_t seed = 1;
  /// Values have shapes and no storage until somebody gives them some (ZeRO-3: a part of each).
  bool is_deferred = false;

  /// My shard of a virtual global tensor: element i is Philox(seed, name, i), identical under every
  /// layout, world and dtype (rounded from f64); padding is zero.
  Param make(std::string name, Shape global, Layout layout, Axes grad_axes, Init init) const;
  /// The same value anew, on this factory's device: of a parameter that was planned on meta.
  void materialise(Param& p) const;
  /// What p.value is at first, in the caller's category: of a deferred one too.
  Tensor initial_value(const Param& p) const;
};

/// The whole of a sharded tensor on every rank, padding removed. `shard` has p.layout. Collective.
Tensor gather_param(const Param& p, const Tensor& shard, const Mesh& mesh);
/// My shard of a whole (unpadded) tensor.
Tensor scatter_param(const Param& p, const Tensor& whole, const Mesh& mesh);

/// Named parameters and children, in order of creation; not torch::nn.
class Module {
 public:
  virtual ~Module() = default;
  /// Every parameter, depth first. Pointers stay valid while the module lives.
  std::vector<Param*> params();
  /// Gives every parameter and constant its value: a model is planned on meta, and a rank makes
  /// only what it holds.
  void materialise(const ParamFactory& factory);

 protected:
  Module() = default;
  Param& add(Param p);
  void add_child(Module& child) { children_.push_back(&child); }
  /// Zeros like a parameter, which nothing trains.
  Tensor& add_zeros(const Param& like);

 private:
  struct Zeros {
    const Param* like;
    Tensor value;
  };
  std::vector<std::unique_ptr<Param>> own_;
  std::vector<std::unique_ptr<Zeros>> zeros_;
  std::vector<Module*> children_;
};

}  // namespace kuafu
