// SPDX-License-Identifier: Apache-2.0
//
// What a batch needs by forwards on meta tensors is what generating really needs.

#include <gtest/gtest.h>

#include <array>
#include <optional>
#include <tuple>

#include "kuafu/base/errors.h"
#include "kuafu/dataset/no_data.h"
#include "kuafu/generation/embedding.h"
#include "kuafu/generation/fit.h"
#include "kuafu/generation/perplexity.h"
#include "kuafu/meter/book.h"
#include "kuafu/states/tiers.h"
#include "tests/generation/support.h"
#include "tests/support/ranks.h"

namespace kuafu {
namespace {

constexpr int64_t kTokens = 6;

/// What generating left behind.
struct Made {
  std::vector<std::vector<int64_t>> tokens;
  std::vector<int64_t> loaded, from_disk, cache_in, cache_out, peaks,
      host_peaks;  ///< bytes by rank
  int64_t cache_bytes = 0;
};

class Fitted {
 public:
  Fitted(const tests::Family& family, Cache cache, int64_t tokens = kTokens)
      : plan_(tests::generating_plan(family)),
        prompts_(tests::uneven_prompts(plan_)),
        size_{.tokens = tokens, .cache = cache, .has_weights_on_disk = plan_.memory.has_disk()} {
    for (const auto& prompt : prompts_) size_.longest = std::max(size_.longest, std::ssize(prompt));
  }

  bool fits(int64_t bytes) {
    plan_.memory.device = bytes;
    try {
      require_fits(plan_, registries_, size_);
      return true;
    } catch (const OutOfMemory&) {
      return false;
    }
  }

  /// The least bytes that a rank must have, to 64 of them.
  int64_t need() {
    int64_t fails = 1, holds = int64_t{1} << 30;
    while (holds - fails > 64) {
      const int64_t middle = fails + (holds - fails) / 2;
      (fits(middle) ? holds : fails) = middle;
    }
    return holds;
  }

  /// Generates for real on ranks that have so many; none: as many as they take.
  Made generate_within(std::optional<int64_t> bytes) {
    plan_.memory.device = bytes;
    const auto n = static_cast<size_t>(ranks());
    Made made;
    for (auto* of : {&made.loaded, &made.from_disk, &made.cache_in, &made.cache_out, &made.peaks,
                     &made.host_peaks})
      of->resize(n);
    tests::run_ranks(static_cast<int>(n), [&](Communicator& world) {
      const auto r = static_cast<size_t>(world.rank());
      RankBook book = device_book(plan_, world.rank(), compute_device());
      const BookScope booked(&book);
      const NoData none(plan_.model);
      Engine engine(plan_, registries_, world, none,
                    {.trains = false, .has_parameters_on_disk = size_.has_weights_on_disk});
      foretell_forwards(engine, registries_, world.rank(), size_);
      const Generated all = generate(
          engine, world, {.prompts = prompts_, .tokens = size_.tokens, .cache = size_.cache});
      made.loaded[r] = engine.loaded().value_or(0);
      std::tie(made.cache_in[r], made.cache_out[r]) = engine.cache_moves();
      made.peaks[r] = book.peak();
      made.from_disk[r] = engine.moves().disk.read;
      made.host_peaks[r] = engine.moves().host_peak;
      if (r != 0) return;
      made.cache_bytes = all.cache_bytes;
      for (const Continuation& c : all.all) made.tokens.push_back(c.tokens);
    });
    return made;
  }

  int64_t ranks() const { return num_ranks(plan_); }
  const Plan& plan() const { return plan_; }

 private:
  const Registries registries_ = builtin_registries();
  Plan plan_;
  std::vector<std::vector<int64_t>> prompts_;
  BatchSize size_;
};

TEST(Fit, IsWhatGeneratingNeeds) {
  int64_t alone = 0, several = 0;
  const std::vector<tests::Family> plans = tests::generating_plans();
  for (size_t i = 0; i < plans.size(); ++i) {
    const bool is_wanted = i % 5 == 0 || plans[i].name == "tiers" || plans[i].name == "llama";
    if (!is_wanted) continue;
    SCOPED_TRACE(plans[i].name);
    Fitted fitted(plans[i], i % 2 == 0 ? Cache::kWherePossible : Cache::kOff);
    const int64_t need = fitted.need();
    EXPECT_NO_THROW(fitted.generate_within(need));
    // Rank 0 of several is counted to receive all logits at once.
    const bool is_alone = fitted.ranks() == 1;
    const int64_t less = is_alone ? need - 128 : need / 2;
    EXPECT_THROW(fitted.generate_within(less), OutOfMemory) << need;
    ++(is_alone ? alone : several);
  }
  EXPECT_GE(alone, 2);
  EXPECT_GE(several, 5);
}

tests::Family tiers(const Overrides& base, const std::string& policy, const Overrides& more = {}) {
  const Overrides all = {
      {"memory.policy", policy}, {"memory.chunk_size", "2KiB"}, {"memory.device", "1GiB"}};
  return {policy, tests::keys::both(base, tests::keys::both(all, more))};
}

const Overrides kOnDisk = {{"memory.disk_path", "/var/tmp"}};

/// The policy plays the forwards of single tokens: tokens stay, and so do budgets, wherever weights lie.
TEST(TieredGeneration, MakesTheSameTokensUnderEveryPolicyWithinItsBudget) {
  using namespace tests::keys;  // NOLINT: the rows below are a table
  const Overrides twelve = {{"train.batch", "12"}};
  const std::vector<Overrides> bases = {{},
                                        both(twelve, tensor("1d", "2")),
                                        both(twelve, tensor("2d", "4")),
                                        both(twelve, stages()),
                                        both(twelve, replicas("3", "3")),
                                        both(twelve, both(experts("2"), {{"parallel.data", "2"}})),
                                        both(twelve, sequence("ring", "2"))};
  const std::vector<Overrides> knobs = {{{"memory.prefetch", "0"}}, {{"memory.prefetch", "2"}}};
  size_t tried = 0;
  for (const Overrides& base : bases) {
    const Made plain = Fitted({"plain", base}, Cache::kWherePossible).generate_within({});
    for (const char* policy : {"host", "static", "lru", "belady", "auto"}) {
      for (const Cache cache : {Cache::kWherePossible, Cache::kHost, Cache::kOff}) {
        SCOPED_TRACE(testing::Message() << tried << " " << policy);
        const Overrides home = tried % 4 < 2 ? Overrides{} : kOnDisk;
        Fitted fitted(tiers(base, policy, both(home, knobs[tried++ % 2])), cache);
        const int64_t need = fitted.need(), budget = tried % 3 == 0 ? need : need + need / 4;
        const Made made = fitted.generate_within(budget);
        EXPECT_EQ(made.tokens, plain.tokens);
        for (const int64_t peak : made.peaks) EXPECT_LE(peak, budget);
        for (size_t r = 0; r < made.loaded.size();
             ++r) {  // rows of a file are whole lines of 64 bytes
          const int64_t read = made.from_disk[r], loaded = made.loaded[r];
          EXPECT_GE(read, home.empty() ? 0 : loaded);
          EXPECT_LE(read, home.empty() ? 0 : loaded + loaded / 16);
        }
      }
    }
  }
  EXPECT_EQ(tried, 105U);
}

/// Logits of many columns are as large as what computes them, and come by rows.
TEST(TieredGeneration, HasRoomForItsLogits) {
  using tests::keys::both;
  const Overrides wide = {{"model.vocab", "1501"}, {"model.layers", "8"}, {"train.batch", "12"}};
  for (const Overrides& base : {wide, both(wide, tests::keys::tensor("1d", "2")),
                                both(wide, tests::keys::sequence("ring", "2"))}) {
    const Made plain = Fitted({"plain", base}, Cache::kWherePossible).generate_within({});
    for (const char* policy : {"host", "static", "lru", "belady"}) {
      Fitted fitted(tiers(base, policy), Cache::kWherePossible);
      const int64_t need = fitted.need();
      for (const int64_t more : {0, 5000, 20000, 100000}) {
        SCOPED_TRACE(testing::Message() << policy << ", " << more);
        EXPECT_NO_THROW(EXPECT_EQ(fitted.generate_within(need + more).tokens, plain.tokens));
      }
    }
  }
}

/// The first forward loads all, and so does the first behind it; what stays does not come again. The
/// tables of tokens and positions, which the head and then the embedding read, stay between two forwards.
TEST(TieredGeneration, LoadsWhatStaysOnce) {
  const auto loaded = [](const Overrides& more, const char* policy, int64_t tokens) {
    const Overrides keys = tests::keys::both({{"memory.prefetch", "0"}}, more);
    Fitted fitted(tiers({}, policy, keys), Cache::kWherePossible, tokens);
    return fitted.generate_within(int64_t{1} << 30).loaded[0];
  };
  const int64_t all = loaded({}, "host", 1), tables = (37 + 12) * 32 * 8;
  EXPECT_EQ(loaded({}, "host", 2), 2 * all);
  EXPECT_EQ(loaded({}, "host", kTokens), kTokens * all - (kTokens - 2) * tables);
  const Overrides whole = {{"memory.static_share", "1"}}, half = {{"memory.static_share", "0.5"}};
  EXPECT_EQ(loaded(whole, "static", kTokens), 2 * all - tables);
  EXPECT_GT(loaded(half, "static", kTokens), 2 * all);
  EXPECT_LT(loaded(half, "static", kTokens), loaded({}, "host", kTokens));
}

/// The host holds the chunk on its way and those read ahead of it, not the model.
TEST(TieredGeneration, ReadsWeightsFromADiskChunkByChunk) {
  const Overrides deep = {{"model.layers", "12"}, {"memory.chunk_size", "16KiB"}};
  for (const char* ahead : {"0", "1", "3"}) {
    const Overrides more = tests::keys::both(deep, {{"memory.prefetch", ahead}});
    Fitted high(tiers({}, "host", more), Cache::kWherePossible);
    Fitted low(tiers({}, "host", tests::keys::both(more, kOnDisk)), Cache::kWherePossible);
    const Made above = high.generate_within({}), below = low.generate_within({});
    EXPECT_EQ(below.tokens, above.tokens);
    EXPECT_EQ(below.loaded, above.loaded);
    EXPECT_EQ(below.from_disk, below.loaded);
    const int64_t largest = std::max<int64_t>(16 << 10, 4 * 32 * 32 * 8);  // a matrix of the MLP
    EXPECT_LE(below.host_peaks[0], (std::stoll(ahead) + 2) * (largest + 64)) << ahead;
    EXPECT_GT(above.host_peaks[0], 12 * 12 * 32 * 32 * 8);
    EXPECT_EQ(low.need(), high.need());
  }
}

/// A prompt is one document, whose mask is not there.
TEST(Fit, DocumentsChangeNothing) {
  const Overrides mask = {{"data.document_mask", "true"}};
  Fitted masked({"", mask}, Cache::kWherePossible), plain({"", {}}, Cache::kWherePossible);
  EXPECT_EQ(masked.need(), plain.need());
}

TEST(Fit, AForwardKeepsNothingOfAnOptimizer) {
  const Registries registries = builtin_registries();
  for (const char* policy : {"plain", "host"}) {
    const Plan plan = tests::generating_plan(
        {"", {{"model.dtype", "bf16"}, {"memory.policy", policy}, {"train.batch", "12"}}});
    RankBook book = device_book(plan, 0, compute_device());
    const BookScope booked(&book);
    tests::run_ranks(1, [&](Communicator& world) {
      const BookScope of_rank(&book);
      const NoData none(plan.model);
      Engine engine(plan, registries, world, none, {.trains = false});
      const int64_t elements = 37 * 32 + 12 * 32 + 2 * (12 * 32 * 32 + 13 * 32) + 2 * 32;
      const int64_t on_host = engine.moves().host_peak;
      EXPECT_EQ(book.live_by_category()[static_cast<size_t>(Category::kOptimizer)], 0);
      EXPECT_GE(on_host + book.live(), 2 * elements);
      EXPECT_LT(on_host + book.live(), 2.5 * static_cast<double>(elements)) << policy;
    });
  }
}

/// Keys and values come whole and go by rows, and the device holds those of two attentions.
TEST(TieredGeneration, KeepsKeysAndValuesOnTheHost) {
  const tests::Family deep = tiers({{"model.layers", "6"}}, "host");
  Fitted here(deep, Cache::kWherePossible), away(deep, Cache::kHost);
  const int64_t budget = int64_t{1} << 30;
  const Made near = here.generate_within(budget), far = away.generate_within(budget);
  EXPECT_EQ(near.tokens, far.tokens);
  EXPECT_EQ(near.cache_in[0] + near.cache_out[0], 0);
  EXPECT_EQ(near.cache_bytes, far.cache_bytes);
  const ModelPlan& model = away.plan().model;
  const int64_t rows = 2 * away.plan().train.batch * model.hidden * 8, capacity = 10 + kTokens;
  const int64_t held = std::min(capacity, model.sequence);  // positions of a sample
  EXPECT_EQ(far.cache_bytes, 6 * rows * held);
  const int64_t later = std::min<int64_t>(kTokens, held) - 1;  // forwards behind the first
  EXPECT_EQ(far.cache_in[0], (6 * later + 1) * rows * held);
  EXPECT_EQ(far.cache_out[0], 6 * rows * (held + later));
  EXPECT_LE(away.need(), here.need() - 3 * rows * held);
}

/// What the forwards of a text left behind.
struct Forwards {
  double nats = 0;
  std::vector<std::vector<double>> vectors = {};
  std::vector<int64_t> loaded = {}, peaks = {};  ///< bytes by rank
};

constexpr int64_t kTexts = 30;  // so that three forwards of twelve samples follow each other

/// Texts of 3, 7 and 12 tokens; all of 12 where the plan takes no others.
TextsToEmbed texts_to_embed(const Plan& plan) {
  const bool is_shared =
      plan.parallel.sequence.mode != sequence_modes::kNone || plan.parallel.tensor.mode == "1d-sp";
  TextsToEmbed what;
  for (int64_t i = 0; i < kTexts; ++i) {
    const int64_t tokens = is_shared ? plan.model.sequence : std::array{3, 7, 12}[i % 3];
    what.texts.emplace_back();
    for (int64_t s = 0; s < tokens; ++s) what.texts.back().push_back((5 * s + 7 * i) % 31);
  }
  return what;
}

Plan plan_of_forwards(const tests::Family& family) {
  const Plan plan = tests::plan_of(family);
  return plan.model.is_causal() ? plan_of_generation(plan) : plan_of_embedding(plan);
}

/// Foretells a text by a plan that is causal, or embeds some, under tiers whose policy may play.
Forwards forwards_within(Plan plan, std::optional<int64_t> bytes, bool is_foretold = true) {
  plan.memory.device = bytes;
  const Registries registries = builtin_registries();
  const auto n = static_cast<size_t>(num_ranks(plan));
  Forwards made{.loaded = std::vector<int64_t>(n), .peaks = std::vector<int64_t>(n)};
  const TextsToEmbed what = texts_to_embed(plan);
  std::vector<int64_t> text;
  for (int64_t i = 0; i < 4 * plan.train.batch * plan.model.sequence; ++i) {
    text.push_back((5 * i * i + 3 * i + 1) % plan.model.vocab);
  }
  const bool is_disk = plan.memory.has_disk();
  tests::run_ranks(static_cast<int>(n), [&](Communicator& world) {
    const auto r = static_cast<size_t>(world.rank());
    RankBook book = device_book(plan, world.rank(), compute_device());
    const BookScope booked(&book);
    const NoData none(plan.model);
    Engine engine(plan, registries, world, none,
                  {.trains = false, .has_parameters_on_disk = is_disk});
    if (plan.model.is_causal()) {
      if (is_foretold) foretell_windows(engine, registries, world.rank(), is_disk);
      const double nats = perplexity_of(engine, world, text, plan.model.sequence).nats;
      if (r == 0) made.nats = nats;
    } else {
      if (is_foretold) {
        foretell_embedding(engine, registries, world.rank(), is_disk, plan.model.sequence);
      }
      const Embedded all = embed(engine, world, what);
      if (r == 0) made.vectors = all.vectors;
    }
    made.loaded[r] = engine.loaded().value_or(0);
    made.peaks[r] = book.peak();
  });
  return made;
}

/// The least bytes, to 2 % of them, in which each forward from an empty device runs.
int64_t need_of(const Plan& plan) {
  int64_t fails = 1, holds = int64_t{1} << 22;
  while (holds - fails > holds / 50) {
    const int64_t middle = fails + (holds - fails) / 2;
    try {
      forwards_within(plan, middle, /*is_foretold=*/false);
      holds = middle;
    } catch (const OutOfMemory&) {
      fails = middle;
    }
  }
  return holds;
}

/// Perplexity and embeddings: the policy plays their forwards, which stay what they are.
TEST(TieredForwards, AreThoseWithoutTiersUnderEveryPolicyWithinTheirBudget) {
  using namespace tests::keys;  // NOLINT: the rows below are a table
  const Overrides twelve = {{"train.batch", "12"}};
  const Overrides bert = both(twelve, {{"model.kind", "bert"}});
  const std::vector<Overrides> bases = {twelve,
                                        both(twelve, tensor("1d", "2")),
                                        both(twelve, stages()),
                                        both(twelve, replicas("3", "3")),
                                        both(twelve, sequence("ring", "2")),
                                        bert,
                                        both(bert, tensor("2d", "4")),
                                        both(bert, stages())};
  size_t tried = 0;
  for (const Overrides& base : bases) {
    const auto plan_of = [&](const Overrides& more) {
      const tests::Family family{"", both(base, more)};
      return plan_of_forwards(family);
    };
    const Forwards plain = forwards_within(plan_of({}), {});
    const int64_t need = need_of(plan_of(tiers({}, "host", {{"memory.prefetch", "0"}}).overrides));
    for (const char* policy : {"host", "static", "lru", "belady", "auto"}) {
      for (const char* ahead : {"0", "2"}) {
        SCOPED_TRACE(testing::Message() << tried << " " << policy << ", prefetch " << ahead);
        const Plan plan =
            plan_of(both(tiers({}, policy, tried++ % 4 == 3 ? kOnDisk : Overrides{}).overrides,
                         {{"memory.prefetch", ahead}}));
        for (const int64_t budget : {need, need + need / 4}) {
          const Forwards made = forwards_within(plan, budget);
          EXPECT_EQ(made.nats, plain.nats);
          EXPECT_EQ(made.vectors, plain.vectors);
          for (const int64_t peak : made.peaks) EXPECT_LE(peak, budget);
        }
      }
    }
  }
  EXPECT_EQ(tried, 80U);
}

/// What stays does not come again.
TEST(TieredForwards, LoadWhatStaysOnce) {
  for (const char* kind : {"gpt", "bert"}) {
    const auto loaded = [&](const char* share, bool is_foretold) {
      const Overrides keys = {
          {"model.kind", kind}, {"train.batch", "12"}, {"memory.static_share", share}};
      const Plan plan = plan_of_forwards(tiers(keys, "static"));
      return forwards_within(plan, int64_t{1} << 30, is_foretold).loaded[0];
    };
    const int64_t each = loaded("1", false), all = loaded("1", true);
    EXPECT_GT(each, 2 * all) << kind;
    EXPECT_GT(loaded("0.5", true), all) << kind;
    EXPECT_LT(loaded("0.5", true), each) << kind;
  }
}

}  // namespace
}  // namespace kuafu
