// SPDX-License-Identifier: Apache-2.0
//
// Prompts and texts of several documents.
#include <gtest/gtest.h>

#include "kuafu/dataset/no_data.h"
#include "kuafu/generation/perplexity.h"
#include "kuafu/generation/token_text.h"
#include "tests/base/messages.h"
#include "tests/support/plans.h"
#include "tests/support/ranks.h"

namespace kuafu {
namespace {

TEST(DocumentsOfPrompts, AreOne) {
  DataPlan data;
  data.kind = "synthetic";
  data.document_mask = true;
  const ModelPlan model;
  const std::string two("ab\0c", 4);
  TokenText apart(data, model);
  expect_says(message_of<ConfigError>([&] { apart.encode(two); }),
              {"the token 0 that ends a document", "data.document_mask = true",
               "set data.document_mask = false"});
  EXPECT_EQ(apart.encode("abc").size(), 3u);
  EXPECT_EQ(apart.tokens_of(two).size(), 4u);  // a text of any documents
  EXPECT_EQ(apart.end_token(), 0);             // what is made ends with its document
  data.document_mask = false;
  TokenText together(data, model);
  EXPECT_EQ(together.encode(two).size(), 4u);
  EXPECT_EQ(together.end_token(), std::nullopt);
}

double oracle_nats(const Plan& plan, Tokens window, std::optional<int64_t> end_token) {
  window.end_token = end_token;
  const auto model = oracle::make_model(plan.model, plan.train.seed);
  const oracle::Samples samples{.tokens = window, .batch = 1, .is_training = false};
  return oracle::loss_of(*model, oracle::initial_weights(*model, plan.train.seed), {samples}) *
         static_cast<double>(plan.model.sequence);
}

TEST(DocumentsOfTexts, AreKeptApartInPerplexity) {
  const Plan plan =
      tests::small_plan(tests::keys::both({{"data.document_mask", "true"}, {"train.batch", "2"}},
                                          tests::keys::sequence("ring-zigzag", "2")));
  std::vector<int64_t> text;
  for (int64_t i = 0; i < 40; ++i) text.push_back((i * i + 3) % 7);
  const std::vector<int64_t> starts = window_starts(40, plan.model.sequence, 6);
  double nats = 0, unmasked = 0;
  for (size_t w = 0; w < starts.size(); ++w) {
    const Tokens window = window_batch(text, starts, w, 1, plan.model.sequence);
    nats += oracle_nats(plan, window, 0);
    unmasked += oracle_nats(plan, window, {});
  }
  double found = 0;
  const Registries registries = builtin_registries();
  tests::run_ranks(2, [&](Communicator& world) {
    const NoData none(plan.model);
    Engine engine(plan, registries, world, none, {});
    const Perplexity mine = perplexity_of(engine, world, text, 6);
    if (world.rank() == 0) found = mine.nats;
  });
  // 39 losses of at most 4, each a chain of fewer than 1,000 roundings.
  const double tolerance = 39 * 4 * 1000 * 0x1.0p-52;
  EXPECT_NEAR(found, nats, tolerance);
  EXPECT_GT(std::abs(found - unmasked), 100 * tolerance);
}

}  // namespace
}  // namespace kuafu
