// SPDX-License-Identifier: Apache-2.0
#include "kuafu/hf/folder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <numeric>

#include "kuafu/base/errors.h"
#include "kuafu/checkpoint/boxes.h"
#include "kuafu/record/json_text.h"
#include "tests/hf/models.h"
#include "tests/record/support.h"

namespace kuafu::hf {
namespace {

using kuafu::test::TemporaryFolder;
using test::elements;
using test::models;
using test::numbered;
using test::write;

TEST(HfTensors, HoldEveryElementOfTheirsOnce) {
  for (const ModelPlan& model : models()) {
    std::map<std::string, std::vector<int>> seen;
    for (const Mapped& t : mapping(family_of(model), model)) {
      int64_t ours = 0;
      for (size_t part = 0; part < t.parts.size(); ++part) {
        auto& theirs = seen[t.parts[part].name];
        theirs.resize(static_cast<size_t>(elements(t.theirs)));
        // Ones in the places of ours that this part fills come to the places of theirs it is read from.
        std::vector<uint32_t> to(static_cast<size_t>(elements(t.theirs)), 0);
        const std::vector<uint32_t> ones(static_cast<size_t>(elements(t.shape)), 1);
        scatter(t, part, 4, reinterpret_cast<const char*>(ones.data()),
                reinterpret_cast<char*>(to.data()));
        for (size_t i = 0; i < to.size(); ++i) theirs[i] += static_cast<int>(to[i]);
        ours += std::accumulate(to.begin(), to.end(), int64_t{0});
      }
      EXPECT_EQ(ours, elements(t.shape)) << t.name;
    }
    for (const auto& [name, counts] : seen) {
      EXPECT_EQ(std::count(counts.begin(), counts.end(), 1), std::ssize(counts)) << name;
    }
  }
}

/// One element, all but the first, and what lies across blocks of heads; none.
std::vector<Slice> boxes_of(const Shape& shape) {
  std::vector<Slice> all(4);
  for (const int64_t extent : shape) {
    const int64_t at = extent / 3, count = std::max<int64_t>(1, extent / 2);
    const Slice each[] = {{{extent - 1}, {1}},
                          {{std::min<int64_t>(1, extent - 1)}, {std::max<int64_t>(1, extent - 1)}},
                          {{at}, {std::min(count, extent - at)}},
                          {{at}, {0}}};
    for (size_t i = 0; i < all.size(); ++i) {
      all[i].offset.push_back(each[i].offset[0]);
      all[i].extent.push_back(each[i].extent[0]);
    }
  }
  return all;
}

std::vector<char> cut(const std::vector<char>& whole, const Shape& shape, const Slice& box,
                      int64_t bytes) {
  std::vector<char> out(static_cast<size_t>(volume(box.extent) * bytes));
  copy_overlap({Shape(shape.size(), 0), shape}, whole.data(), box, out.data(), bytes);
  return out;
}

TEST(HfFolder, ComesBackAsItWasWritten) {
  const TemporaryFolder folder;
  int n = 0;
  for (const ModelPlan& model : models()) {
    for (const DType type : {DType::kF64, DType::kF32, DType::kBF16}) {
      for (const int64_t shard : {int64_t{1} << 30, int64_t{1000}}) {
        const std::string path = folder / text(n++);
        write(path, model, type, shard);
        EXPECT_EQ(std::filesystem::exists(path + "/model.safetensors"), shard > 1000);
        const Folder back(path);
        ModelPlan read = back.config().model;
        read.dtype = model.dtype;
        EXPECT_EQ(read, model) << json_line(config_json(family_of(model), model, type));
        EXPECT_EQ(back.type(), type);
        for (const Mapped& t : back.tensors()) {
          if (type == DType::kBF16) continue;  // bits of a number may be infinite there
          const std::vector<char> whole = numbered(back.tensors(), t, size_of(type));
          const auto read = [&](const Slice& box) {
            std::vector<char> bytes(static_cast<size_t>(volume(box.extent) * size_of(type)));
            back.read(t, box, bytes.data());
            return bytes;
          };
          EXPECT_EQ(read({Shape(t.shape.size(), 0), t.shape}), whole) << t.name;
          for (const Slice& box : boxes_of(t.shape)) {
            EXPECT_EQ(read(box), cut(whole, t.shape, box, size_of(type)))
                << t.name << " " << to_string(box.offset) << to_string(box.extent);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace kuafu::hf
