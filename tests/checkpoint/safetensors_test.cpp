// SPDX-License-Identifier: Apache-2.0
#include "kuafu/checkpoint/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <limits>

#include "kuafu/base/errors.h"
#include "kuafu/checkpoint/weights.h"
#include "tests/record/support.h"

namespace kuafu {
namespace {

using test::read_text;
using test::TemporaryFolder;
using test::write_text;

const std::vector<double> kWeights = {1.5, -2, 0, 3e300, 5, 6};
const std::vector<int64_t> kSteps = {7};

void write_sample(const std::string& path) {
  write_safetensors(path,
                    {{"w", DType::kF64, {2, 3}, kWeights.data()},
                     {"step", DType::kI64, {}, kSteps.data()},
                     {"none", DType::kBF16, {0, 4}, nullptr}},
                    {{"who", "rank 3"}});
}

TEST(SafetensorsFile, ReadsBack) {
  const TemporaryFolder folder;
  write_sample(folder / "a.safetensors");
  const Safetensors file(folder / "a.safetensors");
  EXPECT_EQ(file.metadata().at("who"), "rank 3");
  EXPECT_EQ(file.entries().at("w").shape, (Shape{2, 3}));
  EXPECT_EQ(file.entries().at("none").dtype, DType::kBF16);
  const std::vector<char> bytes = file.read("w");
  ASSERT_EQ(bytes.size(), 48u);
  EXPECT_EQ(std::memcmp(bytes.data(), kWeights.data(), 48), 0);
  EXPECT_TRUE(file.read("none").empty());
  EXPECT_THROW(file.read("v"), ConfigError);
}

TEST(Weights, OfNoNumberAreRefusedByNameAndIndex) {
  const TemporaryFolder folder;
  const double inf = std::numeric_limits<double>::infinity();
  const std::vector<double> f64 = {1, -1.7e308, 0, 5e-324, -inf, 6};
  const std::vector<uint32_t> f32 = {0x7F7F'FFFF, 0x7FC0'0000};
  const std::vector<uint16_t> bf16 = {0x7F7F, 0xFF81}, f16 = {0x7BFF, 0x7C00};
  const std::vector<std::pair<TensorBytes, std::string>> wrong = {
      {{"w", DType::kF64, {2, 3}, f64.data()}, "tensor w is infinite or no number at [1, 1]"},
      {{"b", DType::kF32, {2}, f32.data()}, "tensor b is infinite or no number at [1]"},
      {{"c", DType::kBF16, {2, 1}, bf16.data()}, "tensor c is infinite or no number at [1, 0]"},
      {{"d", DType::kF16, {2}, f16.data()}, "tensor d is infinite or no number at [1]"}};
  for (const auto& [tensor, says] : wrong) {
    write_safetensors(folder / "a.safetensors", {tensor}, {});
    const Safetensors file(folder / "a.safetensors", SafetensorsKind::kPlain);
    try {
      require_finite(file, tensor.name, file.read(tensor.name));
      ADD_FAILURE() << says;
    } catch (const ConfigError& e) {
      EXPECT_NE(std::string(e.what()).find(says), std::string::npos) << e.what();
    }
  }
  write_sample(folder / "a.safetensors");
  const Safetensors sound(folder / "a.safetensors");
  for (const auto& [name, entry] : sound.entries()) {
    EXPECT_NO_THROW(require_finite(sound, name, sound.read(name)));
  }
}

TEST(SafetensorsFile, IsTheSameATensorAtATime) {
  const TemporaryFolder folder;
  write_sample(folder / "a.safetensors");
  const std::vector<TensorBytes> named = {{"w", DType::kF64, {2, 3}, nullptr},
                                          {"step", DType::kI64, {}, nullptr},
                                          {"none", DType::kBF16, {0, 4}, nullptr}};
  {
    SafetensorsWriter writer(folder / "b.safetensors", named, {{"who", "rank 3"}});
    writer.add(kWeights.data());
    writer.add(kSteps.data());
    writer.add(nullptr);
    writer.finish();
    SafetensorsWriter left(folder / "c.safetensors", named, {});
    left.add(kWeights.data());
  }
  EXPECT_EQ(read_text(folder / "b.safetensors"), read_text(folder / "a.safetensors"));
  EXPECT_FALSE(std::filesystem::exists(folder / "c.safetensors"));
}

TEST(SafetensorsFile, OfOtherToolsHasNoChecksums) {
  const TemporaryFolder folder;
  const std::string head = R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
  std::string bytes(8, '\0');
  bytes[0] = static_cast<char>(head.size());
  write_text(folder / "a.safetensors", bytes + head + "abcd");
  const Safetensors file(folder / "a.safetensors", SafetensorsKind::kPlain);
  EXPECT_EQ(file.read("w"), (std::vector<char>{'a', 'b', 'c', 'd'}));
  EXPECT_THROW(Safetensors(folder / "a.safetensors"), ConfigError);
}

// A parser keeps the last of two: nobody would know of the first.
TEST(SafetensorsFile, AKeyTwiceIsNamed) {
  const TemporaryFolder folder;
  const std::string row = R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})";
  for (const auto& [head, named] :
       {std::pair{R"({"w":)" + row + R"(,"w":)" + row + "}", "\"w\" twice"},
        {R"({"__metadata__":{"a":"1"},"__metadata__":{"a":"2"},"w":)" + row + "}",
         "\"__metadata__\" twice"},
        {R"({"__metadata__":{"a":"1","a":"2"},"w":)" + row + "}", "\"__metadata__.a\" twice"}}) {
    std::string bytes(8, '\0');
    bytes[0] = static_cast<char>(head.size());
    write_text(folder / "a.safetensors", bytes + head + "abcd");
    try {
      const Safetensors file(folder / "a.safetensors", SafetensorsKind::kPlain);
      ADD_FAILURE() << head;
    } catch (const ConfigError& e) {
      EXPECT_NE(std::string(e.what()).find(named), std::string::npos) << e.what();
    }
  }
}

TEST(SafetensorsFile, IsTheFormatOfOtherTools) {
  const TemporaryFolder folder;
  write_sample(folder / "a.safetensors");
  const std::string bytes = read_text(folder / "a.safetensors");
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  EXPECT_EQ(length % 8, 0u);
  const Json header = Json::parse(bytes.substr(8, length));
  EXPECT_EQ(header.at("w").at("dtype"), "F64");
  EXPECT_EQ(header.at("w").at("data_offsets"), (Json{0, 48}));
  EXPECT_EQ(bytes.size(), 8 + length + 56);
}

TEST(SafetensorsFile, OfAnotherFormatIsNotCalledDamaged) {
  const TemporaryFolder folder;
  const std::string path = folder / "notes.txt";
  write_text(path, "my notes, line by line");
  try {
    const Safetensors file(path, SafetensorsKind::kPlain);
    FAIL() << "read";
  } catch (const ConfigError& error) {
    const std::string said = error.what();
    EXPECT_NE(said.find("is no safetensors file: it begins with \"my notes\""), std::string::npos)
        << said;
    EXPECT_NE(said.find("8 bytes"), std::string::npos) << said;
  }
}

TEST(SafetensorsFile, CutShortAnywhereIsNamed) {
  const TemporaryFolder folder;
  write_sample(folder / "a.safetensors");
  const std::string whole = read_text(folder / "a.safetensors");
  for (size_t size = 0; size < whole.size(); ++size) {
    write_text(folder / "b", whole.substr(0, size));
    try {
      const Safetensors file(folder / "b");
      FAIL() << size << " of " << whole.size() << " bytes pass";
    } catch (const ConfigError& e) {
      EXPECT_NE(std::string(e.what()).find(folder / "b"), std::string::npos) << e.what();
    }
  }
}

TEST(SafetensorsFile, EveryFlippedByteOfTheDataIsNoticed) {
  const TemporaryFolder folder;
  write_sample(folder / "a.safetensors");
  const std::string whole = read_text(folder / "a.safetensors");
  for (size_t at = whole.size() - 56; at < whole.size(); ++at) {
    std::string bad = whole;
    bad[at] = static_cast<char>(bad[at] ^ 0x10);
    write_text(folder / "b", bad);
    const Safetensors file(folder / "b");
    int noticed = 0;
    for (const char* name : {"w", "step"}) {
      try {
        file.read(name);
      } catch (const ConfigError& e) {
        EXPECT_NE(std::string(e.what()).find(name), std::string::npos) << e.what();
        ++noticed;
      }
    }
    EXPECT_EQ(noticed, 1) << "byte " << at;
  }
}

TEST(Checksum, SeesLengthOrderAndZeros) {
  const std::string zeros(64, '\0');
  EXPECT_NE(checksum(zeros.data(), 63), checksum(zeros.data(), 64));
  const std::string ab = "aaaaaaaabbbbbbbbcccccccc", ba = "bbbbbbbbaaaaaaaacccccccc",
                    cb = "ccccccccbbbbbbbbaaaaaaaa";
  EXPECT_NE(checksum(ab.data(), 24), checksum(ba.data(), 24));
  EXPECT_NE(checksum(ab.data(), 24), checksum(cb.data(), 24));
}

TEST(SafetensorsFile, AFullDiskIsAnError) {
  const TemporaryFolder folder;
  const std::vector<char> big(1 << 20);
  const test::FileSizeLimit limit(1 << 16);
  EXPECT_THROW(write_safetensors(folder / "a", {{"x", DType::kU8, {1 << 20}, big.data()}}, {}),
               ConfigError);
}

}  // namespace
}  // namespace kuafu
