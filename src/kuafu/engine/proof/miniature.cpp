// SPDX-License-Identifier: Apache-2.0
#include "kuafu/engine/proof/miniature.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "kuafu/plan/check.h"

namespace kuafu {
namespace {

using Change = std::function<void(Plan&)>;

/// Numbers to try for a size, ascending: every one up to `dense`, then some, all below `size`.
std::vector<int64_t> below(int64_t size, int64_t least, int64_t dense) {
  std::vector<int64_t> out;
  for (int64_t n = least; n < size; n += n < dense ? 1 : n / 4) out.push_back(n);
  return out;
}

/// Keeps a plan with the wanted features and makes it smaller where it can.
class Search {
 public:
  Search(const Plan& plan, const Registries& registries)
      : registries_(registries),
        modes_(registries.tensor_modes()),
        plan_(plan),
        wanted_(features_of(plan, registries)) {}

  const Plan& plan() const { return plan_; }

  /// Takes a changed plan if it has the wanted features; says whether.
  bool take(const Change& change) {
    Plan next = plan_;
    change(next);
    try {
      next = resolve(next, 0, modes_);
      const bool is_kept =
          features_with_buckets(next, registries_, wanted_.has_several_buckets) == wanted_;
      if (is_kept) plan_ = next;
      return is_kept;
    } catch (const ConfigError&) {  // Refused is one too
      return false;
    }
  }

  void shrink_layers();
  void shrink_vocabulary();
  void shrink_width();
  void shrink_sequence();
  void shrink_tokens_and_vocabulary();
  void shrink_batch();

 private:
  int64_t least_vocabulary() const {
    const bool is_text = plan_.data.kind == "text" && plan_.model.input() != ModelInput::kImages;
    return is_text ? plan::text_tokens(plan_.model) : 32;
  }
  int64_t least_sequence() const { return std::max<int64_t>(8, 2 * plan_.parallel.sequence.size); }
  const Registries& registries_;
  const TensorModes modes_;
  Plan plan_;
  const Features wanted_;
};

/// Cuts each run of layers of one mode, in a range of the plan or between two, to `longest`.
void cut_runs(Plan& plan, int64_t longest) {
  std::vector<LayerPlan>& ranges = plan.parallel.layers;
  std::sort(ranges.begin(), ranges.end(),
            [](const LayerPlan& a, const LayerPlan& b) { return a.from < b.from; });
  int64_t given = 0, next = 0;  // layers behind the last range, before and after
  for (LayerPlan& r : ranges) {
    next += std::min(longest, r.from - given);
    const int64_t length = std::min(longest, r.to - r.from + 1);
    given = r.to + 1;
    r.from = next;
    r.to = next + length - 1;
    next += length;
  }
  plan.model.layers = next + std::min(longest, plan.model.layers - given);
}

/// Blocks by hand for `layers`, where the plan has `given` for its own: one for each stage, and the
/// rest where most were; the same for all where all had the same.
std::vector<int64_t> scaled_blocks(const std::vector<int64_t>& given, int64_t blocks) {
  const auto stages = static_cast<int64_t>(given.size());
  const auto most = std::max_element(given.begin(), given.end());
  const bool is_even = *std::min_element(given.begin(), given.end()) == *most;
  std::vector<int64_t> out(given.size(), is_even ? blocks / stages : 1);
  out[static_cast<size_t>(most - given.begin())] += is_even ? blocks % stages : blocks - stages;
  return out;
}

void Search::shrink_layers() {
  const Plan given = plan_;
  const int64_t around = std::accumulate(given.parallel.pipeline.blocks.begin(),
                                         given.parallel.pipeline.blocks.end(), -given.model.layers);
  const auto blocks_of = [&](const Plan& p, const std::vector<int64_t>& like) {
    return scaled_blocks(like, p.model.layers + around);
  };
  const int64_t every = given.model.moe_every;
  for (const int64_t n : below(given.model.layers, 1, 24)) {
    for (const int64_t period : {std::min<int64_t>(every, 3), every}) {
      const auto cut = [&](Plan& p) {
        p = given;
        p.model.moe_every = period;
        if (p.parallel.layers.empty()) {
          p.model.layers = n;
        } else {
          cut_runs(p, n);
        }
        std::vector<int64_t>& blocks = p.parallel.pipeline.blocks;
        if (!blocks.empty()) blocks = blocks_of(p, blocks);
      };
      if (take(cut)) return;
      // Stages that are balanced by cost need not be as uneven on a small model: then by hand.
      const auto by_hand = [&](Plan& p) {
        cut(p);
        std::vector<int64_t> like(static_cast<size_t>(p.parallel.pipeline.stages()), 1);
        like.front() += wanted_.has_uneven_stages ? 1 : 0;
        p.parallel.pipeline.blocks = scaled_blocks(like, p.model.layers + 2);
      };
      if (given.parallel.pipeline.size > 1 && given.parallel.pipeline.blocks.empty() &&
          take(by_hand)) {
        return;
      }
    }
  }
}

void Search::shrink_vocabulary() {
  const int64_t given = plan_.model.vocab;
  if (plan_.model.input() == ModelInput::kImages) {
    for (const int64_t n : below(plan_.model.classes, 32, 32)) {
      if (take([n](Plan& p) { p.model.classes = n; })) return;
    }
    return;
  }
  for (int64_t from = least_vocabulary(); from < given; from *= 2) {
    // The same remainders of small divisors first, then any.
    for (const int64_t more : {given % 64, int64_t{0}, int64_t{1}, int64_t{3}, int64_t{5}}) {
      if (from + more < given && take([&](Plan& p) { p.model.vocab = from + more; })) return;
    }
  }
}

void Search::shrink_width() {
  const ModelPlan given = plan_.model;
  for (const int64_t head : below(given.hidden / given.heads, 4, 16)) {
    const int64_t hidden = given.heads * head;
    // An MLP of the same ratio, then of others.
    std::vector<int64_t> widths = {given.ffn == 0 ? 0 : given.ffn * hidden / given.hidden};
    if (given.ffn != 0) {
      for (const int64_t times : {1, 2, 3, 4}) widths.push_back(times * hidden);
      for (const int64_t width : below(std::min<int64_t>(given.ffn, 64), 1, 64)) {
        widths.push_back(width);
      }
    }
    for (const int64_t ffn : widths) {
      const auto narrow = [&](Plan& p) {
        p.model.hidden = hidden;
        p.model.ffn = ffn;
        p.model.embedding = given.embedding * hidden / given.hidden;
      };
      const bool has_widths = (given.ffn == 0 || ffn > 0) &&
                              (given.embedding == 0 || given.embedding * hidden >= given.hidden);
      if (has_widths && take(narrow)) return;
    }
  }
}

void Search::shrink_sequence() {
  const ModelPlan given = plan_.model;
  if (given.input() != ModelInput::kImages) {
    for (const int64_t n : below(given.sequence, least_sequence(), 64)) {
      if (take([n](Plan& p) { p.model.sequence = n; })) return;
    }
    return;
  }
  const int64_t side = given.image / given.patch;
  for (const int64_t patch : below(given.patch + 1, std::min<int64_t>(given.patch, 2), 4)) {
    for (const int64_t n : below(side + 1, std::min<int64_t>(side, 2), 32)) {
      const auto crop = [&](Plan& p) {
        p.model.patch = patch;
        p.model.image = n * patch;
        p.model.sequence = n * n + 1;
      };
      if (take(crop)) return;
    }
  }
}

/// By one factor: neither may pass the other where the way of the table depends on which is longer.
void Search::shrink_tokens_and_vocabulary() {
  const ModelPlan given = plan_.model;
  if (given.input() == ModelInput::kImages) return;
  for (int64_t part = 128; part > 1; part /= 2) {
    const int64_t vocab = given.vocab / part, sequence = given.sequence / part;
    if (vocab < least_vocabulary() || sequence < least_sequence()) continue;
    for (const int64_t more : {given.vocab % 64, int64_t{0}, int64_t{1}, int64_t{3}, int64_t{5}}) {
      const auto cut = [&](Plan& p) {
        p.model.vocab = vocab + more;
        p.model.sequence = sequence;
      };
      if (take(cut)) return;
    }
  }
}

void Search::shrink_batch() {
  const Plan given = plan_;
  const int64_t all = given.num_micro_batches(), ranks = given.parallel.pipeline.size;
  // As many micro-batches, or one or two more than ranks by turns.
  const int64_t fewer = all > 2 * ranks ? ranks + (all % ranks == 0 ? ranks : all % ranks) : all;
  for (const int64_t number : {fewer, all}) {
    for (const int64_t samples : below(given.train.micro_batch + 1, 1, 32)) {
      const auto cut = [&](Plan& p) {
        p.train.micro_batch = samples;
        p.train.batch = p.parallel.data.size * samples * number;
      };
      if (take(cut)) return;
    }
  }
}

/// A smaller vocabulary is no tokenizer's: bytes of the same text, where the plan has ids for them.
/// Bytes have no token that ends documents.
Plan without_tokenizer(Plan plan) {
  if (plan.data.tokenizer.empty()) return plan;
  const bool has_bytes =
      plan.model.vocab >= plan::text_tokens(plan.model) && !plan.data.document_mask;
  plan.data.tokenizer = plan.data.end_token = plan.data.hash = "";
  plan.data.kind = has_bytes ? "text" : "synthetic";
  if (!has_bytes) plan.data.path = "";
  return plan;
}

}  // namespace

Miniature miniature(const Plan& plan, const Registries& registries) {
  try {
    Search search(without_tokenizer(plan), registries);
    search.shrink_layers();
    // Twice: how a table comes to its tokens depends on both, so each bounds the other.
    for (int pass = 0; pass < 2; ++pass) {
      search.shrink_tokens_and_vocabulary();
      search.shrink_vocabulary();
      search.shrink_width();
      search.shrink_sequence();
      search.shrink_batch();
    }
    return {search.plan(), ""};
  } catch (const ConfigError& e) {
    return {std::nullopt, text("the plan cannot be scaled: ", e.what())};
  }
}

}  // namespace kuafu
