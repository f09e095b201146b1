// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

namespace kuafu {

/// What LibTorch and the op library are asked for, by what it is.
enum class Kind : uint8_t {
  kMatmul,
  kAttention,
  kCopy,    ///< copies, concatenations, fills: memory moved and nothing computed
  kModel,   ///< norms, activations, embedding, loss, dropout, optimizer: the model's other kernels
  kNothing  ///< views, empty tensors, scalars read: no kernel at all, part of the program's own
            ///< time
};
Kind kind_of(const std::string& op);
const char* to_string(Kind kind);

/// One matrix product (m, k) x (k, n), `batch` times.
struct Product {
  int64_t batch = 1, m = 0, k = 0, n = 0;
  auto operator<=>(const Product&) const = default;
};

/// Watches the ops that the calling thread dispatches, as long as it lives: outermost calls only,
/// so that an op made of others counts once, as what it is.
class OpWatch {
 public:
  /// kProducts also reads the operands of matrix products, which costs a microsecond an op.
  enum class Of : uint8_t { kTimes, kProducts };
  explicit OpWatch(Of of);
  ~OpWatch();
  OpWatch(const OpWatch&) = delete;
  OpWatch& operator=(const OpWatch&) = delete;

  double cpu_s(Kind kind) const;  ///< CPU time of this thread
  const std::map<std::string, double>& cpu_s_by_op() const;
  int64_t num_calls() const;
  const std::map<Product, int64_t>& products() const;  ///< how often each was made

  struct State;

 private:
  std::unique_ptr<State> state_;
};

}  // namespace kuafu
