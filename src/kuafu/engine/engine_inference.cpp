// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "kuafu/base/errors.h"
#include "kuafu/base/suggest.h"
#include "kuafu/engine/engine_state.h"
#include "kuafu/engine/proof/box_gathering.h"
#include "kuafu/engine/stepping/away_cache.h"
#include "kuafu/meter/book.h"
#include "kuafu/model/inference.h"
#include "kuafu/model/key_value_cache.h"
#include "kuafu/parallel/expert/routing.h"

namespace kuafu {
namespace {

void check_causal(const Plan& plan) {
  KUAFU_REQUIRE(plan.model.is_causal(), "model.kind = \"", plan.model.kind,
                "\" is not causal: its logits are of no next token");
}

/// Why a router chooses otherwise where fewer tokens go forward together; empty: it does not.
std::string why_routes_differ(const ModelPlan& model) {
  if (!model.has_mixtures()) return "";
  if (model.router == "expert_choice") {
    return "model.router = \"expert_choice\" chooses among the tokens of a whole sequence";
  }
  if (expert_capacity(model) < model.sequence) {
    return text("model.capacity_factor = ", model.capacity_factor,
                " lets experts drop tokens, by how many of a whole sequence come to them");
  }
  return model.random_second ? "model.random_second draws by the place in a whole sequence" : "";
}

/// While it lives, forwards are of those that foretell_alike() is about. `tiers`: null where there are
/// none.
class AlikeScope {
 public:
  explicit AlikeScope(Tiers* tiers, bool is_alike = true) : tiers_(tiers) {
    if (tiers_ != nullptr) tiers_->set_alike(is_alike);
  }
  ~AlikeScope() {
    if (tiers_ != nullptr) tiers_->set_alike(false);
  }
  AlikeScope(const AlikeScope&) = delete;
  AlikeScope& operator=(const AlikeScope&) = delete;

 private:
  Tiers* tiers_;
};

/// What gather_boxes() has on rank 0 of (rows, width) numbers on meta tensors: what one rank sends, at
/// most all, the whole, and a row on its way; elsewhere the `mine` numbers that it sends, and undefined.
Tensor gathered_on_meta(int64_t rows, int64_t width, int64_t mine, bool is_first, DType dtype) {
  const at::TensorOptions options = at::TensorOptions(at::kMeta).dtype(scalar_type(dtype));
  const Tensor sent = at::empty({is_first ? rows * width : mine}, options);
  if (!is_first) return {};
  const Tensor whole = at::empty({rows, width}, options), row = at::empty({width}, options);
  return whole;
}

}  // namespace

std::unique_ptr<CacheHome> Engine::make_cache_home() {
  Tiers* tiers = state_->store->tiers();
  if (tiers == nullptr) return nullptr;
  return std::make_unique<AwayCache>(tiers->copies(), tiers->host());
}

std::pair<int64_t, int64_t> Engine::cache_moves() const {
  Tiers* tiers = state_->store->tiers();
  if (tiers == nullptr) return {0, 0};
  const TierCopies& copies = tiers->copies();
  return {copies.of_cache(device::Direction::kToDevice),
          copies.of_cache(device::Direction::kToHost)};
}

void Engine::foretell_alike(std::vector<int64_t> in_use) {
  if (Tiers* tiers = state_->store->tiers()) tiers->foretell_alike(std::move(in_use));
}

std::vector<int64_t> Engine::seen_in_use() {
  Tiers* tiers = state_->store->tiers();
  return tiers != nullptr ? tiers->seen_in_use() : std::vector<int64_t>{};
}

void Engine::bring_value(const Param& p) { state_->store->bring(p); }

double Engine::surprisal(const Tokens& batch) {
  State& s = *state_;
  KUAFU_CHECK(batch.samples == s.plan.train.batch && batch.sequence == s.plan.model.sequence,
              batch.samples, " samples of ", batch.sequence, " tokens, for ", s.plan.train.batch,
              " of ", s.plan.model.sequence);
  check_causal(s.plan);
  settle();
  const at::NoGradGuard no_grad;
  const CategoryScope scope(Category::kActivation);
  s.micro_batches.use_given(batch);
  const AlikeScope alike(s.store->tiers());
  return s.global_loss(s.run(s.validation_row, false));
}

std::string Engine::why_no_shorter() const {
  const Plan& plan = state_->plan;
  const auto shared = [](const std::string& who) {
    return who + " shares the positions of a sequence among ranks";
  };
  if (plan.parallel.sequence.mode != sequence_modes::kNone) {
    return shared(text("parallel.sequence.mode = ", in_quotes(plan.parallel.sequence.mode)));
  }
  const Context& context = state_->placement.context();
  std::vector<const Context*> all = context.layers;  // empty: all are the first
  all.push_back(&context);
  for (const Context* each : all) {
    for (const Stream stream : {Stream::kOuter, Stream::kInner}) {
      const Axes axes = each->activation(stream).dims[1];
      if (state_->mesh.size(axes) > 1) {
        return shared(text("the axis ", to_string(axes), " of the tensor scheme"));
      }
    }
  }
  return "";
}

std::string Engine::why_no_cache() const {
  const std::string shared = why_no_shorter();
  if (!shared.empty()) return shared + ", and a new token has one alone";
  const std::vector<std::string> own = builtin_model_names();
  if (std::find(own.begin(), own.end(), state_->plan.model.kind) == own.end()) {
    return text("model.kind = ", in_quotes(state_->plan.model.kind),
                " is a plug-in's, whose blocks may look at tokens in ways of their own");
  }
  return why_routes_differ(state_->plan.model);
}

Tensor Engine::last_input(const Tokens& batch) {
  State& s = *state_;
  const ModelPlan& model = s.plan.model;
  const bool is_whole = batch.sequence == model.sequence;
  KUAFU_CHECK(batch.samples == s.plan.train.batch && batch.sequence <= model.sequence &&
                  (is_whole || why_no_shorter().empty()),
              batch.samples, " samples of ", batch.sequence, " tokens, for ", s.plan.train.batch,
              " of ", model.sequence);
  KUAFU_REQUIRE(model.input() != ModelInput::kImages, "model.kind = \"", model.kind,
                "\" reads images, and these are tokens");
  settle();
  const at::NoGradGuard no_grad;
  const CategoryScope scope(Category::kActivation);
  KeptFlows kept(s.placement.context());
  const auto take = [&](const ModelBlock& last, const Flow& in, const Side& side) {
    kept.add(last, Boundary::kInput, in, side);
  };
  Inference inference{.positions = {}, .take_last_input = take};
  s.micro_batches.use_given(batch, inference);
  const auto stages_take = [&s](int64_t sequence) {
    for (const auto& stage : s.stages) stage->set_sequence(sequence);
  };
  if (!is_whole) stages_take(batch.sequence);
  {
    const AlikeScope alike(s.store->tiers());
    s.run(s.validation_row, false);
  }
  if (!is_whole) stages_take(model.sequence);
  if (s.options.device.is_meta()) {
    int64_t numbers = 0;
    for (const KeptFlows::FlowPiece& p : kept.pieces()) numbers += p.data.numel();
    return gathered_on_meta(batch.samples, batch.sequence * model.hidden, numbers,
                            s.world.rank() == 0, model.dtype);
  }
  std::vector<Box> mine;
  for (const KeptFlows::FlowPiece& p : kept.pieces()) {
    mine.push_back({.name = p.block,
                    .global = {batch.samples, batch.sequence, model.hidden},
                    .place = p.place,
                    .data = p.data});
  }
  const GatheredBoxes whole =
      gather_boxes(std::move(mine), Copies::kAnyIsGood, s.world, s.options.device);
  KUAFU_CHECK(whole.disagreement.empty(), whole.disagreement);
  if (s.world.rank() != 0) return {};
  KUAFU_REQUIRE(whole.tensors.size() == 1, "model.kind = \"", model.kind,
                "\": its last block is not named head, or does not take one (B, S, H)");
  return whole.tensors.begin()->second;
}

Tensor Engine::logits(const Tokens& batch, const std::vector<int64_t>& positions,
                      KeyValueCache* cache) {
  State& s = *state_;
  const int64_t samples = s.plan.train.batch, vocab = s.plan.model.vocab;
  const bool is_whole = batch.sequence == s.plan.model.sequence;
  KUAFU_CHECK(batch.samples == samples && (is_whole || cache != nullptr) &&
                  std::ssize(positions) == samples,
              batch.samples, " samples of ", batch.sequence, " tokens, ", positions.size(),
              " positions, for ", samples, " of ", s.plan.model.sequence);
  check_causal(s.plan);
  settle();
  const at::NoGradGuard no_grad;
  const CategoryScope scope(Category::kActivation);
  Inference inference{.positions = positions, .cache = cache};
  s.micro_batches.use_given(batch, inference);
  const auto stages_take = [&s](int64_t sequence) {
    for (const auto& stage : s.stages) stage->set_sequence(sequence);
  };
  if (cache != nullptr) stages_take(batch.sequence);
  {
    const AlikeScope alike(s.store->tiers(), cache == nullptr || cache->is_filled());
    s.run(s.validation_row, false);
  }
  if (cache != nullptr) {
    stages_take(s.plan.model.sequence);
    cache->set_filled();
  }
  if (s.options.device.is_meta()) {
    int64_t mine = 0, width = vocab;
    for (const LogitRow& row : inference.rows) {
      mine += row.values.numel();
      width = row.width;  // with padding
    }
    const Tensor whole =
        gathered_on_meta(samples, width, mine, s.world.rank() == 0, s.plan.model.dtype);
    return whole.defined() ? whole.narrow(1, 0, vocab) : whole;
  }
  std::vector<Box> mine;
  for (const LogitRow& row : inference.rows) {
    mine.push_back({.name = "logits",
                    .global = {samples, row.width},
                    .place = {{row.sample, row.first}, {1, row.values.numel()}},
                    .data = row.values});
  }
  const GatheredBoxes whole =
      gather_boxes(std::move(mine), Copies::kAnyIsGood, s.world, s.options.device);
  KUAFU_CHECK(whole.disagreement.empty(), whole.disagreement);
  if (s.world.rank() != 0) return {};
  const auto found = whole.tensors.find("logits");
  KUAFU_REQUIRE(found != whole.tensors.end(), "model.kind = \"", s.plan.model.kind,
                "\": its last block hands out no logits");
  return found->second.narrow(1, 0, vocab);
}

}  // namespace kuafu
