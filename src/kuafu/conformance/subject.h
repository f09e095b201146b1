// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>

#include "kuafu/conformance/mesh_rank.h"
#include "kuafu/conformance/samples.h"
#include "kuafu/conformance/schemes.h"

namespace kuafu::conformance {

/// A scheme on its ranks.
class Subject {
 public:
  /// Throws NotFound for a mode that is not registered.
  Subject(const Registries& registries, SchemeCase where);

  const Registries& registries() const { return registries_; }
  const SchemeCase& where() const { return where_; }
  const std::vector<Axis>& axes() const { return axes_; }
  int ranks() const { return static_cast<int>(where_.size); }
  std::unique_ptr<TensorParallel> make(const Mesh& mesh) const { return scheme_.make(mesh); }
  /// "x2 x y2 x z2", "one rank"
  std::string mesh() const;

  /// f(scheme, rank) on thread ranks. Rethrows the first exception.
  void on_ranks(const std::function<void(const TensorParallel&, MeshRank&)>& f) const;
  /// body(world) on thread ranks, no wait longer than a minute.
  void on_threads(const std::function<void(Communicator& world)>& body) const;

 private:
  const Registries& registries_;
  SchemeCase where_;
  TensorScheme scheme_;
  std::vector<Axis> axes_;
};

/// The serial scheme, on one rank.
class SerialScheme {
 public:
  const TensorParallel& operator*() const { return *serial_; }

 private:
  Mesh alone_{{}, 0};
  std::unique_ptr<TensorParallel> serial_ = make_serial(alone_);
};

Stream input_of(Role r);
Stream output_of(Role r);
/// The smallest multiple of `unit` that is not below `least`.
int64_t multiple(int64_t unit, int64_t least);
/// The layout of a vector added to the last dim of a stream.
Layout last_dim(const TensorParallel& tp, Stream s);

// The bodies of scheme_checks().
void check_layouts(const Subject& subject, const LayerShape& shape, Notes& notes);
void check_types(const Subject& subject, const LayerShape& shape, Notes& notes);
void check_products(const Subject& subject, const LayerShape& shape, Notes& notes);
void check_half(const Subject& subject, const LayerShape& shape, Notes& notes);
void check_gradients(const Subject& subject, const LayerShape& shape, Notes& notes);
void check_traffic(const Subject& subject, const LayerShape& shape, Notes& notes);
void check_shards(const Subject& subject, const LayerShape& shape, Notes& notes);
void check_layers(const Subject& subject, const LayerShape& shape, Notes& notes);
void check_worlds(const Subject& subject, const LayerShape& shape, Notes& notes);
void check_training(const Subject& subject, const LayerShape& shape, Notes& notes);
void check_refusal(const Subject& subject, const LayerShape& shape, Notes& notes);

}  // namespace kuafu::conformance
