// SPDX-License-Identifier: Apache-2.0
//
// Folders that are refused: one message each, with file, member or tensor, and what is allowed.

#include <algorithm>
#include <filesystem>

#include "kuafu/base/config.h"
#include "kuafu/record/json_text.h"
#include "tests/base/messages.h"
#include "tests/hf/models.h"
#include "tests/record/support.h"

namespace kuafu::hf {
namespace {

using kuafu::test::TemporaryFolder;

constexpr const char* kOne = "/model.safetensors";
constexpr const char* kShards = "/model.safetensors.index.json";

/// A folder of one of models(), in shards, which a test changes.
class Refused : public testing::Test {
 protected:
  explicit Refused(size_t model = 2) : model_(test::models()[model]) {
    test::write(path_, model_, DType::kF32, 1000);
  }

  template <class Change>
  static void edit(const std::string& file, const Change& change) {
    Json all = parse_json(read_file(file, "test"));
    change(all);
    kuafu::test::write_text(file, all.dump());
  }
  /// What is said of config.json with another value, which is then put back.
  std::string config(const std::string& member, const Json& value) {
    const std::string file = path_ + "/config.json", before = kuafu::test::read_text(file);
    edit(file, [&](Json& c) { c[member] = value; });
    const std::string said = refusal();
    kuafu::test::write_text(file, before);
    return said;
  }
  std::string refusal() const {
    return message_of<ConfigError>([&] { Folder{path_}; });
  }
  /// What is said of the same model in one file, whose tensors a test names and shapes.
  template <class Change>
  std::string rewritten(const Change& change) {
    rewrite(change);
    return refusal();
  }
  template <class Change>
  void rewrite(const Change& change) {
    std::vector<TensorBytes> tensors;
    const std::vector<Mapped> all = mapping(family_of(model_), model_);
    for (const Mapped& t : all) {
      for (const TheirColumns& p : t.parts) {
        tensors.push_back({p.name, DType::kF32, t.theirs, nullptr});
      }
    }
    change(tensors);
    std::filesystem::remove(path_ + kShards);
    SafetensorsWriter writer(path_ + kOne, tensors, {});
    for (const TensorBytes& t : tensors) {
      writer.add(std::vector<char>(static_cast<size_t>(t.bytes())).data());
    }
    writer.finish();
  }

  TemporaryFolder folder_;
  std::string path_ = folder_ / "theirs";
  ModelPlan model_;
};

class RefusedLlama : public Refused {
 protected:
  RefusedLlama() : Refused(5) {}
};
class RefusedBert : public Refused {
 protected:
  RefusedBert() : Refused(6) {}
};
class RefusedVit : public Refused {
 protected:
  RefusedVit() : Refused(7) {}
};
class RefusedGpt2 : public Refused {
 protected:
  RefusedGpt2() : Refused(0) {}
};

TEST_F(Refused, FamiliesWithTheNearest) {
  expect_says(config("model_type", "gpt"),
              {"config.json: model_type is \"gpt\"", "\"llama\"", "nearest: \"gpt2\""});
  expect_says(config("model_type", "llama4"), {"nearest: \"llama\""});
  expect_says(config("model_type", 3), {"model_type is 3", "a text"});
  expect_says(config("model_type", nullptr), {"has no model_type", "\"vit\""});
}

TEST_F(Refused, ConfigsThatAreNone) {
  const std::string file = path_ + "/config.json";
  for (const auto& [text, said] :
       std::vector<std::pair<std::string, std::string>>{{"", "is no JSON"},
                                                        {"{\"a\": 1", "is no JSON"},
                                                        {"[1]", "is no JSON object, but [1]"},
                                                        {std::string(100, '['), "nested"},
                                                        {"{\"a\": 1, \"a\": 2}", "\"a\" twice"},
                                                        {std::string(9, '\0'), "is no JSON"},
                                                        {"{}", "has no model_type"}}) {
    kuafu::test::write_text(file, text);
    expect_says(refusal(), {file, said});
  }
  std::filesystem::remove(file);
  expect_says(refusal(), {file});
}

TEST_F(Refused, CountsThatAreNone) {
  for (const Json& value : {Json(0), Json(-1), Json(1.5), Json("2"), Json(true),
                            Json(int64_t{1} << 60), Json::array({1})}) {
    expect_says(config("vocab_size", value),
                {"config.json: vocab_size is " + json_excerpt(value), "a whole number from 1 to"});
  }
  expect_says(config("num_hidden_layers", 1'000'000'000'000), {"1 to 65536"});
  expect_says(config("ffn_dim", nullptr), {"has no ffn_dim", "a whole number from 1"});
  expect_says(config("num_attention_heads", 5), {"5 heads", "12"});
}

TEST_F(Refused, OptsThatKuafuHasNot) {
  expect_says(config("activation_function", "silu"),
              {"activation_function is \"silu\"", "\"relu\"", "nearest"});
  expect_says(config("enable_bias", false), {"enable_bias is false", "true"});
  expect_says(config("layer_norm_elementwise_affine", false), {"true"});
  expect_says(config("do_layer_norm_before", "yes"), {"true or false"});
}

// What stands beside rope_parameters holds where these do not say it.
TEST_F(RefusedLlama, NoBaseThatStandsOutside) {
  const std::string file = path_ + "/config.json";
  const auto base = [&] { return Folder(path_).config().model.rotary_base; };
  edit(file, [](Json& c) {
    c["rope_theta"] = 30000.0, c["rope_parameters"] = {{"rope_type", "default"}};
  });
  EXPECT_EQ(base(), 30000);
  edit(file, [](Json& c) { c["rope_parameters"]["rope_theta"] = 40000.0; });
  EXPECT_EQ(base(), 40000);
}

TEST_F(RefusedLlama, ThatKuafuHasNot) {
  expect_says(config("rope_scaling", {{"type", "linear"}}), {"rope_scaling", "null"});
  expect_says(config("rope_parameters", {{"rope_type", "yarn"}}), {"rope_type \"default\""});
  expect_says(config("rope_parameters", {{"partial_rotary_factor", 0.5}}), {"of all dims"});
  expect_says(config("rope_parameters", "none"), {"rope_parameters is \"none\"", "an object"});
  expect_says(config("rope_theta", 1), {"rope_theta is 1", "above 1"});
  expect_says(config("attention_bias", true), {"attention_bias is true", "false"});
  expect_says(config("hidden_act", "gelu"), {"hidden_act is \"gelu\"", "\"silu\""});
  expect_says(config("head_dim", 8), {"head_dim is 8", "= 2"});
  expect_says(config("rms_norm_eps", 0), {"rms_norm_eps is 0", "above 0 and below 1"});
}

TEST_F(RefusedBert, ThatKuafuHasNot) {
  expect_says(config("is_decoder", true), {"is_decoder is true", "false"});
  expect_says(config("type_vocab_size", 1), {"type_vocab_size is 1", "2"});
  expect_says(config("position_embedding_type", "relative_key"), {"\"absolute\""});
}

// BertForMaskedLM has no pooler and no next sentence, BertModel the pooler alone.
TEST_F(RefusedBert, NoHeadThatIsMissingAsAWhole) {
  const std::vector<std::vector<std::string>> parts = {{"cls.predictions."},
                                                       {"bert.pooler."},
                                                       {"cls.seq_relationship."},
                                                       {"bert.pooler.", "cls.seq_relationship."},
                                                       {"cls."},
                                                       {"cls.", "bert.pooler."}};
  for (const auto& left_out : parts) {
    const auto is_out = [&](const std::string& name) {
      return std::ranges::any_of(left_out, [&](auto& part) { return name.starts_with(part); });
    };
    rewrite([&](std::vector<TensorBytes>& all) {
      std::erase_if(all, [&](const TensorBytes& t) { return is_out(t.name); });
    });
    const Folder there(path_);
    size_t absent = 0;
    for (const Mapped& ours : mapping(Family::kBert, model_)) {
      const bool is_there = std::ranges::count(there.tensors(), ours.name, &Mapped::name) > 0;
      EXPECT_EQ(is_there, !is_out(ours.parts[0].name)) << ours.name;
      if (!is_there) {
        EXPECT_EQ(there.absent().at(absent++).name, ours.name);
      }
    }
    EXPECT_EQ(absent, there.absent().size());
  }
}

TEST_F(RefusedBert, AHeadInPart) {
  for (const char* one :
       {"cls.predictions.bias", "cls.predictions.transform.dense.weight", "bert.pooler.dense.bias",
        "cls.seq_relationship.weight", "bert.embeddings.word_embeddings.weight"}) {
    const std::string said = rewritten([&](std::vector<TensorBytes>& all) {
      std::erase_if(all, [&](const TensorBytes& t) { return t.name == one; });
    });
    expect_says(said, {"has no tensor ", one});
  }
}

TEST_F(RefusedVit, ThatKuafuHasNot) {
  expect_says(config("num_channels", 1), {"num_channels is 1", "3"});
  expect_says(config("patch_size", 4), {"patch_size is 4", "a divisor of image_size = 6"});
  expect_says(config("qkv_bias", false), {"qkv_bias is false", "true"});
  expect_says(config("id2label", 3), {"id2label is 3", "an object of labels"});
}

TEST_F(RefusedGpt2, ThatKuafuHasNot) {
  expect_says(config("scale_attn_by_inverse_layer_idx", true), {"false"});
  expect_says(config("add_cross_attention", true), {"add_cross_attention is true", "false"});
}

TEST_F(Refused, TensorsThatTheConfigHasNotOrHasOtherwise) {
  expect_says(config("hidden_size", 24), {"by config.json it is", "24"});
  expect_says(config("num_hidden_layers", 1),
              {"\"model.decoder.layers.1.", "is none of the family \"opt\"", "nearest: "});
  expect_says(config("num_hidden_layers", 3), {path_, "has no tensor model.decoder.layers.2."});
  expect_says(config("tie_word_embeddings", false), {"has no tensor lm_head.weight", "(7, 12)"});
}

TEST_F(Refused, TensorsThatAreMissing) {
  expect_says(rewritten([](auto& all) { all.pop_back(); }), {path_ + " has no tensor "});
}

TEST_F(Refused, TensorsThatAreTooMany) {
  expect_says(rewritten([](auto& all) {
                all.push_back({"model.decoder.extra", DType::kF32, {1}});
              }),
              {"\"model.decoder.extra\" is none of the family \"opt\"", "nearest: model.decoder."});
}

TEST_F(Refused, TensorsOfAnotherShape) {
  expect_says(rewritten([](auto& all) {
                for (TensorBytes& t : all) std::reverse(t.shape.begin(), t.shape.end());
              }),
              {kOne, "by config.json it is"});
}

TEST_F(Refused, TensorsOfSeveralTypes) {
  expect_says(rewritten([](auto& all) { all[3].dtype = DType::kF16; }), {"weights of one type"});
}

TEST_F(Refused, TensorsOfIntegers) {
  expect_says(rewritten([](auto& all) {
                for (TensorBytes& t : all) t.dtype = DType::kI32;
              }),
              {"i32", "allowed: f64, f32, bf16, f16"});
}

TEST_F(Refused, TensorsUnderTwoNames) {
  expect_says(rewritten([](auto& all) {
                TensorBytes again = all.back();
                again.name = again.name.substr(std::string("model.").size());
                all.push_back(again);
              }),
              {"is there twice"});
}

TEST_F(Refused, TensorsInTwoShards) {
  std::filesystem::copy(path_ + "/model-00001-of-00015.safetensors", path_ + "/more.safetensors");
  edit(path_ + kShards, [](Json& i) { i["weight_map"]["more"] = "more.safetensors"; });
  expect_says(refusal(), {"is there twice", "model-00001-of-", "more.safetensors"});
}

TEST_F(Refused, Indexes) {
  const std::string index = path_ + kShards, whole = kuafu::test::read_text(index);
  const auto with = [&](const Json& file) {
    kuafu::test::write_text(index, whole);
    edit(index, [&](Json& i) { i["weight_map"].begin().value() = file; });
    return refusal();
  };
  expect_says(with("../model.safetensors"), {"../model.safetensors", "in this folder"});
  expect_says(with("weights.bin"), {"weights.bin", ".safetensors"});
  expect_says(with(3), {"is 3", ".safetensors"});
  expect_says(with("gone.safetensors"), {index, "names gone.safetensors"});
  for (const auto& [text, said] : std::vector<std::pair<std::string, std::string>>{
           {"", "is no JSON"},
           {"{}", "no weight_map"},
           {"{\"weight_map\": {}}", "no weight_map"},
           {"{\"weight_map\": {\"w\": \"a\", \"w\": \"b\"}}", "\"weight_map.w\" twice"}}) {
    kuafu::test::write_text(index, text);
    expect_says(refusal(), {index, said});
  }
  kuafu::test::write_text(index, whole);
  kuafu::test::write_text(path_ + kOne, "");
  expect_says(refusal(), {"has both model.safetensors and model.safetensors.index.json"});
}

TEST_F(Refused, FilesThatWereCut) {
  const std::string shard = path_ + "/model-00002-of-00015.safetensors";
  const std::string whole = kuafu::test::read_text(shard);
  for (const size_t size : {size_t{0}, size_t{7}, size_t{100}, whole.size() - 1}) {
    kuafu::test::write_text(shard, whole.substr(0, size));
    expect_says(refusal(), {shard, "damaged"});
  }
  std::string longer = whole;
  longer[6] = '\x7f';  // a header of 2^55 bytes
  kuafu::test::write_text(shard, longer);
  expect_says(refusal(), {shard, "its header claims"});
}

TEST_F(Refused, FoldersOfNothing) {
  expect_says(message_of<ConfigError>([&] { Folder{folder_ / "none"}; }),
              {"none", "save_pretrained"});
  std::filesystem::remove(path_ + kShards);
  kuafu::test::write_text(path_ + "/pytorch_model.bin", "");
  expect_says(refusal(), {"neither model.safetensors nor", "pytorch_model.bin"});
}

// In the cache of downloads every file is a link to one of another name.
TEST_F(Refused, NotForLinks) {
  for (const auto& entry : std::filesystem::directory_iterator(path_)) {
    const std::string name = entry.path().filename().string(), blob = folder_ / ("blob-" + name);
    std::filesystem::rename(entry.path(), blob);
    std::filesystem::create_symlink(blob, path_ + "/" + name);
  }
  EXPECT_EQ(Folder(path_).config().model, model_);
  std::filesystem::remove(folder_ / "blob-model-00002-of-00015.safetensors");
  expect_says(refusal(), {"names model-00002-of-00015.safetensors", "not in this folder"});
}

TEST(HfFamily, OfAModelThatNoneHasIsRefusedByItsKey) {
  ModelPlan model = test::models()[0];
  model.parallel_blocks = true;
  expect_says(message_of<ConfigError>([&] { family_of(model); }), {"model.parallel_blocks = true"});
  model = test::models()[4];
  model.norm = "layer";
  expect_says(message_of<ConfigError>([&] { family_of(model); }), {"model.norm = \"layer\""});
  model = test::models()[2];
  model.norm_epsilon = 1e-6;
  expect_says(message_of<ConfigError>([&] { family_of(model); }),
              {"model.norm_epsilon = ", "1e-5"});
  model.kind = "moe_gpt";
  expect_says(message_of<ConfigError>([&] { family_of(model); }), {"model.kind = \"moe_gpt\""});
}

// What lies where the folder is made, and is none of an export's.
TEST(HfWrite, ReplacesNothingOfOthers) {
  const TemporaryFolder folder;
  const std::string path = folder / "out", partial = path + ".partial";
  std::filesystem::create_directory(partial);
  kuafu::test::write_text(partial + "/model.safetensors", "left by one that was ended");
  test::write(path, test::models()[0]);
  EXPECT_FALSE(std::filesystem::exists(partial));
  std::filesystem::create_directory(partial);
  kuafu::test::write_text(partial + "/letter", "mine");
  expect_says(message_of<ConfigError>([&] { test::write(folder / "out", test::models()[0]); }),
              {partial, "no export has left"});
  EXPECT_EQ(kuafu::test::read_text(partial + "/letter"), "mine");
}

}  // namespace
}  // namespace kuafu::hf
