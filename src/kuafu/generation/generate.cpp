// SPDX-License-Identifier: Apache-2.0
#include "kuafu/generation/generate.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <optional>
#include <span>

#include "kuafu/base/errors.h"
#include "kuafu/base/suggest.h"
#include "kuafu/generation/fit.h"
#include "kuafu/model/key_value_cache.h"

namespace kuafu {
namespace {

/// What rank 0 says of a sample after a forward.
constexpr int64_t kGoesOn = -1;

/// Prompts that go forward together, one a sample of the plan's batch; samples without a prompt, or
/// whose prompt has ended, are computed and not looked at.
class Batch {
 public:
  Batch(Engine& engine, Communicator& world, const Generation& what, size_t first, Generated& made)
      : engine_(engine),
        world_(world),
        what_(what),
        first_(first),
        made_(made),
        count_(
            std::min(what.prompts.size() - first, static_cast<size_t>(engine.plan().train.batch))),
        sequence_(engine.plan().model.sequence) {
    const int64_t samples = engine.plan().train.batch;
    tokens_ = {.inputs = std::vector<int64_t>(static_cast<size_t>(samples * sequence_)),
               .targets = {},
               .samples = samples,
               .sequence = sequence_};
    lengths_.assign(static_cast<size_t>(samples), 1);
    is_over_.assign(count_, false);
    for (size_t b = 0; b < count_; ++b) {
      const std::vector<int64_t>& prompt = what_.prompts[first_ + b];
      lengths_[b] = std::ssize(prompt);
      std::copy(prompt.begin(), prompt.end(), row(b));
    }
    if (what.cache != Cache::kOff && engine.why_no_cache().empty()) {
      cache_.emplace(cache_capacity(engine.plan(), {.longest = longest(), .tokens = what.tokens}),
                     what.cache == Cache::kHost ? engine.make_cache_home() : nullptr);
    }
  }

  void run() {
    while (std::count(is_over_.begin(), is_over_.end(), false) > 0 && made_.stopped == 0) step();
    if (cache_) made_.cache_bytes = std::max(made_.cache_bytes, cache_->bytes());
  }

 private:
  std::vector<int64_t>::iterator row(size_t b) {
    return tokens_.inputs.begin() + static_cast<int64_t>(b) * sequence_;
  }

  int64_t longest() const { return *std::max_element(lengths_.begin(), lengths_.end()); }

  /// The logits behind the last token of each sample.
  Tensor forward() {
    std::vector<int64_t> positions;
    for (const int64_t length : lengths_) positions.push_back(length - 1);
    if (!cache_) return engine_.logits(tokens_, positions);
    const bool is_first = !cache_->is_filled();
    Tokens given{.inputs = {}, .targets = {}, .samples = tokens_.samples, .sequence = 1};
    if (is_first) given.sequence = longest();
    for (size_t b = 0; b < lengths_.size(); ++b) {
      const auto from = is_first ? row(b) : row(b) + positions[b];
      given.inputs.insert(given.inputs.end(), from, from + given.sequence);
    }
    return engine_.logits(given, positions, &*cache_);
  }

  /// One more token of each prompt that has not ended.
  void step() {
    const Tensor logits = forward();
    std::vector<int64_t> told(2 * count_ + 1);  // token and ending of each, why all ends
    if (world_.rank() == 0) {
      choose(logits, told);
      if (what_.why_stop) told.back() = what_.why_stop();
    }
    world_.broadcast({told.data(), std::ssize(told), DType::kI64}, 0).wait_host();
    made_.stopped = told.back();
    for (size_t b = 0; b < count_; ++b) {
      if (!is_over_[b]) take(b, told[2 * b], told[2 * b + 1]);
    }
  }

  /// logits (train.batch, vocab)
  void choose(const Tensor& logits, std::vector<int64_t>& told) {
    const Tensor rows = logits.to(at::kDouble).contiguous();
    const auto columns = static_cast<size_t>(rows.size(1));
    const size_t choices =
        what_.choices > 0 ? std::min(columns, static_cast<size_t>(what_.choices)) : columns;
    for (size_t b = 0; b < count_; ++b) {
      if (is_over_[b]) continue;
      const auto prompt = static_cast<int64_t>(first_ + b);
      const std::span<const double> row(rows.const_data_ptr<double>() + b * columns, choices);
      check_numbers(row, prompt);
      told[2 * b] = next_token(row, what_.sampling, prompt, lengths_[b]);
      told[2 * b + 1] = ending_of(b, told[2 * b]);
    }
  }

  /// A largest of logits one of which is no number is as good as any other; -inf takes a token out.
  void check_numbers(std::span<const double> logits, int64_t prompt) const {
    double most = -std::numeric_limits<double>::infinity();
    bool is_number = true;
    for (const double logit : logits) {
      is_number = is_number && !std::isnan(logit);
      most = std::max(most, logit);
    }
    if (is_number && std::isfinite(most)) return;
    const DType type = engine_.plan().model.dtype;
    throw Error(text("prompt ", prompt + 1, ": the logits of token ",
                     lengths_[static_cast<size_t>(prompt) - first_] + 1, " are no numbers, in ",
                     to_string(type), type == DType::kF16 ? "; try --set model.dtype=f32" : ""));
  }

  int64_t ending_of(size_t b, int64_t token) {
    Continuation& own = made_.all[first_ + b];
    if (own.tokens.empty()) own.first_s = seconds();
    std::optional<Ending> ending;
    if (what_.on_token) ending = what_.on_token(first_ + b, token);
    const int64_t made = std::ssize(own.tokens) + 1;
    if (!ending && made == what_.tokens) ending = Ending::kTokens;
    if (!ending && lengths_[b] + 1 == sequence_) ending = Ending::kSequence;
    return ending ? static_cast<int64_t>(*ending) : kGoesOn;
  }

  void take(size_t b, int64_t token, int64_t ending) {
    Continuation& own = made_.all[first_ + b];
    own.tokens.push_back(token);
    *(row(b) + lengths_[b]) = token;
    ++lengths_[b];
    if (ending == kGoesOn) return;
    own.ending = static_cast<Ending>(ending);
    is_over_[b] = true;
    if (world_.rank() == 0 && what_.on_end) what_.on_end(first_ + b, own);
  }

  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count();
  }

  Engine& engine_;
  Communicator& world_;
  const Generation& what_;
  const size_t first_;
  Generated& made_;
  const size_t count_;  // of prompts in it
  const int64_t sequence_;
  // Rows are filled up with token 0 behind what they have: no position that is asked for looks there.
  Tokens tokens_;
  std::vector<int64_t> lengths_;  // of each sample
  std::vector<bool> is_over_;     // of each prompt
  std::optional<KeyValueCache> cache_;
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
};

std::vector<std::string> causal_kinds() {
  std::vector<std::string> kinds;
  for (const char* kind : model_kinds::kAll) {
    ModelPlan model;
    model.kind = kind;
    if (model.is_causal()) kinds.emplace_back(kind);
  }
  return kinds;
}

}  // namespace

int64_t Generated::num_tokens() const {
  int64_t sum = 0;
  for (const Continuation& c : all) sum += std::ssize(c.tokens);
  return sum;
}

Plan plan_of_generation(Plan plan) {
  KUAFU_REQUIRE(plan.model.is_causal(), "model.kind = ", in_quotes(plan.model.kind),
                " foretells no token from those before it, which generating and perplexity take; "
                "of this build the kinds that do are ",
                join(causal_kinds()), ", and of plug-ins those of which it shows when it is tried");
  if (plan.model.has_mixtures()) {
    KUAFU_REQUIRE(plan.model.router != "expert_choice",
                  "model.router = \"expert_choice\": which experts a token meets depends on those "
                  "behind it, so that it foretells none; routers that do are top1, top2 and topk");
    plan.model.capacity_factor = static_cast<double>(plan.model.experts);
    plan.model.random_second = false;
  }
  plan.model.dropout = 0;
  plan.train.telemetry = false;
  plan.optimizer = {.kind = optimizer_kinds::kSgd, .momentum = 0};
  return plan;
}

Generated generate(Engine& engine, Communicator& world, const Generation& generation) {
  Generated made;
  made.all.resize(generation.prompts.size(), {.ending = Ending::kAsked});
  const auto each = static_cast<size_t>(engine.plan().train.batch);
  for (size_t first = 0; first < made.all.size() && made.stopped == 0; first += each) {
    Batch(engine, world, generation, first, made).run();
  }
  world.all_reduce({&made.cache_bytes, 1, DType::kI64}, ReduceOp::kMax).wait_host();
  return made;
}

}  // namespace kuafu
