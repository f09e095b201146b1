// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "kuafu/plan/plan.h"
#include "tests/base/messages.h"

namespace kuafu {
namespace {

std::vector<Axis> axes(const std::string& mode, int64_t size, int64_t depth = 1) {
  return builtin_tensor_modes().at(mode).axes(size, depth);
}

TEST(TensorModes, ArrangeTheirRanks) {
  EXPECT_EQ(axes("none", 1), std::vector<Axis>{});
  EXPECT_EQ(axes("1d", 3), (std::vector<Axis>{{"tensor", 3}}));
  EXPECT_EQ(axes("1d-sp", 4), (std::vector<Axis>{{"tensor", 4}}));
  EXPECT_EQ(axes("2d", 9), (std::vector<Axis>{{"dep", 1}, {"row", 3}, {"col", 3}}));
  EXPECT_EQ(axes("2.5d", 8, 2), (std::vector<Axis>{{"dep", 2}, {"row", 2}, {"col", 2}}));
  EXPECT_EQ(axes("2.5d", 4), axes("2d", 4));
  EXPECT_EQ(axes("3d", 27), (std::vector<Axis>{{"x", 3}, {"y", 3}, {"z", 3}}));
}

TEST(TensorModes, TakeEveryPerfectGridAndNoOther) {
  for (int64_t size = 1; size <= 200; ++size) {
    for (int64_t depth = 1; depth <= 6; ++depth) {
      int64_t side = 0;
      for (int64_t q = 1; q <= 20; ++q) side = q * q * depth == size ? q : side;
      if (side > 0) {
        EXPECT_EQ(axes("2.5d", size, depth),
                  (std::vector<Axis>{{"dep", depth}, {"row", side}, {"col", side}}));
      } else {
        EXPECT_THROW(axes("2.5d", size, depth), Refused) << size << " " << depth;
      }
    }
  }
}

TEST(TensorModes, TakeEveryCubeAndNoOther) {
  for (int64_t size = 1; size <= 1100; ++size) {
    int64_t side = 0;
    for (int64_t q = 1; q <= 11; ++q) side = q * q * q == size ? q : side;
    if (side > 0) {
      EXPECT_EQ(axes("3d", size), (std::vector<Axis>{{"x", side}, {"y", side}, {"z", side}}));
    } else {
      EXPECT_THROW(axes("3d", size), Refused) << size;
    }
  }
}

TEST(TensorModes, NameTheNearestGridOfSizesThatFitNone) {
  const auto refusal = [](const std::string& mode, int64_t size) {
    return message_of<Refused>([&] { axes(mode, size); });
  };
  expect_says(refusal("2d", 6), {"size = 6", "nearest: size = 4 or 9"});
  expect_says(refusal("3d", 12), {"size = 12", "nearest: size = 8 or 27"});
  expect_says(refusal("3d", 2), {"nearest: size = 1 or 8"});
  expect_says(refusal("3d", INT64_MAX), {"nearest: size = 9223358842721533951 or "});
}

TEST(TensorModes, RefuseADepthTheyDoNotHave) {
  for (const char* mode : {"none", "1d", "1d-sp", "2d", "3d"}) {
    expect_says(message_of<Refused>([&] { axes(mode, mode[0] == 'n' ? 1 : 64, 2); }),
                {std::string("\"") + mode + "\"", "depth = 2", "nearest: depth = 1"});
  }
}

TEST(TensorModes, RefuseNonPositiveGrids) {
  EXPECT_THROW(axes("2d", 0), ConfigError);
  EXPECT_THROW(axes("3d", 0), ConfigError);
  EXPECT_THROW(axes("2.5d", 4, 0), ConfigError);
}

TEST(TensorModes, CarryTheirOwnNames) {
  for (const auto& [name, mode] : builtin_tensor_modes()) {
    EXPECT_EQ(name, mode.name);
    EXPECT_FALSE(mode.summary.empty());
  }
}

}  // namespace
}  // namespace kuafu
