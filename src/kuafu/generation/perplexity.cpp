// SPDX-License-Identifier: Apache-2.0
#include "kuafu/generation/perplexity.h"

#include <algorithm>
#include <cmath>

#include "kuafu/base/errors.h"
#include "kuafu/generation/meta_rank.h"

namespace kuafu {

double Perplexity::value() const { return std::exp(nats / static_cast<double>(tokens)); }

std::vector<int64_t> window_starts(int64_t tokens, int64_t sequence, int64_t stride) {
  KUAFU_CHECK(tokens >= 2 && sequence >= 2 && stride >= 1 && stride <= sequence, tokens,
              " tokens, windows of ", sequence, " every ", stride);
  std::vector<int64_t> starts = {0};
  while (starts.back() + sequence < tokens) starts.push_back(starts.back() + stride);
  return starts;
}

Tokens window_batch(const std::vector<int64_t>& text, const std::vector<int64_t>& starts,
                    size_t first, int64_t count, int64_t sequence) {
  const auto size = static_cast<size_t>(count * sequence);
  Tokens batch{.inputs = std::vector<int64_t>(size, 0),
               .targets = std::vector<int64_t>(size, -1),
               .samples = count,
               .sequence = sequence};
  const auto end = std::min(first + static_cast<size_t>(count), starts.size());
  for (size_t w = first; w < end; ++w) {
    const int64_t begin = starts[w], at = static_cast<int64_t>(w - first) * sequence;
    const int64_t last = std::min(begin + sequence, std::ssize(text));
    const int64_t foretold = w == 0 ? 0 : std::min(starts[w - 1] + sequence, std::ssize(text));
    for (int64_t i = begin; i < last; ++i) {
      const auto place = static_cast<size_t>(at + i - begin);
      batch.inputs[place] = text[static_cast<size_t>(i)];
      const bool is_target = i + 1 < last && i + 1 >= foretold;
      if (is_target) batch.targets[place] = text[static_cast<size_t>(i + 1)];
    }
  }
  return batch;
}

Perplexity perplexity_of(
    Engine& engine, Communicator& world, const std::vector<int64_t>& text, int64_t stride,
    const std::function<int64_t(const Perplexity& so_far, int64_t windows)>& on_batch) {
  const int64_t batch = engine.plan().train.batch, sequence = engine.plan().model.sequence;
  const std::optional<int64_t> end_token = end_of_documents(engine.plan().data);
  const std::vector<int64_t> starts = window_starts(std::ssize(text), sequence, stride);
  Perplexity all;
  while (all.windows < std::ssize(starts) && all.stopped == 0) {
    Tokens windows = window_batch(text, starts, static_cast<size_t>(all.windows), batch, sequence);
    windows.end_token = end_token;
    all.nats += engine.surprisal(windows);
    all.tokens += std::ssize(windows.targets) - std::ranges::count(windows.targets, -1);
    all.windows = std::min(all.windows + batch, static_cast<int64_t>(std::ssize(starts)));
    if (all.windows == std::ssize(starts)) break;
    if (on_batch && world.rank() == 0) all.stopped = on_batch(all, std::ssize(starts));
    world.broadcast({&all.stopped, 1, DType::kI64}, 0).wait_host();
  }
  return all;
}

void foretell_windows(Engine& engine, const Registries& registries, int rank,
                      bool has_parameters_on_disk) {
  foretell_alike(engine, registries, rank, has_parameters_on_disk, [](Engine& of_meta) {
    const int64_t batch = of_meta.plan().train.batch, sequence = of_meta.plan().model.sequence;
    Tokens windows = window_batch({0, 0}, {0}, 0, batch, sequence);
    windows.end_token = end_of_documents(of_meta.plan().data);
    of_meta.surprisal(windows);
    return of_meta.seen_in_use();
  });
}

}  // namespace kuafu
