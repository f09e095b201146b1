// SPDX-License-Identifier: Apache-2.0
//
// `kuafu perplexity`: how well a model foretells a text.

#include <chrono>
#include <cmath>
#include <iostream>
#include <limits>
#include <numbers>

#include <CLI/CLI.hpp>

#include "app/worker/forward_command.h"
#include "app/worker/run_options.h"
#include "app/worker/stop_signals.h"
#include "kuafu/base/config.h"
#include "kuafu/base/launcher.h"
#include "kuafu/base/suggest.h"
#include "kuafu/base/units.h"
#include "kuafu/base/xxh64.h"
#include "kuafu/generation/causal.h"
#include "kuafu/generation/perplexity.h"

namespace kuafu {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kTellEvery = std::chrono::seconds(5);

class PerplexityRun final : public ForwardCommand {
 public:
  PerplexityRun(const WorkerOptions& options, const PerplexityOptions& how)
      : ForwardCommand(options, "foretells no token"), how_(how) {}

 private:
  void read() override { bytes_ = read_file(how_.file, "text"); }

  int64_t samples() const override { return std::numeric_limits<int64_t>::max(); }

  void take_text() override {
    const int64_t sequence = plan_.model.sequence;
    KUAFU_REQUIRE(sequence >= 2, "model.sequence = ", sequence,
                  ": a window has no token that another stands before; give 2 or more");
    stride_ = how_.stride.value_or(sequence);
    KUAFU_REQUIRE(stride_ >= 1 && stride_ <= sequence, "--stride ", stride_,
                  ": allowed: from 1 to model.sequence = ", sequence,
                  "; nearest: ", stride_ < 1 ? 1 : sequence);
    try {
      tokens_ = text_->tokens_of(bytes_);
    } catch (const ConfigError& e) {
      throw ConfigError(text(how_.file, ": ", e.what()));
    }
    KUAFU_REQUIRE(tokens_.size() >= 2, how_.file, ": it has ", tokens_.size(),
                  tokens_.size() == 1 ? " token" : " tokens",
                  ", and the first is foretold by none; give a longer text");
  }

  std::string given() const override { return hash_digits(Json(tokens_).dump()); }

  void forward(Engine& engine, Communicator& world) override {
    require_causal(engine, world);
    foretell_windows(engine, registries_, world.rank(), has_weights_on_disk());
    const auto began = Clock::now();
    auto told = began;
    const auto on_batch = [&](const Perplexity& so_far, int64_t windows) {
      if (Clock::now() - told > kTellEvery && so_far.windows < windows) {
        told = Clock::now();
        std::cerr << "kuafu: " << so_far.windows << " of " << windows << " windows, perplexity "
                  << so_far.value() << " so far" << std::endl;
      }
      return signal_to_stop();
    };
    const Perplexity found = perplexity_of(engine, world, tokens_, stride_, on_batch);
    const std::chrono::duration<double> took = Clock::now() - began;
    stopped_ = static_cast<int>(found.stopped);
    take_moves(engine, world);
    if (world.rank() != 0) return;
    if (std::isnan(found.nats)) {
      throw Error(text("the logits of a window are no numbers, in ", to_string(plan_.model.dtype),
                       plan_.model.dtype == DType::kF16 ? "; try --set model.dtype=f32" : ""));
    }
    tell(found, took.count());
  }

  void tell(const Perplexity& found, double seconds) const {
    // Of all tokens what those that are foretold have on average.
    const double tokens_of_byte =
        static_cast<double>(tokens_.size()) / static_cast<double>(bytes_.size());
    const double bits =
        found.nats / static_cast<double>(found.tokens) * tokens_of_byte / std::numbers::ln2;
    std::string why;
    if (found.stopped == 0) {
      std::cout << "perplexity " << found.value() << ", " << bits
                << " bits a byte: " << found.tokens << " tokens in " << found.windows
                << (found.windows == 1 ? " window" : " windows") << " of " << plan_.model.sequence
                << ", one every " << stride_ << ", in " << print_seconds(seconds) << std::endl;
    } else {
      why = text("stopped by ", name_of_signal(found.stopped), " after ", found.windows,
                 found.windows == 1 ? " window" : " windows", ", which are not the whole text");
      std::cerr << "kuafu: " << why << std::endl;
      tell_end_is_told();
    }
    write("perplexity",
          {{"value", std::isfinite(found.value()) ? Json(found.value()) : Json()},
           {"nats", std::isfinite(found.nats) ? Json(found.nats) : Json()},
           {"bits_per_byte", std::isfinite(bits) ? Json(bits) : Json()},
           {"tokens", found.tokens},
           {"text_tokens", tokens_.size()},
           {"text_bytes", bytes_.size()},
           {"text_hash", hash_digits(bytes_)},
           {"windows", found.windows},
           {"stride", stride_},
           {"batch", plan_.train.batch},
           {"seconds", seconds},
           {"tokens_per_s", static_cast<double>(found.tokens) / seconds}},
          why);
  }

  const PerplexityOptions& how_;
  std::string bytes_;
  std::vector<int64_t> tokens_;
  int64_t stride_ = 0;
};

}  // namespace

void add_perplexity_options(CLI::App& app, WorkerOptions& o, PerplexityOptions& how) {
  add_forward_options(app, o);
  app.add_option("--file", how.file)->required();
  app.add_option("--stride", how.stride);
}

int perplexity_command(const WorkerOptions& options, const PerplexityOptions& how) {
  tell_rank_began();
  KUAFU_REQUIRE(options.json_file != "-",
                "--json -: standard output has the result; name a file, such as found.json");
  return PerplexityRun(options, how)();
}

}  // namespace kuafu
