// SPDX-License-Identifier: Apache-2.0
#include "kuafu/plan/check.h"

#include <algorithm>
#include <cstdlib>
#include <limits>

#include "kuafu/base/suggest.h"
#include "kuafu/plan/keys.h"
#include "kuafu/plan/layer_ranges.h"

namespace kuafu::plan {
namespace {

constexpr std::string_view kNotAvailable = "not available in this build: ";

/// Names that stand for schemes of the literature, whether or not this build has them.
const std::vector<std::string>& reserved_modes() {
  static const std::vector<std::string> names = {"none", "1d", "1d-sp", "2d", "2.5d", "3d"};
  return names;
}

std::vector<std::string> names_of(const TensorModes& modes) {
  std::vector<std::string> names;
  for (const std::string& name : reserved_modes()) {
    if (modes.count(name) > 0) names.push_back(name);
  }
  for (const auto& [name, mode] : modes) {
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  return names;
}

/// A key that differs from its default and that the chosen kind never reads.
void check_ignored(const Plan& plan, const Origins& origins) {
  const Plan defaults;
  for (const Key& key : keys()) {
    if (key.governor.empty() || print(key, plan) == print(key, defaults)) continue;
    const std::string kind = print(*find_key(key.governor), plan);
    KUAFU_REQUIRE(kind == in_quotes(key.needs), origins.of({key.name}), key.name, " = ",
                  print(key, plan), " has no effect with ", key.governor, " = ", kind,
                  "; leave it out or set ", key.governor, " = ", in_quotes(key.needs));
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

void check_tensor(const Plan& plan, const TensorModes& modes, const Origins& origins) {
  const TensorMode& mode = find_mode(plan, modes, origins);
  const TensorPlan& tensor = plan.parallel.tensor;
  try {
    mode.axes(tensor.size, tensor.depth);
  } catch (const Refused& refusal) {
    throw Refused(
        text(origins.of({"parallel.tensor.size", "parallel.tensor.depth", "parallel.tensor.mode"}),
             "parallel.tensor: ", refusal.what()));
  }
}

/// A sequence over more ranks than it can be cut for.
void check_sequence(const Plan& plan, const Origins& origins) {
  const auto& [mode, size] = plan.parallel.sequence;
  const std::string where = origins.of({"parallel.sequence.size", "parallel.sequence.mode"});
  if (mode == "none" && size != 1) {
    throw Refused(text(where, "parallel.sequence = { mode = \"none\", size = ", size,
                       " }: mode \"none\" keeps sequences whole; nearest: size = 1, or ",
                       "mode = \"ring\" with this size"));
  }
  if (plan.model.sequence < size) {
    throw Refused(text(where, "parallel.sequence.size = ", size,
                       " ranks have no token each of model.sequence = ", plan.model.sequence,
                       "; nearest: size = ", plan.model.sequence, ", or sequence = ", size));
  }
  if (mode == "ulysses" && plan.model.heads % size != 0) {
    throw Refused(text(where, "parallel.sequence.size = ", size, " does not divide model.heads = ",
                       plan.model.heads, size > plan.model.heads ? ": more ranks than heads" : "",
                       ", which mode \"ulysses\" deals out; nearest: size = ",
                       nearest_divisors(plan.model.heads, size),
                       ", or mode = \"ring\" with this size"));
  }
  const bool sees_all = plan.model.kind == "bert" || plan.model.kind == "vit";
  if (mode == "ring-zigzag" && sees_all) {
    throw Refused(text(origins.of({"parallel.sequence.mode", "model.kind"}),
                       "parallel.sequence.mode = \"ring-zigzag\" balances causal masks, and ",
                       "model.kind = ", in_quotes(plan.model.kind),
                       " has none; nearest: mode = \"ring\""));
  }
}

/// Kinds of parallelism whose names are fixed but which nothing implements yet.
void check_available(const Plan& plan, const Origins& origins) {
  const ParallelPlan& p = plan.parallel;
  if (p.pipeline != 1) {
    throw Refused(text(origins.of({"parallel.pipeline"}), kNotAvailable,
                       "pipeline parallelism (parallel.pipeline = ", p.pipeline,
                       "); available: pipeline = 1"));
  }
}

/// What concerns mixtures of experts: counts that contradict each other, ranks that cannot share.
void check_experts(const Plan& plan, const Origins& origins) {
  const ModelPlan& m = plan.model;
  const int64_t ranks = plan.parallel.expert;
  if (m.kind != "moe_gpt") {
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
  const int64_t parts = plan.parallel.sequence.size;
  if (m.sequence % parts != 0) {
    const int64_t below = m.sequence / parts * parts;
    throw Refused(text(origins.of({"parallel.sequence.size", "model.sequence"}),
                       "model.sequence = ", m.sequence, " over parallel.sequence.size = ", parts,
                       " ranks: mixtures of experts need parts of one length; nearest: sequence = ",
                       below > 0 ? text(below, " or ") : "", below + parts));
  }
  if (m.experts % ranks != 0) {
    throw Refused(text(origins.of({"parallel.expert.size", "model.experts"}),
                       "parallel.expert.size = ", ranks, " does not divide model.experts = ",
                       m.experts, "; nearest: ", nearest_divisors(m.experts, ranks)));
  }
}

void check_validation(const Plan& plan, const Origins& origins) {
  const bool holds_out = plan.data.kind != "text" || plan.data.validation > 0;
  KUAFU_REQUIRE(holds_out || plan.train.validation_batches == 0,
                origins.of({"data.validation", "train.validation_batches"}),
                "data.validation = 0 holds nothing out for train.validation_batches = ",
                plan.train.validation_batches,
                "; allowed: data.validation above 0, or validation_batches = 0");
}

/// Ids of the vocabulary that masked pairs take for themselves.
constexpr int64_t kSpecialIds = 3;

void check_vocabulary(const Plan& plan, const Origins& origins) {
  const bool is_bert = plan.model.kind == "bert";
  if (plan.model.kind == "vit") return;
  const int64_t least = 256 + (is_bert ? kSpecialIds : 0);
  KUAFU_REQUIRE(plan.data.kind != "text" || plan.model.vocab >= least,
                origins.of({"model.vocab", "data.kind"}), "model.vocab = ", plan.model.vocab,
                " is too small for data.kind = \"text\", one token a byte",
                is_bert ? " and three special ones" : "", "; allowed: at least ", least,
                "; nearest: vocab = ", least, ", or data.kind = \"synthetic\"");
  KUAFU_REQUIRE(!is_bert || plan.model.vocab > kSpecialIds,
                origins.of({"model.vocab", "model.kind"}), "model.vocab = ", plan.model.vocab,
                " leaves no token beside the three special ones of model.kind = \"bert\"; allowed: "
                "at least ",
                kSpecialIds + 1);
}

/// What one kind of model asks of the rest of the plan.
void check_kind(const Plan& plan, const Origins& origins) {
  const ModelPlan& m = plan.model;
  if (m.kind == "vit") {
    KUAFU_REQUIRE(plan.data.kind == "synthetic", origins.of({"data.kind", "model.kind"}),
                  "data.kind = ", in_quotes(plan.data.kind),
                  " has no images for model.kind = \"vit\"; nearest: data.kind = \"synthetic\"");
  } else if (m.kind == "bert") {
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

}  // namespace

std::string Origins::of(const std::vector<std::string>& keys) const {
  for (const std::string& key : keys) {
    const auto found = where_.find(key);
    if (found != where_.end()) return found->second;
  }
  return {};
}

std::string nearest_divisors(int64_t n, int64_t x) {
  std::vector<int64_t> divisors;
  for (int64_t d = 1; d * d <= n; ++d) {
    if (n % d != 0) continue;
    divisors.push_back(d);
    if (d * d != n) divisors.push_back(n / d);
  }
  std::sort(divisors.begin(), divisors.end());
  std::stable_sort(divisors.begin(), divisors.end(),
                   [x](int64_t a, int64_t b) { return std::llabs(a - x) < std::llabs(b - x); });
  std::vector<std::string> words;
  for (size_t i = 0; i < std::min<size_t>(2, divisors.size()); ++i) {
    words.push_back(text(divisors[i]));
  }
  return join_or(words);
}

int64_t saturating_product(const std::vector<int64_t>& factors) {
  int64_t product = 1;
  for (const int64_t factor : factors) {
    if (__builtin_mul_overflow(product, factor, &product)) {
      return std::numeric_limits<int64_t>::max();
    }
  }
  return product;
}

std::optional<std::string> expert_misfit(const Plan& plan) {
  const int64_t data = plan.parallel.data, expert = plan.parallel.expert;
  if (data % expert == 0) return {};
  const int64_t below = data / expert * expert;
  return text("parallel.expert.size = ", expert, " does not divide parallel.data = ", data,
              "; nearest: expert.size = ", nearest_divisors(data, expert),
              ", or data = ", below > 0 ? text(below, " or ") : "", below + expert);
}

std::optional<std::string> batch_misfit(const Plan& plan) {
  const int64_t batch = plan.train.batch, data = plan.parallel.data;
  const int64_t micro = plan.train.micro_batch;
  const int64_t step = saturating_product({data, std::max<int64_t>(1, micro)});
  if (batch % step == 0) return {};
  const int64_t below = batch / step * step;
  std::string reason =
      micro == 0 ? text("train.batch = ", batch, " does not divide by parallel.data = ", data)
                 : text("train.batch = ", batch, " does not divide by parallel.data x ",
                        "train.micro_batch = ", data, " x ", micro, " = ", step);
  reason += text("; nearest: batch = ", below > 0 ? text(below, " or ") : "", below + step);
  if (batch % data != 0) {
    reason += ", or data = " + nearest_divisors(batch, data);
  } else {
    reason += ", or micro_batch = " + nearest_divisors(batch / data, micro);
  }
  return reason;
}

const TensorMode& find_mode(const Plan& plan, const TensorModes& modes, const Origins& origins) {
  const std::string& name = plan.parallel.tensor.mode;
  const auto found = modes.find(name);
  if (found != modes.end()) return found->second;
  const std::string where = origins.of({"parallel.tensor.mode"});
  const std::vector<std::string> available = names_of(modes);
  const std::vector<std::string>& reserved = reserved_modes();
  if (std::find(reserved.begin(), reserved.end(), name) != reserved.end()) {
    throw Refused(text(where, kNotAvailable, "parallel.tensor.mode = ", in_quotes(name),
                       "; available: ", join_or(in_quotes(available)),
                       "; nearest: ", in_quotes(nearest(name, available))));
  }
  throw ConfigError(text(where, "parallel.tensor.mode = ", in_quotes(name),
                         " is not allowed; allowed: ", join_or(in_quotes(available)),
                         "; nearest: ", in_quotes(nearest(name, available))));
}

void check_options(const Plan& plan, const std::vector<std::string>& models,
                   const Origins& origins) {
  const std::string& kind = plan.model.kind;
  KUAFU_REQUIRE(std::find(models.begin(), models.end(), kind) != models.end(),
                origins.of({"model.kind"}), "model.kind = ", in_quotes(kind),
                " is not allowed; allowed: ", join_or(in_quotes(models)),
                "; nearest: ", in_quotes(nearest(kind, models)));
  check_ignored(plan, origins);
  check_validation(plan, origins);
  check_vocabulary(plan, origins);
  check_kind(plan, origins);
}

void complete(Plan& plan, const Origins& origins) {
  ModelPlan& m = plan.model;
  if (m.kind != "vit") return;
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

void check_sequence_mode(const Plan& plan, const std::vector<std::string>& attentions,
                         const Origins& origins) {
  const std::string& mode = plan.parallel.sequence.mode;
  KUAFU_REQUIRE(std::find(attentions.begin(), attentions.end(), mode) != attentions.end(),
                origins.of({"parallel.sequence.mode"}),
                "parallel.sequence.mode = ", in_quotes(mode),
                " is not allowed; allowed: ", join_or(in_quotes(attentions)),
                "; nearest: ", in_quotes(nearest(mode, attentions)));
}

void check_plan(const Plan& plan, const TensorModes& modes, const Origins& origins) {
  check_model(plan, origins);
  check_tensor(plan, modes, origins);
  check_layers(plan, modes, origins);
  check_sequence(plan, origins);
  check_experts(plan, origins);
  check_available(plan, origins);
  if (plan.parallel.data == 0) return;
  if (const auto reason = expert_misfit(plan)) {
    throw Refused(text(origins.of({"parallel.expert.size", "parallel.data"}), *reason));
  }
  if (const auto reason = batch_misfit(plan)) {
    throw Refused(text(origins.of({"train.batch", "parallel.data", "train.micro_batch"}), *reason));
  }
}

}  // namespace kuafu::plan
