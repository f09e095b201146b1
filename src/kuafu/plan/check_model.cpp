// SPDX-License-Identifier: Apache-2.0
//
// What the keys of a model and of its run say about each other, whatever ranks it is placed on.

#include <algorithm>
#include <numeric>

#include "kuafu/base/registry.h"
#include "kuafu/base/suggest.h"
#include "kuafu/plan/check.h"
#include "kuafu/plan/choices.h"
#include "kuafu/plan/keys.h"

namespace kuafu::plan {
namespace {

/// How a dynamic scale moves, given where it does not.
void check_scale(const Plan& plan, const Origins& origins) {
  if (plan.has_dynamic_scale()) return;
  const Plan defaults;
  for (const char* name : {"train.loss_scale_start", "train.loss_scale_interval"}) {
    const Key& key = *find_key(name);
    KUAFU_REQUIRE(
        print(key, plan) == print(key, defaults), origins.of({name}), name, " = ", print(key, plan),
        " has no effect with train.loss_scale = ", print(*find_key("train.loss_scale"), plan),
        " and model.dtype = ", print(*find_key("model.dtype"), plan),
        "; leave it out or set train.loss_scale = \"dynamic\"");
  }
}

void check_validation(const Plan& plan, const Origins& origins) {
  const bool holds_out = plan.data.kind != "text" || plan.data.validation > 0;
  KUAFU_REQUIRE(holds_out || plan.train.validation_batches == 0,
                origins.of({"data.validation", "train.validation_batches"}),
                "data.validation = 0 holds nothing out for train.validation_batches = ",
                plan.train.validation_batches,
                "; allowed: data.validation above 0, or validation_batches = 0");
  const int64_t every = plan.train.validate_every;
  KUAFU_REQUIRE(every == 0 || plan.train.validation_batches > 0,
                origins.of({"train.validate_every", "train.validation_batches"}),
                "train.validate_every = ", every,
                " has nothing to validate on: train.validation_batches = 0; allowed: "
                "validation_batches above 0, or validate_every = 0");
}

void check_hash(const Plan& plan, const Origins& origins) {
  const std::string& hash = plan.data.hash;
  const bool is_hex = hash.find_first_not_of("0123456789abcdef") == std::string::npos;
  KUAFU_REQUIRE(hash.empty() || (hash.size() == 16 && is_hex), origins.of({"data.hash"}),
                "data.hash = ", in_quotes(hash),
                " is no hash of a corpus; allowed: 16 hex digits in small letters, or nothing");
}

/// Ids of the vocabulary that masked pairs take for themselves.
constexpr int64_t kSpecialIds = 3;

void check_vocabulary(const Plan& plan, const Origins& origins) {
  const bool has_pairs = plan.model.input() == ModelInput::kMaskedPairs;
  if (plan.model.input() == ModelInput::kImages) {
    KUAFU_REQUIRE(plan.model.vocab == ModelPlan{}.vocab, origins.of({"model.vocab", "model.kind"}),
                  "model.vocab = ", plan.model.vocab,
                  " has no effect with model.kind = \"vit\", which reads images; leave it out or "
                  "set model.kind = \"gpt\"; nearest: vocab = ",
                  ModelPlan{}.vocab);
    return;
  }
  const bool has_tokenizer = !plan.data.tokenizer.empty();  // which is read with the data
  KUAFU_REQUIRE(has_tokenizer || plan.data.end_token.empty(), origins.of({"data.end_token"}),
                "data.end_token = ", in_quotes(plan.data.end_token),
                " is a token of data.tokenizer, which is empty; set data.tokenizer, or "
                "data.end_token = \"\"");
  const int64_t least = text_tokens(plan.model);
  KUAFU_REQUIRE(plan.data.kind != "text" || has_tokenizer || plan.model.vocab >= least,
                origins.of({"model.vocab", "data.kind"}), "model.vocab = ", plan.model.vocab,
                " is too small for data.kind = \"text\", one token a byte",
                has_pairs ? " and three special ones" : "", "; allowed: at least ", least,
                "; nearest: vocab = ", least, ", or data.kind = \"synthetic\"");
  KUAFU_REQUIRE(!has_pairs || plan.model.vocab > kSpecialIds,
                origins.of({"model.vocab", "model.kind"}), "model.vocab = ", plan.model.vocab,
                " leaves no token beside the three special ones of model.kind = \"bert\"; allowed: "
                "at least ",
                kSpecialIds + 1);
}

/// What one kind of model asks of the rest of the plan.
void check_kind(const Plan& plan, const Origins& origins) {
  const ModelPlan& m = plan.model;
  KUAFU_REQUIRE(!m.post_norm || !m.parallel_blocks,
                origins.of({"model.parallel_blocks", "model.post_norm"}),
                "model.parallel_blocks = true has one norm before both branches, "
                "model.post_norm = true norms after each sum; nearest: parallel_blocks = false, or "
                "post_norm = false");
  if (m.input() == ModelInput::kImages) {
    const bool has_path = !plan.data.path.empty();
    KUAFU_REQUIRE(plan.data.kind == "synthetic",
                  origins.of({has_path ? "data.path" : "data.kind", "model.kind"}),
                  has_path ? text("data.path = ", in_quotes(plan.data.path), ", which makes ") : "",
                  "data.kind = ", in_quotes(plan.data.kind), has_path ? "," : "",
                  " has no images for model.kind = \"vit\"; nearest: ",
                  has_path ? "no data.path" : "data.kind = \"synthetic\"");
  } else if (m.input() == ModelInput::kMaskedPairs) {
    KUAFU_REQUIRE(m.sequence >= kSpecialIds + 2, origins.of({"model.sequence", "model.kind"}),
                  "model.sequence = ", m.sequence,
                  " leaves no pair of sentences beside the three "
                  "special tokens of model.kind = \"bert\"; allowed: at least ",
                  kSpecialIds + 2);
    KUAFU_REQUIRE(
        !m.parallel_blocks, origins.of({"model.parallel_blocks", "model.kind"}),
        "model.parallel_blocks = true has one norm before both branches, "
        "model.kind = \"bert\" norms after each sum; nearest: parallel_blocks = false, or "
        "kind = \"gpt\"");
  }
}

/// Documents are told apart by the token that ends one, which causal models of tokens read.
void check_documents(const Plan& plan, const Origins& origins) {
  if (!plan.data.document_mask) return;
  if (plan.model.input() != ModelInput::kTokens || !plan.model.is_causal()) {
    throw Refused(text(origins.of({"data.document_mask", "model.kind"}),
                       "data.document_mask = true keeps documents of a row of tokens apart, which "
                       "model.kind = ",
                       in_quotes(plan.model.kind),
                       " does not read; nearest: document_mask = false, or kind = \"gpt\""));
  }
  KUAFU_REQUIRE(
      plan.data.kind != "text" || !plan.data.end_token.empty(), origins.of({"data.document_mask"}),
      "data.document_mask = true with data.kind = \"text\" needs the token that ends a "
      "document: set data.tokenizer and data.end_token, or data.kind = \"synthetic\", whose "
      "documents token 0 ends");
}

}  // namespace

int64_t text_tokens(const ModelPlan& model) {
  return 256 + (model.input() == ModelInput::kMaskedPairs ? kSpecialIds : 0);
}

void fill_defaults(Plan& plan, const Origins& origins) {
  const auto is_given = [&](const char* key) { return !origins.of({key}).empty(); };
  const bool has_text = plan.data.kind == "text";
  if (plan.model.input() == ModelInput::kImages && has_text && !is_given("data.kind") &&
      plan.data.path.empty() && plan.data.hash.empty() && plan.data.tokenizer.empty()) {
    plan.data.kind = "synthetic";
  }
  if (plan.model.input() == ModelInput::kMaskedPairs && has_text && !is_given("model.vocab") &&
      plan.model.vocab == ModelPlan{}.vocab) {
    plan.model.vocab = text_tokens(plan.model);
  }
}

void check_model(const Plan& plan, const Origins& origins) {
  const auto& [heads, hidden] = std::pair{plan.model.heads, plan.model.hidden};
  if (hidden % heads != 0) {
    const int64_t below = hidden / heads * heads;
    throw Refused(text(origins.of({"model.heads", "model.hidden"}), "model.heads = ", heads,
                       " does not divide model.hidden = ", hidden,
                       "; nearest: heads = ", nearest_divisors(hidden, heads),
                       ", or hidden = ", below > 0 ? text(below, " or ") : "", below + heads));
  }
  if (heads % plan.model.num_kv_heads() != 0) {
    throw Refused(text(origins.of({"model.kv_heads", "model.heads"}), "model.kv_heads = ",
                       plan.model.kv_heads, " does not divide model.heads = ", heads,
                       "; nearest: kv_heads = ", nearest_divisors(heads, plan.model.kv_heads)));
  }
  if (plan.model.positions == "rotary" && hidden / heads % 2 != 0) {
    throw Refused(
        text(origins.of({"model.positions", "model.heads", "model.hidden"}),
             "model.positions = \"rotary\" turns pairs, but model.hidden / model.heads = ",
             hidden / heads, " is odd; nearest: hidden = ", hidden + heads,
             ", or positions = \"learned\""));
  }
}

/// What concerns mixtures of experts: counts that contradict each other, ranks that cannot share.
void check_experts(const Plan& plan, const Origins& origins) {
  const ModelPlan& m = plan.model;
  const int64_t ranks = plan.parallel.expert;
  if (!m.has_mixtures()) {
    KUAFU_REQUIRE(ranks == 1, origins.of({"parallel.expert.size"}),
                  "parallel.expert.size = ", ranks,
                  " has no effect with model.kind = ", in_quotes(m.kind),
                  ", which has no experts; leave it out or set model.kind = \"moe_gpt\"");
    KUAFU_REQUIRE(!m.random_second, origins.of({"model.random_second"}),
                  "model.random_second = true has no effect with model.kind = ", in_quotes(m.kind),
                  "; leave it out or set model.kind = \"moe_gpt\"");
    return;
  }
  const int64_t choices = m.router == "topk" ? m.top_k : m.router == "top2" ? 2 : 1;
  if (choices > m.experts) {
    throw Refused(
        text(origins.of({"model.top_k", "model.router", "model.experts"}), "a token cannot choose ",
             choices, " of model.experts = ", m.experts,
             "; nearest: ", m.router == "topk" ? text("top_k = ", m.experts) : "router = \"top1\"",
             ", or experts = ", choices));
  }
  if (m.moe_every > m.layers) {
    throw Refused(text(origins.of({"model.moe_every", "model.layers"}), "model.moe_every = ",
                       m.moe_every, " leaves none of model.layers = ", m.layers,
                       " a mixture; nearest: moe_every = ", m.layers));
  }
  if (m.experts % ranks != 0) {
    const int64_t data = plan.parallel.data.size;  // 0 where open
    throw Refused(
        text(origins.of({"parallel.expert.size", "model.experts"}),
             "parallel.expert.size = ", ranks, " does not divide model.experts = ", m.experts,
             "; nearest: expert.size = ", nearest_divisors(std::gcd(m.experts, data), ranks)));
  }
}

void check_options(const Plan& plan, const Choices& choices, const Origins& origins) {
  const std::string& kind = plan.model.kind;
  const std::vector<std::string>& models = choices.models;
  if (std::find(models.begin(), models.end(), kind) == models.end()) {
    throw NotFound(text(origins.of({"model.kind"}), "model.kind = ", in_quotes(kind),
                        " is not allowed; allowed: ", join_or(in_quotes(models)),
                        "; nearest: ", in_quotes(nearest(kind, models))));
  }
  check_policy(plan, choices.policies, origins);
  check_optimizer(plan, choices, origins);
  check_scale(plan, origins);
  check_hash(plan, origins);
  check_validation(plan, origins);
  check_vocabulary(plan, origins);
  check_kind(plan, origins);
  check_documents(plan, origins);
}

void complete(Plan& plan, const Origins& origins) {
  ModelPlan& m = plan.model;
  if (m.input() != ModelInput::kImages) return;
  if (m.image % m.patch != 0) {
    throw Refused(text(origins.of({"model.patch", "model.image"}), "model.patch = ", m.patch,
                       " does not divide model.image = ", m.image,
                       "; nearest: patch = ", nearest_divisors(m.image, m.patch)));
  }
  const int64_t side = m.image / m.patch, tokens = side * side + 1;
  const std::string where = origins.of({"model.sequence"});
  const bool is_given = !where.empty() || m.sequence != ModelPlan{}.sequence;
  if (is_given && m.sequence != tokens) {
    throw Refused(text(where, "model.sequence = ", m.sequence, ", but an image has ", tokens,
                       " tokens, (image / patch)^2 patches and the class; nearest: sequence = ",
                       tokens, ", or leave it out"));
  }
  constexpr int64_t kMostTokens = 1 << 24;
  if (tokens > kMostTokens) {
    throw Refused(text(origins.of({"model.patch", "model.image"}), "an image of ", tokens,
                       " tokens; allowed: at most ", kMostTokens, "; nearest: a larger patch"));
  }
  m.sequence = tokens;
}

}  // namespace kuafu::plan
