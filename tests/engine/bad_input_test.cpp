// SPDX-License-Identifier: Apache-2.0
//
// Documents with one mistake each: one error that names the key, its line and a legal value near
// by.

#include <gtest/gtest.h>

#include <algorithm>
#include <regex>

#include "kuafu/engine/placing/placement.h"
#include "kuafu/plan/origins.h"
#include "tests/dataset/folder.h"
#include "tests/support/plans.h"

namespace kuafu {
namespace {

/// A document whose mistake is on the line that ends with "# here".
struct Mistake {
  const char* what;
  std::string toml;
  std::vector<std::string> says;  ///< the key and what was given
  Overrides cure = {};            ///< legal values that the message names: the plan takes each
  int64_t ranks = 0;              ///< started; 0 = the plan's own
};
std::ostream& operator<<(std::ostream& out, const Mistake& m) { return out << m.what; }

/// What `kuafu run` does before any rank exists.
void place(const std::string& toml, int64_t ranks, const Overrides& overrides = {}) {
  const Registries registries = builtin_registries();
  const TensorModes modes = registries.tensor_modes();
  Plan plan = parse_plan(toml, "plan.toml", modes, overrides, registries.models.names(),
                         registries.sequence.names());
  plan::with_origins(plan::origins_of(toml, "plan.toml", overrides), [&] {
    plan = resolve(plan, ranks, modes);
    check_placement(plan, registries, Advice::kNearest);
    if (!plan.data.path.empty()) tests::data_of(plan);
  });
}

int64_t marked_line(const std::string& toml) {
  return 1 +
         std::count(toml.begin(), toml.begin() + static_cast<int64_t>(toml.find("# here")), '\n');
}

/// Whether a number or word stands in the text by itself: 4 is not in 14.
bool has_word(const std::string& text, const std::string& word) {
  const auto is_inside = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; };
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) {
    const size_t end = at + word.size();
    if ((at == 0 || !is_inside(text[at - 1])) && (end == text.size() || !is_inside(text[end]))) {
      return true;
    }
  }
  return false;
}

class BadInput : public testing::TestWithParam<Mistake> {};

/// The document with another value where the key's last word is given one.
std::string cured(const std::string& toml, const std::string& key, const std::string& value) {
  const std::string word = key.substr(key.rfind('.') + 1);
  const bool is_number = value.find_first_not_of("0123456789.-e") == std::string::npos;
  return std::regex_replace(toml, std::regex("\\b" + word + " = (-?[0-9.e-]+|\"[^\"]*\")"),
                            word + " = " + (is_number ? value : "\"" + value + "\""));
}

TEST_P(BadInput, NamesKeyLineAndALegalValue) {
  const Mistake& m = GetParam();
  std::string message;
  try {
    place(m.toml, m.ranks);
    FAIL() << "was taken";
  } catch (const ConfigError& e) {
    message = e.what();
  }
  const std::string where = text("plan.toml:", marked_line(m.toml), ": ");
  EXPECT_TRUE(message.starts_with(where)) << "not " << where << message;
  EXPECT_EQ(message.find("plan.toml:", 1), std::string::npos) << "two places: " << message;
  for (const std::string& part : m.says) {
    EXPECT_NE(message.find(part), std::string::npos) << "no <" << part << "> in: " << message;
  }
  const std::string advice = message.substr(std::min(message.find("nearest"), message.size()));
  for (const auto& [key, value] : m.cure) {
    EXPECT_TRUE(has_word(advice, value)) << "no " << value << " in: " << message;
    EXPECT_NO_THROW(place(cured(m.toml, key, value), m.ranks, {{key, value}}))
        << key << " = " << value;
  }
}

std::string tensor(const std::string& mode, int64_t size, const std::string& more = "") {
  return text("[parallel]\ntensor.mode = \"", mode, "\"\ntensor.size = ", size, "  # here\n", more);
}

const std::vector<Mistake>& tensor_mistakes() {
  static const std::vector<Mistake> all = {
      {"non-square 2D",
       tensor("2d", 6),
       {"parallel.tensor", "size = 6"},
       {{"parallel.tensor.size", "4"}}},
      {"three ranks for a 2D grid",
       tensor("2d", 3),
       {"parallel.tensor", "size = 3"},
       {{"parallel.tensor.size", "4"}}},
      {"three ranks started for a 2D grid",
       tensor("2d", 4, "[train]\nbatch = 12\n"),
       {"3 ranks were given", "parallel.tensor.size = 4"},
       {{"parallel.tensor.size", "1"}},
       3},
      {"no cube",
       tensor("3d", 12),
       {"parallel.tensor", "size = 12"},
       {{"parallel.tensor.size", "8"}}},
      {"depth that does not divide",
       tensor("2.5d", 8, "tensor.depth = 3\n"),
       {"depth = 3"},
       {{"parallel.tensor.depth", "2"}}},
      {"more 1D ranks than heads",
       "[model]\nheads = 4  # here\n[parallel]\ntensor = { mode = "
       "\"1d\", size = 8 }\n",
       {"model.heads", "4", "8 ranks of tensor"},
       {{"model.heads", "8"}, {"parallel.tensor.size", "4"}}},
      {"more 1D ranks than heads by default",
       tensor("1d", 8),
       {"model.heads", "8 ranks", "parallel.tensor.size"},
       {{"model.heads", "8"}, {"parallel.tensor.size", "4"}}},
      {"more 1D-SP ranks than heads",
       tensor("1d-sp", 16),
       {"model.heads", "16 ranks of tensor"},
       {{"model.heads", "16"}, {"parallel.tensor.size", "4"}}},
      {"heads over the columns of 2D",
       tensor("2d", 9, "[train]\nbatch = 9\n"),
       {"model.heads", "3 ranks of col"},
       {{"parallel.tensor.size", "1"}}},
      {"heads over the columns of 2.5D",
       "[model]\nheads = 2  # here\n[parallel]\n"
       "tensor = { mode = \"2.5d\", size = 32, depth = 2 }\n[train]\nbatch = 8\n",
       {"model.heads", "4 ranks of col"},
       {{"model.heads", "4"}, {"parallel.tensor.size", "8"}}},
      {"heads over an axis of 3D",
       tensor("3d", 27, "[train]\nbatch = 9\n"),
       {"model.heads", "3 ranks of"},
       {{"parallel.tensor.size", "1"}}},
      {"width over the cube",
       "[model]\nhidden = 34  # here\nheads = 2\n" + tensor("3d", 8),
       {"model.hidden"},
       {{"model.hidden", "36"}, {"parallel.tensor.size", "1"}}},
      {"samples over the rows",
       "[parallel]\ntensor = { mode = \"2d\", size = 4 }\n[train]\n"
       "batch = 9  # here\n",
       {"train.batch", "9", "2 ranks of dep.row"},
       {{"train.batch", "8"}, {"train.batch", "10"}, {"parallel.tensor.size", "1"}}},
      {"a micro-batch over the rows",
       "[parallel]\ntensor = { mode = \"2d\", size = 4 }\n[train]\n"
       "batch = 12\nmicro_batch = 3  # here\n",
       {"train.micro_batch", "3", "2 ranks of dep.row"},
       {{"train.micro_batch", "2"}, {"train.micro_batch", "4"}}},
      {"tokens over sequence-parallel norms",
       "[model]\nsequence = 15  # here\n[parallel]\n"
       "tensor = { mode = \"1d-sp\", size = 2 }\n",
       {"model.sequence", "15"},
       {{"model.sequence", "14"}, {"model.sequence", "16"}}},
      {"key-value heads beside ranks",
       "[model]\nheads = 12\nhidden = 96\nkv_heads = 3  # here\n"
       "[parallel]\ntensor = { mode = \"1d\", size = 4 }\n",
       {"model.kv_heads = 3", "4 ranks"},
       {{"model.kv_heads", "2"}, {"model.kv_heads", "4"}, {"parallel.tensor.size", "3"}}},
      {"a width of tokens beside ranks",
       "[model]\nkind = \"opt\"\nembedding = 18  # here\n"
       "[parallel]\ntensor = { mode = \"1d\", size = 4 }\n",
       {"model.embedding", "18", "4 ranks of tensor"},
       {{"model.embedding", "16"}, {"model.embedding", "20"}, {"parallel.tensor.size", "2"}}},
      {"a mode that is none",
       "[parallel]\ntensor = { mode = \"4d\", size = 2 }  # here\n",
       {"parallel.tensor.mode = \"4d\""},
       {{"parallel.tensor.mode", "1d"}}},
      {"a range of layers that overlaps",
       "[model]\nlayers = 4\n[parallel]\ntensor = { mode = "
       "\"1d\", size = 4 }\n[[parallel.layers]]\nfrom = 0\nto = 2\nmode = \"2d\"\n"
       "[[parallel.layers]]\nfrom = 2  # here\nto = 3\nmode = \"2d\"\n",
       {"parallel.layers from = 2 to = 3", "overlaps", "from = 0 to = 2", "nearest: from = 3"}},
      {"a range of layers beyond the last",
       "[model]\nlayers = 4\n[parallel]\ntensor = { mode = "
       "\"1d\", size = 4 }\n[[parallel.layers]]\nfrom = 0\nto = 4  # here\nmode = \"2d\"\n",
       {"parallel.layers.to = 4", "nearest: to = 3"}},
  };
  return all;
}

const std::vector<Mistake>& sequence_and_expert_mistakes() {
  const std::string moe = "[model]\nkind = \"moe_gpt\"\n";
  static const std::vector<Mistake> all = {
      {"a sequence shorter than the ring",
       "[model]\nsequence = 3\n[parallel]\nsequence = { mode = "
       "\"ring\", size = 4 }  # here\n",
       {"parallel.sequence.size = 4", "model.sequence = 3"},
       {{"parallel.sequence.size", "3"}, {"model.sequence", "4"}}},
      {"more Ulysses ranks than heads",
       "[parallel]\nsequence = { mode = \"ulysses\", size = 8 }"
       "  # here\n",
       {"parallel.sequence.size = 8", "model.heads = 4"},
       {{"parallel.sequence.size", "4"}, {"parallel.sequence.mode", "ring"}}},
      {"Ulysses beside tensor ranks that leave too few heads",
       "[parallel]\ntensor = { mode = "
       "\"1d\", size = 4 }\nsequence = { mode = \"ulysses\", size = 2 }  # here\n",
       {"model.heads", "1 heads", "parallel.sequence.mode = \"ulysses\"", "2 ranks"},
       {{"model.heads", "8"}, {"parallel.tensor.size", "2"}, {"parallel.sequence.size", "1"}}},
      {"Ulysses and key-value heads",
       "[model]\nheads = 12\nhidden = 96\nkv_heads = 3  # here\n"
       "[parallel]\nsequence = { mode = \"ulysses\", size = 4 }\n",
       {"model.kv_heads", "3 key-value", "ulysses", "4 ranks"},
       {{"model.kv_heads", "2"}, {"model.kv_heads", "4"}, {"parallel.sequence.size", "3"}}},
      {"a ring size that is none",
       "[parallel]\nsequence = { mode = \"ring\", size = 0 }  # here\n",
       {"parallel.sequence.size = 0"},
       {{"parallel.sequence.size", "1"}}},
      {"a capacity of nothing",
       moe + "capacity_factor = 0  # here\n",
       {"model.capacity_factor = 0"},
       {{"model.capacity_factor", "1e-06"}}},
      {"more choices than experts",
       moe + "router = \"topk\"\nexperts = 4\ntop_k = 5  # here\n",
       {"5 of model.experts = 4"},
       {{"model.top_k", "4"}, {"model.experts", "5"}}},
      {"ranks that cannot share the experts",
       moe + "experts = 4\n[parallel]\ndata = 3\nexpert = 3"
             "  # here\n[train]\nbatch = 6\n",
       {"parallel.expert.size = 3", "model.experts = 4"},
       {{"parallel.expert.size", "1"}}},
      {"images that read no tokens",
       "[data]\nkind = \"synthetic\"\n[model]\nkind = \"vit\"\n"
       "vocab = 300  # here\n",
       {"model.vocab = 300 has no effect"},
       {{"model.vocab", "256"}}},
  };
  return all;
}

const std::vector<Mistake>& other_mistakes() {
  static const std::vector<Mistake> all = {
      {"no layers", "[model]\nlayers = 0  # here\n", {"model.layers = 0"}, {{"model.layers", "1"}}},
      {"an epsilon of nothing",
       "[model]\nnorm_epsilon = 0  # here\n",
       {"model.norm_epsilon = 0", "above 0"},
       {{"model.norm_epsilon", "1e-06"}}},
      {"a rotation without rotary positions",
       "[model]\nrotary_base = 500  # here\n",
       {"model.rotary_base = 500", "no effect", "set model.positions = \"rotary\""}},
      {"norms behind the sums of GPT",
       "[model]\npost_norm = true  # here\n",
       {"model.post_norm = true", "no effect", "set model.kind = \"opt\""}},
      {"a head of its own of BERT",
       "[model]\nkind = \"bert\"\ntied = false  # here\n",
       {"model.tied = false", "no effect", "\"opt\""}},
      {"one norm before both branches and norms behind them",
       "[model]\nkind = \"opt\"\npost_norm = true\nparallel_blocks = true  # here\n",
       {"model.parallel_blocks = true"},
       {{"model.parallel_blocks", "false"}}},
      {"a negative batch",
       "[train]\nbatch = -8  # here\n",
       {"train.batch = -8"},
       {{"train.batch", "1"}}},
      {"a width that heads do not divide",
       "[model]\nhidden = 30\nheads = 4  # here\n",
       {"model.heads = 4", "model.hidden = 30"},
       {{"model.heads", "5"}, {"model.hidden", "32"}}},
      {"a batch that replicas do not divide",
       "[parallel]\ndata = 3\n[train]\nbatch = 8  # here\n",
       {"train.batch = 8", "parallel.data = 3"},
       {{"train.batch", "9"}, {"parallel.data", "2"}}},
      {"a batch of open replicas",
       "[train]\nbatch = 8  # here\n",
       {"train.batch = 8", "parallel.data = 3"},
       {{"train.batch", "9"}},
       3},
      {"a micro-batch that does not divide",
       "[train]\nbatch = 8  # here\nmicro_batch = 3\n",
       {"train.batch = 8", "train.micro_batch", "3"},
       {{"train.micro_batch", "2"}}},
      {"a misspelt key", "[model]\nhiden = 32  # here\n", {"model.hiden", "nearest: model.hidden"}},
      {"words for a number",
       "[model]\nheads = \"4\"  # here\n",
       {"model.heads = \"4\""},
       {{"model.heads", "4"}}},
      {"more ranks than there can be",
       "[parallel]\ndata = 1048576  # here\n[train]\n"
       "batch = 1048576\n[parallel.tensor]\nmode = \"1d\"\nsize = 4\n",
       {"4194304 ranks", "parallel.data = 1048576"}},
  };
  return all;
}

INSTANTIATE_TEST_SUITE_P(Tensor, BadInput, testing::ValuesIn(tensor_mistakes()));
INSTANTIATE_TEST_SUITE_P(Sequence, BadInput, testing::ValuesIn(sequence_and_expert_mistakes()));
INSTANTIATE_TEST_SUITE_P(Other, BadInput, testing::ValuesIn(other_mistakes()));

TEST(BadCorpus, IsRefusedAtTheLineOfItsPath) {
  const std::string head = "[model]\nsequence = 64\n[data]\npath = ";
  const auto message = [](const std::string& toml) -> std::string {
    try {
      place(toml, 0);
    } catch (const ConfigError& e) {
      return e.what();
    }
    return "was taken";
  };
  EXPECT_TRUE(message(head + "\"/nowhere/at/all\"\n").starts_with("plan.toml:4: "))
      << message(head + "\"/nowhere/at/all\"\n");
  const Folder folder;
  EXPECT_TRUE(message(text(head, "\"", folder.write("empty.txt", ""), "\"\n"))
                  .starts_with("plan.toml:4: "));
  const std::string brief =
      message(text(head, "\"", folder.write("short.txt", "too short"), "\"\n"));
  EXPECT_TRUE(brief.starts_with("plan.toml:2: ")) << brief;
  EXPECT_NE(brief.find("model.sequence = 64"), std::string::npos) << brief;
  // Three special tokens stand beside the text: of 17 bytes 16 have a next one.
  const std::string pair =
      message(text("[model]\nkind = \"bert\"\nsequence = 64\n[train]\nvalidation_batches = 0\n"
                   "[data]\nvalidation = 0\npath = \"",
                   folder.write("pair.txt", "seventeen letters"), "\"\n"));
  EXPECT_NE(pair.find("model.sequence = 64"), std::string::npos) << pair;
  EXPECT_NE(pair.find("at most 19"), std::string::npos) << pair;
}

}  // namespace
}  // namespace kuafu
