// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "kuafu/optim/optimizer.h"

// Matrices of which ranks hold parts, and their way to one of them. Internal to optim/.
namespace kuafu {

/// Where one matrix lies.
struct Matrix {
  const ParamShard* shard = nullptr;
  size_t piece = 0;
  int64_t index = 0;                ///< of dim 0 of the shard, where that is stacked
  int64_t box = 0;                  ///< elements of a rank's shard of it
  Axes axes = {};                   ///< longer than 1, in the order of travel
  size_t num_cuts = 0;              ///< of axes, those that cut boxes
  std::vector<int64_t> owner = {};  ///< coordinates along axes

  const Param& param() const { return *shard->param; }
  size_t first_dim() const { return param().layers.is_stacked ? 1 : 0; }
  int64_t rows() const { return param().global[first_dim()]; }
  int64_t columns() const { return param().global[first_dim() + 1]; }
  bool is_padded() const { return param().padded != param().global; }
  /// What Newton-Schulz costs it, but for a factor.
  int64_t cost() const {
    return rows() * columns() * std::min(rows(), columns() / param().layers.parts);
  }
};

/// Elements [begin, end) of a rank's shard of a matrix, row by row.
struct ElementRun {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
};

/// This mesh on the rank that differs from me in the coordinates along some axes. Unconnected.
Mesh moved(const Mesh& mesh, const std::map<std::string, int64_t>& coords);

/// What a rank has of its shard of a matrix once pieces have come together along the first `done`
/// of the axes.
ElementRun held(const Matrix& m, size_t done, const Mesh& mesh);
/// All elements that it has of the matrix by then.
int64_t num_held(const Matrix& m, size_t done, const Mesh& mesh);

/// Matrices on their way along one axis: `from` is here, of which `to` stays. One all-to-all there,
/// one back.
class Travel {
 public:
  /// @pre `from` is not empty; mesh is connected
  Travel(std::vector<const Matrix*> from, size_t done, const Mesh& mesh);

  const std::vector<const Matrix*>& to() const { return to_; }
  /// What this rank has of each of `from` -> what it has then of each of `to`.
  std::vector<Tensor> there(const std::vector<Tensor>& have) const;
  /// The same way back.
  std::vector<Tensor> back(const std::vector<Tensor>& steps, at::TensorOptions options) const;

 private:
  struct Leg {  // a tensor's part of the exchange
    size_t rank = 0, matrix = 0;
    int64_t size = 0;
  };
  const std::string& axis() const { return from_[0]->axes[done_]; }
  Tensor exchanged(const std::vector<Tensor>& sent, at::TensorOptions options,
                   const std::vector<Leg>& send, const std::vector<Leg>& recv) const;

  std::vector<const Matrix*> from_, to_;
  size_t done_;
  Communicator& comm_;
  std::vector<Leg> outward_;  // of `from`, by the rank that gets it
  std::vector<Leg> inward_;   // of `to`, by the rank that had it
};

}  // namespace kuafu
