// SPDX-License-Identifier: Apache-2.0
#include "kuafu/meter/allocator.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <memory>
#include <thread>

#include "kuafu/base/errors.h"
#include "tests/meter/categories.h"

namespace kuafu {
namespace {

class Allocators : public testing::TestWithParam<at::DeviceType> {
 protected:
  at::TensorOptions f32() const { return at::TensorOptions(at::kFloat).device(GetParam()); }
};

TEST_P(Allocators, BookBytesUnderTheCategoryOfTheScope) {
  RankBook book(0);
  const BookScope scope(&book);
  const CategoryScope category(Category::kGradient);
  {
    const at::Tensor t = at::empty({10, 3}, f32());
    EXPECT_EQ(of(book.live_by_category(), Category::kGradient), 120);
    EXPECT_EQ(book.live(), 120);
    const at::Tensor view = t.transpose(0, 1);  // shares the storage
    EXPECT_EQ(book.live(), 120);
  }
  EXPECT_EQ(book.live(), 0);
  EXPECT_EQ(book.peak(), 120);
}

TEST_P(Allocators, BookNothingForZeroBytesAndOutsideOfRanks) {
  RankBook book(0);
  at::Tensor outside = at::empty({100}, f32());
  const BookScope scope(&book);
  const at::Tensor empty = at::empty({0, 7}, f32());
  EXPECT_EQ(book.live(), 0);
  outside.reset();
  EXPECT_EQ(book.live(), 0);
}

TEST_P(Allocators, BookAFreeOnAnotherThreadToTheOwner) {
  RankBook owner(0), other(1);
  at::Tensor t;
  {
    const BookScope scope(&owner);
    t = at::empty({8}, f32());
  }
  std::thread([&] {
    const BookScope scope(&other);
    const CategoryScope category(Category::kParameter);
    t.reset();
  }).join();
  EXPECT_EQ(owner.live(), 0);
  EXPECT_EQ(other.live(), 0);
  EXPECT_EQ(of(owner.live_by_category(), Category::kTemporary), 0);
}

TEST_P(Allocators, LetATensorOutliveItsRank) {
  auto book = std::make_unique<RankBook>(0);
  at::Tensor t;
  {
    const BookScope scope(book.get());
    t = at::empty({1000}, f32());
  }
  book.reset();
  recategorise(t, Category::kGradient);
  EXPECT_EQ(t.numel(), 1000);
}

TEST_P(Allocators, RefuseWhatPassesTheBudgetAndSayHowMuch) {
  RankBook book(4, 1000);
  const BookScope scope(&book);
  const at::Tensor t = at::empty({200}, f32());
  try {
    const at::Tensor more = at::empty({100}, f32());
    FAIL() << "1200 bytes fit into 1000";
  } catch (const OutOfMemory& e) {
    EXPECT_EQ(e.rank, 4);
    EXPECT_EQ(e.requested, 400);
    EXPECT_EQ(e.live, 800);
    EXPECT_EQ(e.budget, 1000);
  }
  EXPECT_EQ(book.live(), 800);
  const at::Tensor exactly = at::empty({50}, f32());
  EXPECT_EQ(book.live(), 1000);
}

TEST_P(Allocators, RecategoriseMovesTheWholeStorage) {
  RankBook book(0);
  const BookScope scope(&book);
  at::Tensor t = at::empty({10}, f32());
  recategorise(t.narrow(0, 2, 3), Category::kActivation);
  EXPECT_EQ(of(book.live_by_category(), Category::kActivation), 40);
  EXPECT_EQ(of(book.live_by_category(), Category::kTemporary), 0);
  t.reset();
  EXPECT_EQ(of(book.live_by_category(), Category::kActivation), 0);
}

TEST_P(Allocators, StorageIsFreedAndTakenAgainUnderEveryView) {
  RankBook book(0);
  const BookScope scope(&book);
  const at::Tensor t = at::empty({4, 6}, f32());
  const at::Tensor view = t.t();
  free_storage(t);
  EXPECT_EQ(book.live(), 0);
  EXPECT_EQ(view.storage().nbytes(), 0U);
  {
    const CategoryScope category(Category::kParameter);
    allocate_storage(t, 96);
  }
  EXPECT_EQ(of(book.live_by_category(), Category::kParameter), 96);
  EXPECT_EQ(view.storage().nbytes(), 96U);
  if (GetParam() == at::kCPU) {
    t.fill_(2.5);
    EXPECT_EQ(view[5][3].item<float>(), 2.5F);
  }
}

TEST_P(Allocators, RefilledStorageNeverNeedsOldAndNewAtOnce) {
  RankBook book(0, 100);
  const BookScope scope(&book);
  const at::Tensor t = at::empty({20}, f32());
  allocate_storage(t, 96);
  EXPECT_EQ(book.peak(), 96);
}

INSTANTIATE_TEST_SUITE_P(Devices, Allocators, testing::Values(at::kCPU, at::kMeta),
                         [](const auto& info) { return info.param == at::kCPU ? "Cpu" : "Meta"; });

TEST(CpuAllocator, AlignsToCacheLinesAndHugeBlocksToo) {
  for (const int64_t bytes : {1, 63, 4096, 40 << 20}) {
    const at::Tensor t = at::ones({bytes}, at::kByte);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(t.data_ptr()) % 64, 0U) << bytes;
    EXPECT_EQ(t[bytes - 1].item<uint8_t>(), 1);
  }
}

TEST(CpuAllocator, LeavesForeignStoragesAlone) {
  RankBook book(0);
  const BookScope scope(&book);
  float data[4] = {1, 2, 3, 4};
  const at::Tensor t = at::from_blob(data, {4}, at::kFloat);
  recategorise(t, Category::kParameter);
  EXPECT_EQ(book.live(), 0);
}

}  // namespace
}  // namespace kuafu
