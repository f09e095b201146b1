// SPDX-License-Identifier: Apache-2.0
//
// Options of the models under every kind of plan: certified against one rank, simulated as on
// threads, with the parameters and FLOPs of their closed forms.

#include <gtest/gtest.h>

#include "kuafu/engine/registries.h"
#include "kuafu/meter/flops.h"
#include "tests/support/ranks.h"
#include "tests/support/simulated.h"

namespace kuafu {
namespace {

using tests::certificate_of;
using tests::Family;
using tests::plan_of;
using tests::small_plan;

struct OptionSet {
  const char* name;
  Overrides overrides;
};
std::ostream& operator<<(std::ostream& out, const OptionSet& o) { return out << o.name; }

const std::vector<OptionSet>& option_sets() {
  static const std::vector<OptionSet> all = {
      {"rms", {{"model.norm", "rms"}}},
      {"swiglu", {{"model.mlp", "swiglu"}, {"model.ffn", "48"}}},
      {"rotary", {{"model.positions", "rotary"}}},
      {"no_bias", {{"model.bias", "false"}}},
      {"grouped", {{"model.kv_heads", "2"}}},
      {"multi_query", {{"model.kv_heads", "1"}, {"model.positions", "rotary"}}},
      {"llama",
       {{"model.norm", "rms"},
        {"model.mlp", "swiglu"},
        {"model.ffn", "80"},
        {"model.positions", "rotary"},
        {"model.bias", "false"},
        {"model.kv_heads", "2"}}},
      {"palm",
       {{"model.parallel_blocks", "true"},
        {"model.mlp", "swiglu"},
        {"model.positions", "rotary"},
        {"model.bias", "false"},
        {"model.kv_heads", "1"}}},
      {"untied",
       {{"model.tied", "false"},
        {"model.mlp", "gelu_exact"},
        {"model.positions", "rotary"},
        {"model.rotary_base", "300"},
        {"model.norm_epsilon", "0.001"}}},
      {"opt_350m",
       {{"model.mlp", "relu"},
        {"model.kind", "opt"},
        {"model.post_norm", "true"},
        {"model.embedding", "16"},
        {"model.norm_epsilon", "1e-6"}}},
      {"bert", {{"model.kind", "bert"}}},
      {"bert_modern",
       {{"model.kind", "bert"},
        {"model.norm", "rms"},
        {"model.mlp", "swiglu"},
        {"model.positions", "rotary"},
        {"model.bias", "false"},
        {"model.kv_heads", "2"}}},
      {"vit",
       {{"model.kind", "vit"},
        {"model.vocab", "256"},
        {"model.image", "12"},
        {"model.sequence", "10"}}},
      {"vit_modern",
       {{"model.kind", "vit"},
        {"model.vocab", "256"},
        {"model.image", "12"},
        {"model.sequence", "10"},
        {"model.norm", "rms"},
        {"model.positions", "rotary"},
        {"model.bias", "false"},
        {"model.parallel_blocks", "true"}}},
  };
  return all;
}

class Options : public testing::TestWithParam<std::tuple<Family, OptionSet>> {
 protected:
  Plan plan(Overrides more = {}) const {
    const auto& [family, options] = GetParam();
    more.insert(more.begin(), options.overrides.begin(), options.overrides.end());
    return plan_of(family, more);
  }
};

TEST_P(Options, AreCertified) {
  const Certificate c = certificate_of(plan({{"model.dropout", "0.1"}}));
  EXPECT_EQ(c.verdict, "equal") << c.describe() << "; native " << c.native.describe();
}

TEST_P(Options, SimulatedEqualsThreads) {
  tests::expect_simulated_equals_threads(plan({{"model.dtype", "f32"}}), "options");
}

/// Families and options that a plan may combine: zig-zag order is for causal attention.
std::vector<std::tuple<Family, OptionSet>> combinations() {
  std::vector<std::tuple<Family, OptionSet>> all;
  for (const Family& f : tests::families()) {
    for (const OptionSet& o : option_sets()) {
      const bool sees_all = o.overrides[0].first == "model.kind";
      if (!sees_all || f.name.find("zigzag") == std::string::npos) all.emplace_back(f, o);
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, Options, testing::ValuesIn(combinations()), [](const auto& info) {
  return std::get<0>(info.param).name + "_" + std::get<1>(info.param).name;
});

/// What a table of the head, projections and rows of positions must bear besides: stages, replicas
/// that share states, widths that 3 and 5 ranks divide, types.
std::vector<Family> awkward() {
  const auto on = [](const char* mode, const char* ranks, const char* width, const char* heads) {
    return tests::keys::both(tests::keys::tensor(mode, ranks), {{"model.hidden", width},
                                                                {"model.heads", heads},
                                                                {"model.sequence", "15"},
                                                                {"train.batch", "6"}});
  };
  std::vector<Family> all = tests::shardings({"zero_2", "zero_3", "pipeline_2", "mixed"});
  all.push_back({"t1d_3", on("1d", "3", "45", "9")});
  all.push_back({"t1d_sp_5", on("1d-sp", "5", "50", "5")});
  all.push_back({"t2d_9", on("2d", "9", "36", "6")});
  for (Family& f : all) f.overrides.emplace_back("train.batch", "6");
  return all;
}

class AwkwardOptions : public testing::TestWithParam<std::tuple<Family, const char*>> {};

TEST_P(AwkwardOptions, AreCertifiedInEveryType) {
  const auto& [family, type] = GetParam();
  for (const char* kind : {"gpt", "opt"}) {
    Overrides more = {{"model.dtype", type}, {"model.kind", kind}, {"model.ffn", "90"}};
    if (std::string(kind) == "gpt") {
      more.insert(more.end(), {{"model.tied", "false"}, {"model.mlp", "gelu_exact"}});
    } else {
      const int64_t hidden = small_plan(family.overrides).model.hidden;
      const int64_t ranks = small_plan(family.overrides).parallel.tensor.size;
      more.insert(more.end(), {{"model.mlp", "relu"},
                               {"model.post_norm", "true"},
                               {"model.embedding", text(hidden - 2 * ranks)}});
    }
    const Certificate c = certificate_of(plan_of(family, more));
    EXPECT_EQ(c.verdict, "equal") << kind << c.describe() << "; native " << c.native.describe();
  }
}

INSTANTIATE_TEST_SUITE_P(All, AwkwardOptions,
                         testing::Combine(testing::ValuesIn(awkward()),
                                          testing::Values("f64", "f32", "bf16")),
                         [](const auto& info) {
                           return std::get<0>(info.param).name + "_" + std::get<1>(info.param);
                         });

/// Parameters of a plan's transformer layers, and all of them.
std::pair<int64_t, int64_t> count(const Plan& plan) {
  const Registries registries = builtin_registries();
  const auto world = make_self();
  const auto data = tests::data_of(plan);
  Engine engine(plan, registries, *world, *data, {});
  int64_t layers = 0, all = 0;
  for (const Param* p : engine.params()) {
    all += p->value.numel();
    if (p->name.find("blocks.") == 0) layers += p->value.numel();
  }
  return {layers, all};
}

TEST(OptionCounts, EqualClosedForms) {
  // Hidden h, 4 heads of 8, vocabulary 37, sequence 12, 2 layers.
  constexpr int64_t h = 32, head = 8, vocab = 37;
  const auto count_of = [](const char* name) {
    for (const OptionSet& o : option_sets()) {
      if (std::string(o.name) == name) return count(small_plan(o.overrides));
    }
    throw ConfigError(name);
  };
  // LLaMA: q, out h^2; k, v h x 2 heads; three h x f; two norms. No table of positions.
  const int64_t llama = 2 * (2 * h * h + h * 2 * 2 * head + 3 * h * 80 + 2 * h);
  EXPECT_EQ(count_of("llama"), std::pair(llama, llama + vocab * h + h));
  // PaLM: k, v of one head; three h x 4 h; one norm.
  const int64_t palm = 2 * (2 * h * h + h * 2 * head + 3 * h * 4 * h + h);
  EXPECT_EQ(count_of("palm"), std::pair(palm, palm + vocab * h + h));
  const int64_t grouped = 2 * (12 * h * h + 13 * h - 2 * (h + 1) * 2 * head);
  EXPECT_EQ(count_of("grouped").first, grouped);

  constexpr int64_t blocks = 2 * (12 * h * h + 13 * h), norm = 2 * h;
  // A table of the head's own; no table of positions.
  EXPECT_EQ(count_of("untied"), std::pair(blocks, blocks + 2 * vocab * h + norm));
  // OPT-350m: a table of 16 columns, two projections, two rows more of positions, no last norm.
  EXPECT_EQ(count_of("opt_350m"),
            std::pair(blocks, blocks + vocab * 16 + 2 * 16 * h + (12 + 2) * h));
  // BERT: embedding of tokens, positions, segments and its norm; head: two h x h with biases, norm,
  // bias of the vocabulary, two answers.
  const int64_t bert =
      blocks + (vocab + 12 + 2) * h + norm + 2 * (h * h + h) + norm + vocab + 2 * h + 2;
  EXPECT_EQ(count_of("bert"), std::pair(blocks, bert));
  // ViT: patches of 48 numbers with bias, class token, 10 positions; head: norm, 10 classes.
  const int64_t vit = blocks + 48 * h + h + h + 10 * h + norm + 10 * h + 10;
  EXPECT_EQ(count_of("vit"), std::pair(blocks, vit));
}

/// 3 (forward and twice backward) x 2 FLOPs for each weight of a linear and token, and attention.
int64_t closed_form(const Plan& p, int64_t linear_weights, int64_t padded_vocab) {
  const int64_t t = p.train.batch * p.model.sequence, h = p.model.hidden;
  const int64_t attention = 2 * t * p.model.sequence * h;  // causal
  return 3 * (p.model.layers * (2 * t * linear_weights + attention) + 2 * t * h * padded_vocab);
}

int64_t flops_of(const Plan& plan) {
  int64_t sum = 0;
  for (const RankResult& r : tests::run_plan(plan)) sum += r.flops;
  return sum;
}

TEST(OptionFlops, EqualTheClosedFormWherePlansReplicateNothing) {
  constexpr int64_t h = 32, head = 8;
  for (const OptionSet& o : option_sets()) {
    if (std::string(o.name) != "llama") continue;
    for (const char* name : {"one_rank", "data_2", "t1d_2", "t1d_sp_2", "t2d_4", "t2p5d_8"}) {
      Overrides more = o.overrides;
      more.emplace_back("model.vocab", "40");
      const Plan plan = plan_of(tests::family(name), more);
      EXPECT_EQ(flops_of(plan), closed_form(plan, 2 * h * h + h * 2 * 2 * head + 3 * h * 80, 40))
          << name;
    }
  }
}

// Projections are linears like others, forward and twice backward; the table is E columns wide.
TEST(OptionFlops, OfANarrowTableEqualTheClosedForm) {
  constexpr int64_t h = 32, e = 16, vocab = 40;
  for (const char* name :
       {"one_rank", "data_2", "t1d_2", "t1d_sp_2", "t2d_4", "t2p5d_8", "t3d_8"}) {
    const Plan plan = plan_of(tests::family(name), {{"model.kind", "opt"},
                                                    {"model.mlp", "relu"},
                                                    {"model.vocab", text(vocab)},
                                                    {"model.embedding", text(e)}});
    const int64_t t = plan.train.batch * plan.model.sequence;
    const int64_t table = 2 * t * (2 * e * h + e * vocab - h * vocab);
    EXPECT_EQ(flops_of(plan), closed_form(plan, 12 * h * h, vocab) + 3 * table) << name;
  }
}

/// Layers whose tokens all see each other.
int64_t bidirectional_layers(const Plan& p) {
  const int64_t t = p.train.batch * p.model.sequence, h = p.model.hidden;
  return p.model.layers * (24 * t * h * h + 4 * t * p.model.sequence * h);
}

TEST(OptionFlops, OfBertEqualTheClosedForm) {
  constexpr int64_t h = 32;
  for (const char* name : {"one_rank", "data_2", "t1d_2", "t2d_4", "t2p5d_8", "t3d_8"}) {
    const Plan plan = plan_of(tests::family(name), {{"model.kind", "bert"}, {"model.vocab", "40"}});
    const int64_t b = plan.train.batch, t = b * plan.model.sequence;
    const int64_t head = 2 * t * h * h + 2 * t * h * 40 + 2 * b * h * h + 2 * b * h * 2;
    EXPECT_EQ(flops_of(plan), 3 * (bidirectional_layers(plan) + head)) << name;
  }
}

// Nothing needs the gradient of the pixels: the projection counts twice, not three times.
TEST(OptionFlops, OfVitEqualTheClosedForm) {
  constexpr int64_t h = 32;
  for (const char* name : {"one_rank", "data_2", "t2d_4", "t2p5d_8"}) {
    const Plan plan = plan_of(tests::family(name), {{"model.kind", "vit"},
                                                    {"model.vocab", "256"},
                                                    {"model.image", "12"},
                                                    {"model.sequence", "10"}});
    const int64_t b = plan.train.batch, projection = 2 * b * 9 * 48 * h, head = 2 * b * h * 10;
    EXPECT_EQ(flops_of(plan), 3 * (bidirectional_layers(plan) + head) + 2 * projection) << name;
  }
}

// Independently of the formulas: the products that LibTorch was asked for.
TEST(OptionFlops, EqualWhatTheDispatcherSaw) {
  const Registries registries = builtin_registries();
  for (const OptionSet& o : option_sets()) {
    const Plan plan = small_plan(o.overrides);
    const auto data = tests::data_of(plan);
    const auto world = make_self();
    RankBook book(0);
    const BookScope booked(&book);
    Engine engine(plan, registries, *world, *data, {});
    engine.step();
    book.restart();
    const FlopWatcher watcher;
    engine.step();
    EXPECT_EQ(watcher.total(), book.flops()) << o;
  }
}

// Four ranks, one key-value head: each computes the head its queries read, four times in all.
TEST(OptionFlops, OfReplicatedHeadsCountOnEveryRank) {
  const Plan plan = plan_of(tests::family("t1d_4"), {{"model.kv_heads", "1"}});
  constexpr int64_t h = 32, head = 8;
  EXPECT_EQ(flops_of(plan), closed_form(plan, 2 * h * h + h * 4 * 2 * head + 8 * h * h, 40));
}

TEST(OptionRefusals, NameKeyLineAndNearest) {
  const auto message = [](const Overrides& o, const char* family = "one_rank") -> std::string {
    try {
      check_placement(plan_of(tests::family(family), o), builtin_registries());
    } catch (const Refused& e) {
      return e.what();
    }
    return "accepted";
  };
  const auto has = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  };
  const std::string uneven = message({{"model.kv_heads", "3"}});
  EXPECT_TRUE(has(uneven, "model.kv_heads = 3") && has(uneven, "nearest: kv_heads = 2 or 4"))
      << uneven;
  const std::string odd = message({{"model.positions", "rotary"}, {"model.hidden", "36"}});
  EXPECT_TRUE(has(odd, "rotary") && has(odd, "nearest: hidden = 40")) << odd;
  const std::string kv =
      message({{"model.kv_heads", "3"}, {"model.heads", "12"}, {"model.hidden", "48"}}, "t1d_4");
  EXPECT_TRUE(has(kv, "model.kv_heads = 3") && has(kv, "nearest: kv_heads = 2 or 4")) << kv;
  EXPECT_TRUE(has(message({{"model.ffn", "30"}}, "t1d_4"), "model.ffn"));
  EXPECT_TRUE(has(message({{"model.heads", "2"}}, "t1d_4"), "model.heads"));
  const std::string narrow = message({{"model.kind", "opt"}, {"model.embedding", "18"}}, "t1d_4");
  EXPECT_TRUE(has(narrow, "model.embedding") && has(narrow, "nearest that do: 16 and 20"))
      << narrow;
}

}  // namespace
}  // namespace kuafu
