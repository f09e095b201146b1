// SPDX-License-Identifier: Apache-2.0
#include "kuafu/checkpoint/checkpoint.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <numeric>
#include <random>

#include "kuafu/base/errors.h"
#include "kuafu/checkpoint/boxes.h"
#include "tests/record/support.h"

namespace kuafu {
namespace {

using test::TemporaryFolder;

/// Element i of a global tensor is its index plus `salt`.
std::vector<int64_t> part_of(const Shape& global, const Slice& slice, int64_t salt) {
  int64_t n = 1;
  for (const int64_t e : global) n *= e;
  std::vector<int64_t> whole(static_cast<size_t>(n));
  std::iota(whole.begin(), whole.end(), salt);
  int64_t mine = 1;
  for (const int64_t e : slice.extent) mine *= e;
  std::vector<int64_t> out(static_cast<size_t>(mine), -1);
  copy_overlap({Shape(global.size(), 0), global}, whole.data(), slice, out.data(), 8);
  return out;
}

struct Saved {
  std::string name;
  Shape global;
  Layout layout;
};

/// Saves `tensors` from a mesh; ranks that hold a copy of another's shard stay silent.
void save(const std::string& root, int64_t step, const std::vector<Axis>& axes,
          const std::vector<Saved>& tensors, int64_t salt) {
  const CheckpointWriter writer(root, step);
  writer.prepare();
  const int ranks = static_cast<int>(Mesh(axes, 0).num_ranks());
  for (int rank = 0; rank < ranks; ++rank) {
    const Mesh mesh(axes, rank);
    std::vector<std::vector<int64_t>> data;
    std::vector<TensorPiece> pieces;
    for (const Saved& t : tensors) {
      bool is_first = true;
      const Axes own = t.layout.all_axes();
      for (const Axis& axis : axes) {
        const bool is_own = std::find(own.begin(), own.end(), axis.name) != own.end();
        is_first = is_first && (is_own || mesh.coord(axis.name) == 0);
      }
      if (!is_first) continue;
      const Slice slice = my_slice(t.layout, t.global, mesh);
      data.push_back(part_of(t.global, slice, salt));
      pieces.push_back({t.name, DType::kI64, t.global, slice, nullptr});
    }
    for (size_t i = 0; i < pieces.size(); ++i) pieces[i].data = data[i].data();
    writer.write(rank, pieces);
  }
  writer.commit(ranks, {{"seed", "1"}});
}

const std::vector<Axis> kTesseract = {{"data", 2}, {"dep", 2}, {"row", 2}, {"col", 2}};
const std::vector<Axis> kCube = {{"x", 2}, {"y", 2}, {"z", 2}};
const std::vector<Saved> kUnderTesseract = {
    {"w", {8, 12}, {{{"row"}, {"col"}}}}, {"bias", {12}, {{{"col"}}}}, {"scale", {}, {{}}}};

TEST(Checkpoint, IsReadUnderAnotherPlan) {
  const TemporaryFolder root;
  std::vector<Saved> tensors = kUnderTesseract;
  tensors[2].layout.dims.clear();
  save(root.path(), 100, kTesseract, tensors, 5);
  const auto newest = newest_checkpoint(root.path());
  ASSERT_TRUE(newest.has_value());
  const Checkpoint saved(*newest);
  EXPECT_EQ(saved.step(), 100);
  EXPECT_EQ(saved.state().at("seed"), "1");
  EXPECT_EQ(saved.tensors().at("w").global, (Shape{8, 12}));
  for (int rank = 0; rank < 8; ++rank) {
    const Mesh mesh(kCube, rank);
    const Slice slice = my_slice(Layout{{{"z", "x"}, {"y"}}}, {8, 12}, mesh);
    std::vector<int64_t> mine(2 * 6, -1);
    saved.read("w", slice, mine.data());
    EXPECT_EQ(mine, part_of({8, 12}, slice, 5)) << rank;
  }
  int64_t scale = -1;
  saved.read("scale", {}, &scale);
  EXPECT_EQ(scale, 5);
}

TEST(Checkpoint, RandomPairsOfLayoutsAgree) {
  std::mt19937 random(17);
  const TemporaryFolder root;
  const std::vector<Axis> axes = {{"a", 2}, {"b", 3}, {"c", 2}};
  const auto random_layout = [&] {
    Layout layout = Layout::replicated(3);
    for (const Axis& axis : axes) {
      if (random() % 4 != 0) layout.dims[random() % 3].push_back(axis.name);
    }
    return layout;
  };
  const Shape global = {12, 24, 12};
  for (int trial = 0; trial < 30; ++trial) {
    save(root.path(), trial, axes, {{"t", global, random_layout()}}, trial);
    const Checkpoint saved(*newest_checkpoint(root.path()));
    EXPECT_EQ(saved.step(), trial);
    const Layout other = random_layout();
    for (int rank = 0; rank < 12; rank += 5) {
      const Slice slice = my_slice(other, global, Mesh(axes, rank));
      std::vector<int64_t> mine(part_of(global, slice, 0).size(), -1);
      saved.read("t", slice, mine.data());
      EXPECT_EQ(mine, part_of(global, slice, trial));
    }
  }
}

TEST(Checkpoint, GapsAndOverlapsAreRefused) {
  const TemporaryFolder root;
  const CheckpointWriter writer(root.path(), 1);
  const std::vector<int64_t> data(12);
  const auto piece = [&](int64_t first, int64_t n) {
    return TensorPiece{"w", DType::kI64, {12}, {{first}, {n}}, data.data()};
  };
  writer.prepare();
  writer.write(0, {piece(0, 6)});
  writer.write(1, {piece(6, 5)});
  EXPECT_THROW(writer.commit(2, {}), InternalError);
  writer.write(1, {piece(5, 7)});
  EXPECT_THROW(writer.commit(2, {}), InternalError);
  EXPECT_FALSE(newest_checkpoint(root.path()).has_value());
  writer.write(1, {piece(6, 6)});
  writer.commit(2, {});
  EXPECT_TRUE(newest_checkpoint(root.path()).has_value());
}

TEST(Checkpoint, AMissingRankFileIsNamed) {
  const TemporaryFolder root;
  save(root.path(), 3, {{"tensor", 2}}, {{"w", {4, 4}, {{{"tensor"}, {}}}}}, 0);
  const std::string folder = *newest_checkpoint(root.path());
  std::filesystem::remove(folder + "/rank-00001.safetensors");
  try {
    const Checkpoint saved(folder);
    FAIL();
  } catch (const ConfigError& e) {
    EXPECT_NE(std::string(e.what()).find("saved by 2 ranks, and there is no rank-00001"),
              std::string::npos)
        << e.what();
  }
}

/// A save killed at any moment leaves the one before it whole.
TEST(Checkpoint, AKilledSaveLeavesTheOneBefore) {
  const TemporaryFolder root;
  const std::vector<Axis> axes = {{"tensor", 4}};
  const std::vector<Saved> tensors = {{"w", {64, 256}, {{{"tensor"}, {}}}}, {"v", {256}, {{{}}}}};
  save(root.path(), 1, axes, tensors, 1);
  int cut = 0;
  for (int trial = 0; trial < 40; ++trial) {
    const pid_t child = fork();
    if (child == 0) {
      for (int64_t step = 2 + trial;; ++step) save(root.path(), step, axes, tensors, step);
    }
    ::usleep(static_cast<useconds_t>(500 + 700 * trial));
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    const Checkpoint saved(*newest_checkpoint(root.path()));
    std::vector<int64_t> out(64 * 256);
    saved.read("w", {{0, 0}, {64, 256}}, out.data());
    EXPECT_EQ(out, part_of({64, 256}, {{0, 0}, {64, 256}}, saved.step())) << saved.step();
    for (const auto& entry : std::filesystem::directory_iterator(root.path())) {
      cut += entry.path().extension() == ".partial" ? 1 : 0;
    }
  }
  EXPECT_GT(cut, 0) << "no save was cut";
}

}  // namespace
}  // namespace kuafu
