// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <functional>
#include <numeric>

#include "kuafu/base/errors.h"
#include "kuafu/checkpoint/checkpoint.h"
#include "tests/record/support.h"

namespace kuafu {
namespace {

namespace fs = std::filesystem;
using test::TemporaryFolder;

/// Saves the (4, 6) tensor `w`, element i = i, in two halves, and `v` of 5 elements; step 7.
std::string save_sample(const std::string& root) {
  std::vector<int64_t> data(24);
  std::iota(data.begin(), data.end(), 0);
  const CheckpointWriter writer(root, 7);
  writer.prepare();
  writer.write(0, {{"w", DType::kI64, {4, 6}, {{0, 0}, {2, 6}}, data.data()},
                   {"v", DType::kI64, {5}, {{0}, {5}}, data.data()}});
  writer.write(1, {{"w", DType::kI64, {4, 6}, {{2, 0}, {2, 6}}, data.data() + 12}});
  writer.commit(2, {{"optimizer_steps", "7"}, {"loss_scale", "65536.0"}});
  return *newest_checkpoint(root);
}

/// Puts another index in the place of the one that was written, with a checksum that fits it: what
/// a program with an error, or somebody by hand, would leave.
void rewrite_index(const std::string& folder, const std::function<void(Json&)>& edit) {
  Json index = Json::parse(test::read_text(folder + "/index.json"));
  index.erase("checksum");
  edit(index);
  const std::string content = index.dump();
  index["checksum"] = hex(checksum(content.data(), static_cast<int64_t>(content.size())));
  test::write_text(folder + "/index.json", index.dump(1) + "\n");
}

/// Opens the checkpoint and reads all of it; the message of the ConfigError, empty where it passes.
std::string message_of(const std::string& folder) {
  try {
    const Checkpoint saved(folder);
    std::vector<int64_t> w(24, -1), v(5, -1);
    saved.read("w", {{0, 0}, {4, 6}}, w.data());
    saved.read("v", {{0}, {5}}, v.data());
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "";
}

// Bytes that are whole, of the same extents and type, and not those of the tensor.
TEST(Checkpoint, APieceThatIsAnotherTensorsIsNamed) {
  const TemporaryFolder root;
  const std::vector<int64_t> first = {1, 2, 3}, second = {4, 5, 6};
  const CheckpointWriter writer(root.path(), 7);
  writer.prepare();
  writer.write(0, {{"m", DType::kI64, {3}, {{0}, {3}}, first.data()},
                   {"v", DType::kI64, {3}, {{0}, {3}}, second.data()}});
  writer.commit(1, {});
  const std::string folder = *newest_checkpoint(root.path());
  const auto read = [&] {
    const Checkpoint saved(folder);
    std::vector<int64_t> out(3);
    for (const char* name : {"m", "v"}) saved.read(name, {{0}, {3}}, out.data());
  };
  EXPECT_NO_THROW(read());
  rewrite_index(folder, [](Json& index) { index["tensors"]["m"] = index["tensors"]["v"]; });
  try {
    read();
    FAIL() << "m has the bytes of v";
  } catch (const ConfigError& e) {
    const std::string what = e.what();
    EXPECT_NE(what.find("is not the part of \"m\" that its index takes it for"), std::string::npos)
        << what;
  }
}

/// What one wrong place of the index is answered with.
struct Wrong {
  const char* where;                 ///< JSON pointer
  Json value;                        ///< that stands there
  std::vector<std::string> answers;  ///< parts of the message
};

TEST(CheckpointIndex, EveryWrongFieldIsNamed) {
  const Json huge = int64_t{1} << 62;
  const std::string piece = "/tensors/w/pieces/1";
  const std::vector<Wrong> all = {
      {"/step", 8, {"step", "8", "step-00000007"}},
      {"/step", -1, {"step", "-1"}},
      {"/step", 7.5, {"step", "7.5"}},
      {"/step", true, {"step", "true"}},
      {"/ranks", 1, {"tensors.w.pieces.1.file", "rank-00001"}},
      {"/ranks", 0, {"ranks", "0"}},
      {"/state", {1, 2}, {"state", "[1,2]"}},
      {"/state/optimizer_steps", 7, {"state.optimizer_steps", "7"}},
      {"/tensors/w/dtype", "f31", {"tensors.w.dtype", "f31"}},
      {"/tensors/w/dtype", "f64", {"w@0", "f64", "i64"}},
      {"/tensors/w/global", {4, huge}, {"tensors.w.global", "overflow"}},
      {"/tensors/w/global", {4, -6}, {"tensors.w.global", "-6"}},
      {"/tensors/w/global", {4, 7}, {"tensors.w", "gap"}},
      {"/tensors/w/global", {4, 5}, {"tensors.w.pieces.0.slice", "(4, 5)"}},
      {"/tensors/w/global", {4.0, 6.0}, {"tensors.w.global", "4.0"}},
      {"/tensors/w/pieces", Json::array(), {"tensors.w.pieces", "no piece"}},
      {"/tensors/w/pieces", 3, {"tensors.w.pieces", "3"}},
      {"/tensors/w/pieces/1/slice/offset", {2}, {"tensors.w.pieces.1.slice", "2 dims"}},
      {"/tensors/w/pieces/1/slice/extent", {12}, {"tensors.w.pieces.1.slice", "2 dims"}},
      {"/tensors/w/pieces/1/slice/offset", {3, 0}, {"tensors.w.pieces.1.slice", "(3, 0)"}},
      {"/tensors/w/pieces/1/slice/offset", {-1, 0}, {"tensors.w.pieces.1.slice", "-1"}},
      {"/tensors/w/pieces/1/slice/offset", {huge, 0}, {"tensors.w.pieces.1.slice"}},
      {"/tensors/w/pieces/1/slice/offset", {1, 0}, {"tensors.w", "overlap", "(1, 0)"}},
      {"/tensors/w/pieces/1/slice/extent", {1, 6}, {"tensors.w", "gap", "(3, 0)"}},
      {"/tensors/w/pieces/1/slice/extent", {0, 6}, {"tensors.w.pieces.1.slice"}},
      {"/tensors/w/pieces/1/file", "../secret", {"tensors.w.pieces.1.file", "../secret"}},
      {"/tensors/w/pieces/1/file", "/etc/passwd", {"tensors.w.pieces.1.file", "/etc/passwd"}},
      {"/tensors/w/pieces/1/file", "rank-1.safetensors", {"tensors.w.pieces.1.file"}},
      {"/tensors/w/pieces/1/key", 5, {"tensors.w.pieces.1.key", "5"}},
      {"/tensors/w/pieces/1/key", "w@9", {"w@9", "rank-00001"}},
      {"/tensors/w/pieces/1/checksum", "12", {"tensors.w.pieces.1.checksum", "12"}},
      {"/tensors/w/pieces/1/checksum", "0123456789abcdef", {"w@0", "rank-00001"}},
  };
  for (const Wrong& wrong : all) {
    const TemporaryFolder root;
    const std::string folder = save_sample(root.path());
    ASSERT_EQ(message_of(folder), "");
    rewrite_index(folder,
                  [&](Json& index) { index[Json::json_pointer(wrong.where)] = wrong.value; });
    const std::string message = message_of(folder);
    EXPECT_NE(message.find(folder), std::string::npos) << wrong.where << ": " << message;
    for (const std::string& part : wrong.answers) {
      EXPECT_NE(message.find(part), std::string::npos)
          << wrong.where << " = " << wrong.value << ": " << message << "\nlacks " << part;
    }
  }
}

TEST(CheckpointIndex, AWrongTypeOfATypeIsToldOnce) {
  const TemporaryFolder root;
  const std::string folder = save_sample(root.path());
  rewrite_index(folder, [](Json& index) { index["tensors"]["w"]["dtype"] = 7; });
  const std::string message = message_of(folder), words = "tensors.w.dtype: expected text";
  EXPECT_NE(message.find(words), std::string::npos) << message;
  EXPECT_EQ(message.find("use an earlier"), message.rfind("use an earlier")) << message;
}

TEST(CheckpointIndex, EveryMissingFieldIsNamed) {
  for (const char* where :
       {"step", "ranks", "state", "tensors", "tensors/w/dtype", "tensors/w/global",
        "tensors/w/pieces", "tensors/w/pieces/0/file", "tensors/w/pieces/0/key",
        "tensors/w/pieces/0/checksum", "tensors/w/pieces/0/slice",
        "tensors/w/pieces/0/slice/offset", "tensors/w/pieces/0/slice/extent"}) {
    const TemporaryFolder root;
    const std::string folder = save_sample(root.path());
    std::string dotted = where;
    rewrite_index(folder, [&](Json& index) {
      const size_t cut = dotted.rfind('/');
      Json& parent =
          cut == std::string::npos ? index : index[Json::json_pointer("/" + dotted.substr(0, cut))];
      parent.erase(dotted.substr(cut == std::string::npos ? 0 : cut + 1));
    });
    std::replace(dotted.begin(), dotted.end(), '/', '.');
    const std::string message = message_of(folder);
    EXPECT_NE(message.find(dotted + " is missing"), std::string::npos) << where << ": " << message;
  }
}

TEST(CheckpointIndex, NumbersOfTheStateAreChecked) {
  const TemporaryFolder root;
  const std::string folder = save_sample(root.path());
  EXPECT_EQ(Checkpoint(folder).state_count("optimizer_steps"), 7);
  EXPECT_EQ(Checkpoint(folder).state_number("loss_scale"), 65536.0);
  for (const char* bad : {"", "1e999", "-1", "7.5", "7 ", "99999999999999999999", "nan"}) {
    rewrite_index(folder, [&](Json& index) { index["state"]["optimizer_steps"] = bad; });
    try {
      Checkpoint(folder).state_count("optimizer_steps");
      ADD_FAILURE() << bad;
    } catch (const ConfigError& e) {
      const std::string message = e.what();
      EXPECT_NE(message.find("state.optimizer_steps"), std::string::npos) << message;
      EXPECT_NE(message.find(std::string("\"") + bad + "\""), std::string::npos) << message;
    }
  }
  for (const char* bad : {"", "1e999", "0", "-2.0", "nan", "inf", "2.0x"}) {
    rewrite_index(folder, [&](Json& index) { index["state"]["loss_scale"] = bad; });
    EXPECT_THROW(Checkpoint(folder).state_number("loss_scale"), ConfigError) << bad;
  }
  EXPECT_THROW(Checkpoint(folder).state_count("no such key"), ConfigError);
}

// A parser keeps the last of two, and so does the checksum: nobody would know of the first.
TEST(CheckpointIndex, AKeyTwiceIsNamed) {
  const TemporaryFolder root;
  const std::string folder = save_sample(root.path()), path = folder + "/index.json";
  const std::string sound = test::read_text(path);
  const auto answer_to = [&](const std::string& before, const std::string& more) {
    std::string bytes = sound;
    const size_t at = bytes.find(before);
    EXPECT_NE(at, std::string::npos) << before;
    test::write_text(path, bytes.insert(at, more));
    return message_of(folder);
  };
  for (const auto& [before, more, named] : std::vector<std::array<std::string, 3>>{
           {"\"step\"", "\"step\": 8, ", "\"step\""},
           {"\"loss_scale\"", "\"loss_scale\": \"1\", ", "\"state.loss_scale\""},
           {"\"w\"", "\"w\": {}, ", "\"tensors.w\""},
           {"\"dtype\"", "\"dtype\": [{\"dtype\": 1}], ", "\"tensors.v.dtype\""},
           {"\"offset\"", "\"offset\": [0], ", "\"tensors.v.pieces.slice.offset\""}}) {
    const std::string message = answer_to(before, more);
    EXPECT_NE(message.find(named + " twice"), std::string::npos) << message;
    EXPECT_NE(message.find(path), std::string::npos) << message;
  }
  EXPECT_EQ(answer_to("\"step\"", ""), "");
}

TEST(CheckpointIndex, AnotherFormatIsNamedWithBothVersions) {
  const TemporaryFolder root;
  const std::string folder = save_sample(root.path());
  rewrite_index(folder, [&](Json& index) { index["format"] = 1; });
  const std::string message = message_of(folder);
  EXPECT_NE(message.find("format 1"), std::string::npos) << message;
  EXPECT_NE(message.find("reads 2"), std::string::npos) << message;
}

TEST(CheckpointIndex, NoDepthOfNestingOverflowsTheStack) {
  const TemporaryFolder root;
  const std::string folder = save_sample(root.path());
  for (const char* open : {"[", "{\"a\":"}) {
    std::string deep = "{\"checksum\":\"0123456789abcdef\",\"x\":";
    for (int i = 0; i < 300'000; ++i) deep += open;
    for (const bool is_closed : {false, true}) {
      if (is_closed) {
        if (*open == '{') deep += "1";
        for (int i = 0; i < 300'000; ++i) deep += *open == '{' ? "}" : "]";
        deep += "}";
      }
      test::write_text(folder + "/index.json", deep);
      EXPECT_NE(message_of(folder), "");
    }
  }
}

TEST(Checkpoint, NoPathLeavesItsFolder) {
  const TemporaryFolder root, outside;
  const std::string folder = save_sample(root.path());
  for (const char* name : {"rank-00001.safetensors", "index.json"}) {
    const std::string inside = folder + "/" + name;
    fs::copy_file(inside, outside / name);
    fs::remove(inside);
    fs::create_symlink(outside / name, inside);
    const std::string message = message_of(folder);
    EXPECT_NE(message.find(name), std::string::npos) << message;
    EXPECT_NE(message.find("link"), std::string::npos) << message;
    fs::remove(inside);
    fs::copy_file(outside / name, inside);
  }
  EXPECT_EQ(message_of(folder), "");
  fs::rename(folder, outside / "step-00000007");
  fs::create_directory_symlink(outside / "step-00000007", folder);
  EXPECT_FALSE(newest_checkpoint(root.path()).has_value());
}

TEST(Checkpoint, WithoutAnIndexOfItsOwnIsDamaged) {
  const TemporaryFolder root;
  const std::string index = save_sample(root.path()) + "/index.json";
  const auto expect_damaged = [&](const char* words) {
    EXPECT_TRUE(complete_checkpoints(root.path()).empty()) << words;
    const std::vector<std::string> found = checkpoints(root.path());
    ASSERT_EQ(found, std::vector<std::string>{root / "step-00000007"}) << words;
    try {
      const Checkpoint opened(found[0]);
      ADD_FAILURE() << words;
    } catch (const ConfigError& e) {
      EXPECT_NE(std::string(e.what()).find(words), std::string::npos) << e.what();
    }
  };
  fs::remove(index);
  expect_damaged("it has no index.json");
  fs::create_symlink("/dev/zero", index);
  expect_damaged("is a link");
  fs::remove(index);
  ASSERT_EQ(::mkfifo(index.c_str(), 0600), 0);
  expect_damaged("is no regular file");
}

TEST(Checkpoint, OrderIsThatOfTheSteps) {
  const TemporaryFolder root;
  const std::string folder = save_sample(root.path());
  for (const char* name : {"step-99999999", "step-100000000", "step-", "step-7", "step-00000008x",
                           "step-99999999999999999999"}) {
    fs::copy(folder, root / name);
  }
  const std::vector<std::string> found = complete_checkpoints(root.path());
  EXPECT_EQ(found, (std::vector<std::string>{root / "step-100000000", root / "step-99999999",
                                             root / "step-00000007"}));
}

}  // namespace
}  // namespace kuafu
