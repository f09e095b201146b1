// SPDX-License-Identifier: Apache-2.0
#include "kuafu/hf/tensors.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/hf/models.h"

namespace kuafu::hf {
namespace {

/// The tensor of ours of that name, and a file's: element i of part p is 1000 p + i.
struct Moved {
  Moved(const ModelPlan& model, const std::string& name) {
    const std::vector<Mapped> all = mapping(family_of(model), model);
    tensor = *std::find_if(all.begin(), all.end(), [&](const Mapped& t) { return t.name == name; });
    ours.resize(static_cast<size_t>(test::elements(tensor.shape)));
    bool is_one = true;  // q, k and v of GPT-2 lie in one tensor of theirs
    for (const TheirColumns& part : tensor.parts) is_one &= part.name == tensor.parts[0].name;
    for (size_t part = 0; part < tensor.parts.size(); ++part) {
      std::vector<uint32_t> theirs(static_cast<size_t>(test::elements(tensor.theirs)));
      for (size_t i = 0; i < theirs.size(); ++i) {
        theirs[i] = static_cast<uint32_t>((is_one ? 0 : 1000 * part) + i);
      }
      gather(tensor, part, 4,
             {reinterpret_cast<const char*>(theirs.data()), 0, tensor.their_rows()},
             {Shape(tensor.shape.size(), 0), tensor.shape}, reinterpret_cast<char*>(ours.data()));
    }
  }
  int64_t at(int64_t row, int64_t column) const {
    return ours[static_cast<size_t>(row * tensor.shape[1] + column)];
  }

  std::vector<std::string> names() const {
    std::vector<std::string> out;
    for (const TheirColumns& part : tensor.parts) out.push_back(part.name);
    return out;
  }

  Mapped tensor;
  std::vector<uint32_t> ours;
};

using Names = std::vector<std::string>;

constexpr int64_t kH = 12, kD = 4;  // of models(): three heads

// Column (3 n + i) D + d of ours is row n D + d of q, k or v (i = 0, 1, 2), which are (out, in).
TEST(HfTensors, TakeQueriesKeysAndValuesHeadByHead) {
  const Moved weight(test::models()[2], "blocks.1.attn.qkv.weight");
  const Moved bias(test::models()[2], "blocks.1.attn.qkv.bias");
  const std::string self = "model.decoder.layers.1.self_attn.";
  EXPECT_EQ(weight.names(),
            (Names{self + "q_proj.weight", self + "k_proj.weight", self + "v_proj.weight"}));
  EXPECT_EQ(bias.names(),
            (Names{self + "q_proj.bias", self + "k_proj.bias", self + "v_proj.bias"}));
  for (int64_t n = 0; n < 3; ++n) {
    for (int64_t i = 0; i < 3; ++i) {
      for (int64_t d = 0; d < kD; ++d) {
        const int64_t column = (3 * n + i) * kD + d;
        EXPECT_EQ(bias.ours[static_cast<size_t>(column)], 1000 * i + n * kD + d);
        for (int64_t row = 0; row < kH; ++row) {
          EXPECT_EQ(weight.at(row, column), 1000 * i + (n * kD + d) * kH + row);
        }
      }
    }
  }
}

// Theirs is (in, out) with q, k and v side by side.
TEST(HfTensors, TakeThePackedTensorOfAGpt2) {
  const Moved weight(test::models()[0], "blocks.0.attn.qkv.weight");
  for (int64_t row = 0; row < kH; ++row) {
    for (int64_t n = 0; n < 3; ++n) {
      for (int64_t i = 0; i < 3; ++i) {
        EXPECT_EQ(weight.at(row, (3 * n + i) * kD + 1), row * 3 * kH + i * kH + n * kD + 1);
      }
    }
  }
}

// Column 2 j is the gate of j, 2 j + 1 its value.
TEST(HfTensors, TakeGatesAndValuesInPairs) {
  const Moved up(test::models()[4], "blocks.0.mlp.up.weight");
  const std::string mlp = "model.layers.0.mlp.";
  EXPECT_EQ(up.names(), (Names{mlp + "gate_proj.weight", mlp + "up_proj.weight"}));
  for (int64_t row = 0; row < kH; ++row) {
    for (int64_t j = 0; j < 20; ++j) {
      EXPECT_EQ(up.at(row, 2 * j), j * kH + row);
      EXPECT_EQ(up.at(row, 2 * j + 1), 1000 + j * kH + row);
    }
  }
}

// Six heads of 2, two of keys: column (2 n + i) D + d is a key (i = 0) or value (1) of head n.
TEST(HfTensors, TakeKeysAndValuesOfFewerHeads) {
  const Moved kv(test::models()[5], "blocks.0.attn.kv.weight");
  const std::string self = "model.layers.0.self_attn.";
  EXPECT_EQ(kv.names(), (Names{self + "k_proj.weight", self + "v_proj.weight"}));
  for (int64_t row = 0; row < kH; ++row) {
    for (int64_t n = 0; n < 2; ++n) {
      for (int64_t i = 0; i < 2; ++i) {
        EXPECT_EQ(kv.at(row, (2 * n + i) * 2 + 1), 1000 * i + (n * 2 + 1) * kH + row);
      }
    }
  }
}

// Row 3 (P r + c) + k meets channel k of the pixel in row r, column c; theirs is (H, k, r, c).
TEST(HfTensors, TakePatchesPixelByPixel) {
  const Moved patches(test::models()[7], "embedding.patches.weight");
  for (int64_t pixel = 0; pixel < 4; ++pixel) {
    for (int64_t channel = 0; channel < 3; ++channel) {
      for (int64_t column = 0; column < kH; ++column) {
        EXPECT_EQ(patches.at(3 * pixel + channel, column), column * 12 + channel * 4 + pixel);
      }
    }
  }
}

// The table's first two rows are part of it.
TEST(HfTensors, TakeTheWholeTableOfPositionsOfAnOpt) {
  const Moved positions(test::models()[2], "embedding.positions");
  EXPECT_EQ(positions.tensor.shape, (Shape{7, kH}));
  for (int64_t i = 0; i < 7 * kH; ++i) EXPECT_EQ(positions.ours[static_cast<size_t>(i)], i);
}

}  // namespace
}  // namespace kuafu::hf
