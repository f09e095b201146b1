// SPDX-License-Identifier: Apache-2.0
#include "kuafu/generation/embedding.h"

#include <algorithm>
#include <map>

#include <ATen/ATen.h>

#include "kuafu/base/errors.h"
#include "kuafu/base/suggest.h"
#include "kuafu/generation/meta_rank.h"

namespace kuafu {
namespace {

/// Texts that go forward together: places in TextsToEmbed::texts, all of one length.
std::vector<std::vector<size_t>> batches_of(const TextsToEmbed& what, int64_t samples) {
  std::map<size_t, std::vector<size_t>> by_length;
  for (size_t i = 0; i < what.texts.size(); ++i) by_length[what.texts[i].size()].push_back(i);
  std::vector<std::vector<size_t>> all;
  for (const auto& [length, places] : by_length) {
    for (size_t i = 0; i < places.size(); ++i) {
      if (i % static_cast<size_t>(samples) == 0) all.emplace_back();
      all.back().push_back(places[i]);
    }
  }
  return all;
}

/// hidden (S, H) of one text -> its vector.
std::vector<double> pooled(const Tensor& hidden, const TextsToEmbed& what) {
  const Tensor wide = hidden.to(at::kDouble);
  Tensor v = what.pooling == Pooling::kFirst ? wide[0] : wide.mean(0);
  if (what.is_unit) v = v / v.norm().clamp_min(1e-12);
  v = v.contiguous();
  return {v.const_data_ptr<double>(), v.const_data_ptr<double>() + v.numel()};
}

}  // namespace

Plan plan_of_embedding(Plan plan) {
  KUAFU_REQUIRE(plan.model.kind == model_kinds::kBert, "model.kind = ", in_quotes(plan.model.kind),
                " embeds no text, which takes a model whose tokens see each other; allowed: ",
                in_quotes(model_kinds::kBert));
  plan.model.dropout = 0;
  plan.train.telemetry = false;
  plan.optimizer = {.kind = optimizer_kinds::kSgd, .momentum = 0};
  return plan;
}

Embedded embed(Engine& engine, Communicator& world, const TextsToEmbed& what) {
  const int64_t samples = engine.plan().train.batch, most = engine.plan().model.sequence;
  const std::string why_no_shorter = engine.why_no_shorter();
  for (const auto& text_of : what.texts) {
    KUAFU_REQUIRE(std::ssize(text_of) == most || why_no_shorter.empty(), why_no_shorter,
                  ", so that each has model.sequence = ", most, " tokens, and a text has ",
                  text_of.size(), "; nearest: ",
                  engine.plan().parallel.sequence.mode == sequence_modes::kNone
                      ? "parallel.tensor.mode = \"1d\""
                      : "parallel.sequence.mode = \"none\"");
  }
  Embedded made;
  if (world.rank() == 0) made.vectors.resize(what.texts.size());
  size_t done = 0;
  for (const std::vector<size_t>& places : batches_of(what, samples)) {
    const auto length = std::ssize(what.texts[places[0]]);
    Tokens batch{.inputs = {}, .targets = {}, .samples = samples, .sequence = length};
    for (int64_t b = 0; b < samples; ++b) {  // behind the last text its like, which nobody looks at
      const auto& row = what.texts[places[std::min(static_cast<size_t>(b), places.size() - 1)]];
      batch.inputs.insert(batch.inputs.end(), row.begin(), row.end());
    }
    const Tensor hidden = engine.last_input(batch);
    ++made.forwards;
    done += places.size();
    for (size_t b = 0; b < places.size() && hidden.defined(); ++b) {
      made.vectors[places[b]] = pooled(hidden[static_cast<int64_t>(b)], what);
    }
    if (what.on_batch && world.rank() == 0) made.stopped = what.on_batch(done);
    world.broadcast({&made.stopped, 1, DType::kI64}, 0).wait_host();
    if (made.stopped != 0) break;
  }
  return made;
}

void foretell_embedding(Engine& engine, const Registries& registries, int rank,
                        bool has_parameters_on_disk, int64_t longest) {
  const bool is_whole = longest == engine.plan().model.sequence;
  if (!is_whole && !engine.why_no_shorter().empty()) return;  // embed() refuses such texts
  foretell_alike(engine, registries, rank, has_parameters_on_disk, [&](Engine& of_meta) {
    const int64_t samples = of_meta.plan().train.batch;
    of_meta.last_input({.inputs = std::vector<int64_t>(static_cast<size_t>(samples * longest)),
                        .targets = {},
                        .samples = samples,
                        .sequence = longest});
    return of_meta.seen_in_use();
  });
}

}  // namespace kuafu
