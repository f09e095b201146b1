// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "kuafu/base/errors.h"
#include "kuafu/parallel/sequence/interface.h"
#include "kuafu/tensor/ops.h"

namespace kuafu {

/// Which keys queries see.
struct Sight {
  Mask mask = Mask::kNone;
  Tensor first = {};  ///< (B, S) i64, of causal attention inside documents; undefined: no documents

  bool is_causal() const { return mask == Mask::kCausal; }
  /// The mask of ops::attention for queries and keys at these positions; undefined without documents.
  Tensor between(const std::vector<int64_t>& queries, const std::vector<int64_t>& keys,
                 at::ScalarType type) const {
    return first.defined() ? ops::document_mask(first, queries, keys, type) : Tensor();
  }
  /// The same of whole samples.
  Tensor inside(int64_t positions, at::ScalarType type) const;
};

/// A mode of this library, which keeps documents apart.
class DocumentAttention : public AttentionParallel {
 public:
  Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v, Mask mask) const final {
    return attend(q, k, v, Sight{mask});
  }
  Tensor attend_documents(const Tensor& q, const Tensor& k, const Tensor& v,
                          const Tensor& first) const final {
    return attend(q, k, v, Sight{Mask::kCausal, first});
  }
  bool knows_documents() const final { return true; }

 protected:
  virtual Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v,
                        const Sight& sight) const = 0;
};

}  // namespace kuafu
