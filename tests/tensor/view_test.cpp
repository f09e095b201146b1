// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "kuafu/base/errors.h"
#include "kuafu/meter/allocator.h"
#include "tests/tensor/support.h"

namespace kuafu {
namespace {

TEST(View, IsTheBytesOfAContiguousTensor) {
  const Tensor t = at::ones({3, 5}, at::kDouble);
  const Buffer b = view(t.narrow(0, 1, 2));
  EXPECT_EQ(b.data, static_cast<double*>(t.data_ptr()) + 5);
  EXPECT_EQ(b.count, 10);
  EXPECT_EQ(b.dtype, DType::kF64);
  EXPECT_EQ(b.place, Place::kHost);
}

TEST(View, OfMetaHasASizeAndNoSubstance) {
  const Buffer b = view(at::empty({4, 2}, at::TensorOptions(at::kBFloat16).device(at::kMeta)));
  EXPECT_EQ(b.data, nullptr);
  EXPECT_EQ(b.bytes(), 16);
  EXPECT_EQ(b.place, Place::kMeta);
}

TEST(View, RefusesStridesAndFreedStorages) {
  const Tensor t = at::ones({3, 5});
  EXPECT_THROW(view(t.t()), InternalError);
  free_storage(t);
  EXPECT_THROW(view(t), InternalError);
}

TEST(DTypeOf, IsTheInverseOfScalarType) {
  for (const DType t : {DType::kF64, DType::kF32, DType::kBF16, DType::kF16, DType::kI64,
                        DType::kI32, DType::kU8}) {
    const Tensor one = at::ones({1}, scalar_type(t));
    EXPECT_EQ(dtype_of(one), t);
    EXPECT_EQ(one.element_size(), size_of(t));
  }
  EXPECT_THROW(dtype_of(at::ones({1}, at::kBool)), InternalError);
}

}  // namespace
}  // namespace kuafu
