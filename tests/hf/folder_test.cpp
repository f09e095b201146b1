// SPDX-License-Identifier: Apache-2.0
#include "kuafu/hf/folder.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "kuafu/base/config.h"
#include "kuafu/base/errors.h"
#include "kuafu/record/json_text.h"
#include "tests/base/messages.h"
#include "tests/record/support.h"

namespace kuafu::hf {
namespace {

using test::TemporaryFolder;

/// Models of every family, with each option that its tensors depend on.
std::vector<ModelPlan> models() {
  ModelPlan gpt;
  gpt.layers = 2;
  gpt.hidden = 12;
  gpt.heads = 3;
  gpt.vocab = 7;
  gpt.sequence = 5;
  ModelPlan untied = gpt;
  untied.tied = false;
  untied.ffn = 10;
  ModelPlan opt = gpt;
  opt.kind = "opt";
  opt.mlp = "relu";
  ModelPlan opt_350m = opt;
  opt_350m.post_norm = true;
  opt_350m.embedding = 4;
  ModelPlan llama = gpt;
  llama.positions = "rotary";
  llama.norm = "rms";
  llama.mlp = "swiglu";
  llama.bias = false;
  llama.tied = false;
  llama.ffn = 20;
  llama.norm_epsilon = 1e-6;
  llama.rotary_base = 500000;
  ModelPlan grouped = llama;
  grouped.heads = 6;
  grouped.kv_heads = 2;
  ModelPlan bert = gpt;
  bert.kind = "bert";
  bert.mlp = "gelu_exact";
  bert.norm_epsilon = 1e-12;
  ModelPlan vit = gpt;
  vit.kind = "vit";
  vit.vocab = ModelPlan{}.vocab;
  vit.image = 6;
  vit.patch = 2;
  vit.classes = 3;
  vit.sequence = 10;
  return {gpt, untied, opt, opt_350m, llama, grouped, bert, vit};
}

int64_t elements(const Shape& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

/// Bytes of a tensor that no other tensor and no other place has: "tensor t, element i".
std::vector<char> numbered(const std::vector<Mapped>& all, const Mapped& tensor, int64_t size) {
  int64_t before = 1;
  for (const Mapped& t : all) {
    if (t.name == tensor.name) break;
    before += elements(t.shape);
  }
  std::vector<char> bytes(static_cast<size_t>(elements(tensor.shape) * size));
  for (int64_t i = 0; i < elements(tensor.shape); ++i) {
    const int64_t value = before + i;
    std::memcpy(bytes.data() + i * size, &value, static_cast<size_t>(size));
  }
  return bytes;
}

void write(const std::string& path, const ModelPlan& model, DType type = DType::kF32,
           int64_t shard = 1 << 30) {
  const Family family = family_of(model);
  const std::vector<Mapped> all = mapping(family, model);
  write_folder(
      path, family, model, type, [&](const Mapped& t) { return numbered(all, t, size_of(type)); },
      shard);
}

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
          EXPECT_EQ(back.read(t), numbered(back.tensors(), t, size_of(type))) << t.name;
        }
      }
    }
  }
}

/// Changes a JSON file of a folder.
template <class Change>
void edit(const std::string& file, const Change& change) {
  Json all = parse_json(read_file(file, "test"));
  change(all);
  std::ofstream(file) << all.dump();
}

class Refused : public testing::Test {
 protected:
  void SetUp() override { write(path_, models()[2], DType::kF32, 1000); }

  std::string config(const std::string& member, const Json& value) {
    edit(path_ + "/config.json", [&](Json& c) { c[member] = value; });
    return refusal();
  }
  std::string refusal() const {
    return message_of<ConfigError>([&] { Folder{path_}; });
  }

  TemporaryFolder folder_;
  std::string path_ = folder_ / "opt";
};

TEST_F(Refused, ConfigsNameMemberAndWhatIsAllowed) {
  expect_says(config("model_type", "gpt"), {"config.json: model_type is \"gpt\"", "\"gpt2\""});
  expect_says(config("model_type", "mistral"), {"\"llama\"", "nearest"});
  expect_says(config("model_type", 3), {"model_type is 3", "a text"});
}

TEST_F(Refused, OptsThatKuafuHasNot) {
  expect_says(config("activation_function", "silu"),
              {"activation_function is \"silu\"", "\"relu\""});
}

TEST_F(Refused, TensorsByName) {
  expect_says(config("hidden_size", 24), {"by the config it is", "24"});
}

TEST_F(Refused, LessLayersThanThereAreTensors) {
  expect_says(config("num_hidden_layers", 1), {"layers.1.", "is none of a opt of this config"});
}

TEST_F(Refused, MoreLayersThanThereAreTensors) {
  expect_says(config("num_hidden_layers", 3), {"has no tensor model.decoder.layers.2."});
}

TEST_F(Refused, IndexesThatLeadOutOfTheFolder) {
  edit(path_ + "/model.safetensors.index.json",
       [](Json& i) { i["weight_map"].begin().value() = "../model.safetensors"; });
  expect_says(refusal(), {"../model.safetensors", "in this folder"});
}

TEST_F(Refused, FoldersOfNothing) {
  expect_says(message_of<ConfigError>([&] { Folder{folder_ / "none"}; }),
              {"none", "save_pretrained"});
  std::filesystem::remove(path_ + "/config.json");
  expect_says(refusal(), {"config.json"});
}

TEST(HfFamily, OfAModelThatNoneHasIsRefusedByItsKey) {
  ModelPlan model = models()[0];
  model.parallel_blocks = true;
  expect_says(message_of<ConfigError>([&] { family_of(model); }), {"model.parallel_blocks = true"});
  model = models()[4];
  model.norm = "layer";
  expect_says(message_of<ConfigError>([&] { family_of(model); }), {"model.norm = \"layer\""});
  model.kind = "moe_gpt";
  expect_says(message_of<ConfigError>([&] { family_of(model); }), {"model.kind = \"moe_gpt\""});
}

}  // namespace
}  // namespace kuafu::hf
