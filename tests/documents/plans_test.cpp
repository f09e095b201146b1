// SPDX-License-Identifier: Apache-2.0
//
// Plans with data.document_mask: certified, traced, refused.
#include <gtest/gtest.h>

#include "kuafu/base/suggest.h"
#include "kuafu/engine/placing/placement.h"
#include "kuafu/engine/proof/miniature.h"
#include "tests/base/messages.h"
#include "tests/support/certified.h"
#include "tests/support/plans.h"
#include "tests/support/traces.h"

namespace kuafu {
namespace {

using tests::small_plan;
using tests::keys::both;
using tests::keys::sequence;
using tests::keys::tensor;

Plan masked(const Overrides& overrides) {
  return small_plan(both({{"data.document_mask", "true"}}, overrides));
}

const std::vector<tests::Family>& plans() {
  static const std::vector<tests::Family> all = {
      {"one_rank", {}},
      {"dropout_sgd", {{"model.dropout", "0.1"}, {"optimizer.kind", "sgd"}}},
      {"rotary_groups", {{"model.positions", "rotary"}, {"model.kv_heads", "2"}}},
      {"opt", {{"model.kind", "opt"}, {"model.mlp", "relu"}}},
      {"moe_2", both(tests::keys::experts("2"), {{"parallel.data", "2"}})},
      {"t1d_2", tensor("1d", "2")},
      {"t1d_sp_2", tensor("1d-sp", "2")},
      {"t2d_4", tensor("2d", "4")},
      {"t2p5d_8", both(tensor("2.5d", "8"), {{"parallel.tensor.depth", "2"}})},
      {"t3d_8", tensor("3d", "8")},
      {"ring_3", both(sequence("ring", "3"), {{"model.sequence", "13"}})},
      {"zigzag_3", both(sequence("ring-zigzag", "3"), {{"model.sequence", "13"}})},
      {"ulysses_2", both(sequence("ulysses", "2"), {{"model.sequence", "13"}})},
      {"all_gather_3", both(sequence("all-gather", "3"), {{"model.sequence", "13"}})},
      {"moe_zigzag", both(tests::keys::experts("1"), sequence("ring-zigzag", "2"))},
      {"stages", both(tests::keys::stages(), {{"train.batch", "12"}})},
      {"selective_ring", both(sequence("ring", "2"), {{"memory.recompute", "selective"}})},
      {"selective", {{"memory.recompute", "selective"}}},
      {"full_zigzag", both(sequence("ring-zigzag", "2"), {{"memory.recompute", "full"}})},
      {"t2d_zigzag_f32",
       both(both(tensor("2d", "4"), sequence("ring-zigzag", "2")), {{"model.dtype", "f32"}})},
      {"f32", {{"model.dtype", "f32"}}},
      {"bf16_ring", both(sequence("ring", "2"), {{"model.dtype", "bf16"}})},
      {"f16", {{"model.dtype", "f16"}}},
  };
  return all;
}

class DocumentPlans : public testing::TestWithParam<tests::Family> {};

TEST_P(DocumentPlans, AreCertifiedEqual) {
  const Certificate c = tests::certificate_of(masked(GetParam().overrides));
  EXPECT_EQ(c.verdict, "equal") << c.describe() << "; native " << c.native.describe();
  EXPECT_EQ(c.native.verdict, "equal") << c.native.describe();
  EXPECT_EQ(c.level, "full");
  EXPECT_EQ(c.reference, "oracle");
}

INSTANTIATE_TEST_SUITE_P(All, DocumentPlans, testing::ValuesIn(plans()),
                         [](const auto& info) { return info.param.name; });

// The key decides what is learned, and which plan it is.
TEST(DocumentMask, ChangesLossesAndTheHashOfThePlan) {
  const Plan with = masked({}), without = small_plan();
  EXPECT_NE(plan_hash(with), plan_hash(without));
  EXPECT_EQ(plan_hash(small_plan({{"data.document_mask", "false"}})), plan_hash(without));
  EXPECT_NE(tests::train(with).losses.at(0), tests::train(without).losses.at(0));
}

/// Forgets the mask, or does not know of it.
class Forgetful : public AttentionParallel {
 public:
  explicit Forgetful(bool knows) : knows_(knows), sound_(make_local_attention(Recompute::kNone)) {}
  Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v, Mask mask) const override {
    return sound_->attend(q, k, v, mask);
  }
  Tensor attend_documents(const Tensor& q, const Tensor& k, const Tensor& v,
                          const Tensor&) const override {
    return sound_->attend(q, k, v, Mask::kCausal);
  }
  bool knows_documents() const override { return knows_; }

 private:
  bool knows_;
  std::unique_ptr<AttentionParallel> sound_;
};

Registries with_forgetful(bool knows) {
  Registries registries = builtin_registries();
  registries.sequence.add("forgetful", "no mask of documents", [knows](const AttentionSetup&) {
    return std::make_unique<Forgetful>(knows);
  });
  return registries;
}

Plan forgetful(Plan plan) {
  plan.parallel.sequence.mode = "forgetful";
  return plan;
}

TEST(DocumentMask, ThatHidNothingInTheStepsComparedIsTold) {
  const auto unseen_of = [](const Overrides& more) {
    return tests::certificate_of(masked(more)).native.unseen;
  };
  EXPECT_EQ(unseen_of({{"train.steps", "1"}}), "");
  EXPECT_EQ(unseen_of({{"train.steps", "1"}, {"model.vocab", "99991"}}),
            "data.document_mask: no document ends inside a window of the steps compared");
  // Two windows of eight tokens in which none is the last of a document.
  const Overrides small = {{"model.vocab", "32"}, {"model.layers", "1"},   {"model.hidden", "8"},
                           {"model.heads", "2"},  {"model.sequence", "8"}, {"train.batch", "1"},
                           {"train.steps", "1"},  {"train.seed", "4"}};
  const Certificate scaled = tests::certificate_of(masked(small), 1);
  EXPECT_EQ(scaled.level, "scaled");
  EXPECT_NE(scaled.native.unseen.find("data.document_mask: no document ends"), std::string::npos)
      << scaled.describe();
  const Overrides servers = {{"parallel.data.size", "2"},
                             {"parallel.data.mode", "parameter_server"},
                             {"parallel.data.staleness", "1"},
                             {"optimizer.clip", "0"},
                             {"train.batch", "2"}};
  EXPECT_EQ(unseen_of(tests::keys::both(small, servers)),
            "data.document_mask: no document ends inside a window of the steps compared");
}

TEST(DocumentMask, ThatAnEngineForgetsIsTold) {
  const Plan plan = masked({{"train.steps", "1"}});
  const Certificate c = tests::certified_run(forgetful(plan), with_forgetful(true)).certificate;
  EXPECT_EQ(c.verdict, "different") << c.describe();
  const Plan plain = forgetful(small_plan());
  EXPECT_EQ(tests::certified_run(plain, with_forgetful(true)).certificate.verdict, "equal");
}

TEST(DocumentMask, IsRefusedToModesThatDoNotKnowIt) {
  const Registries registries = with_forgetful(false);
  const Plan plan = forgetful(masked({}));
  expect_says(message_of<Refused>([&] { check_placement(plan, registries); }),
              {"data.document_mask = true", "parallel.sequence.mode = \"forgetful\"",
               "nearest: ", "document_mask = false"});
  EXPECT_NO_THROW(check_placement(forgetful(small_plan()), registries));
  tests::run_ranks(1, [&](Communicator& world) {
    Ledger ledger;
    const auto data = tests::data_of(plan);
    EXPECT_THROW(Engine(plan, registries, world, *data, {.ledger = &ledger}), Refused);
    EXPECT_TRUE(ledger.axes().empty());
  });
}

TEST(DocumentMask, IsRefusedWhereThereAreNoDocuments) {
  for (const char* kind : {"bert", "vit"}) {
    expect_says(
        message_of<Refused>([&] {
          parse_plan(text("[model]\nkind = \"", kind,
                          "\"\n[data]\nkind = \"synthetic\"\ndocument_mask = true\n"),
                     "plan.toml", builtin_tensor_modes(), {}, {"gpt", "bert", "vit"});
        }),
        {"plan.toml:5", "data.document_mask = true", kind, "nearest: document_mask = false"});
  }
  const auto text_plan = [](const std::string& more) {
    return parse_plan("[data]\ndocument_mask = true\n" + more, "plan.toml", builtin_tensor_modes(),
                      {}, {"gpt"});
  };
  for (const char* more : {"", "tokenizer = \"t.json\"\n"}) {
    expect_says(message_of<ConfigError>([&] { text_plan(more); }),
                {"plan.toml:2", "data.document_mask = true", "data.tokenizer and data.end_token"});
  }
  EXPECT_TRUE(text_plan("tokenizer = \"t.json\"\nend_token = \"<end>\"\n").data.document_mask);
}

// A vocabulary that is cut is no tokenizer's, and bytes have no token that ends documents.
TEST(DocumentMask, OfAMiniatureIsKept) {
  Plan plan = small_plan({{"model.vocab", "30522"}, {"model.hidden", "64"}, {"model.layers", "6"}});
  plan.data.kind = "text";
  plan.data.path = "a.txt";
  plan.data.tokenizer = "t.json";
  plan.data.end_token = "<end>";
  plan.data.document_mask = true;
  const Miniature small = miniature(plan, builtin_registries());
  ASSERT_TRUE(small.plan.has_value()) << small.reason;
  EXPECT_EQ(small.plan->data.kind, "synthetic");
  EXPECT_EQ(small.plan->data.tokenizer + small.plan->data.end_token + small.plan->data.path, "");
  EXPECT_TRUE(small.plan->data.document_mask);
}

TEST(DocumentMask, IsTracedOnThreadsAsSimulated) {
  for (const char* recompute : {"none", "selective"}) {
    const Plan plan = masked(
        both(sequence("ring", "3"),
             {{"memory.recompute", recompute}, {"model.sequence", "13"}, {"model.dtype", "bf16"}}));
    tests::run_ranks(3, [&](Communicator& world) {
      tests::expect_traced_as_simulated(plan, world, text("documents, ", recompute));
    });
  }
}

}  // namespace
}  // namespace kuafu
