// SPDX-License-Identifier: Apache-2.0
//
// `kuafu embed`: a vector of each text by a BERT.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iostream>

#include <CLI/CLI.hpp>

#include "app/worker/forward_command.h"
#include "app/worker/run_options.h"
#include "app/worker/stop_signals.h"
#include "kuafu/base/config.h"
#include "kuafu/base/launcher.h"
#include "kuafu/base/suggest.h"
#include "kuafu/base/units.h"
#include "kuafu/base/xxh64.h"
#include "kuafu/generation/embedding.h"

namespace kuafu {
namespace {

using EmbedClock = std::chrono::steady_clock;
constexpr auto kTellProgressEvery = std::chrono::seconds(5);

class EmbedRun final : public ForwardCommand {
 public:
  EmbedRun(const WorkerOptions& options, const EmbedOptions& how)
      : ForwardCommand(options, "embeds nothing"), how_(how) {}

 private:
  void read() override {
    KUAFU_REQUIRE(!how_.cut || *how_.cut >= 1, "--cut ", *how_.cut,
                  ": allowed: a whole number from 1 on");
    given_ = given_texts(how_.text, "--text", how_.file, "text");
    what_.pooling = how_.pooling == "first" ? Pooling::kFirst : Pooling::kMean;
    what_.is_unit = how_.is_unit;
  }

  int64_t samples() const override { return std::ssize(given_); }

  Plan plan_of_forward(const Plan& plan) const override { return plan_of_embedding(plan); }

  void take_text() override {
    const int64_t most = plan_.model.sequence;
    for (const auto& [words, where] : given_) {
      try {
        std::vector<int64_t> ids = text_->tokens_of(words, how_.cut);
        KUAFU_REQUIRE(std::ssize(ids) <= most, "it has ", ids.size(),
                      " tokens, and model.sequence = ", most, " has positions for ", most,
                      "; give a shorter one, or --cut ", most);
        what_.texts.push_back(std::move(ids));
      } catch (const ConfigError& e) {
        throw ConfigError(text(where, ": ", e.what()));
      }
    }
  }

  std::string given() const override { return hash_digits(Json(what_.texts).dump()); }

  void forward(Engine& engine, Communicator& world) override {
    TextsToEmbed what = what_;
    int64_t longest = 1;
    for (const auto& tokens : what.texts) longest = std::max(longest, std::ssize(tokens));
    foretell_embedding(engine, registries_, world.rank(), has_weights_on_disk(), longest);
    const auto began = EmbedClock::now();
    auto told = began;
    what.on_batch = [&](size_t done) {
      if (EmbedClock::now() - told > kTellProgressEvery && done < what.texts.size()) {
        told = EmbedClock::now();
        std::cerr << "kuafu: " << done << " of " << what.texts.size() << " texts" << std::endl;
      }
      return signal_to_stop();
    };
    const Embedded made = embed(engine, world, what);
    const std::chrono::duration<double> took = EmbedClock::now() - began;
    stopped_ = static_cast<int>(made.stopped);
    take_moves(engine, world);
    if (world.rank() != 0) return;
    check_numbers(made);
    tell(made, took.count());
  }

  void check_numbers(const Embedded& made) const {
    for (size_t i = 0; i < made.vectors.size(); ++i) {
      const auto is_none = [](double x) { return !std::isfinite(x); };
      if (std::ranges::none_of(made.vectors[i], is_none)) continue;
      throw Error(text(given_[i].second, ": its vector is infinite or no number somewhere, in ",
                       to_string(plan_.model.dtype),
                       plan_.model.dtype == DType::kF16 ? "; try --set model.dtype=f32" : ""));
    }
  }

  void tell(const Embedded& made, double seconds) const {
    std::string why;
    Json all = Json::array();
    for (size_t i = 0; i < made.vectors.size(); ++i) {
      if (made.vectors[i].empty()) continue;
      if (made.stopped == 0) std::cout << Json(made.vectors[i]).dump() << "\n";
      all.push_back({{"text", given_[i].first},
                     {"tokens", what_.texts[i].size()},
                     {"vector", made.vectors[i]}});
    }
    if (made.stopped != 0) {
      why = text("stopped by ", name_of_signal(made.stopped), " after ", all.size(), " of ",
                 made.vectors.size(), " texts; no vector is printed");
      std::cerr << "kuafu: " << why << std::endl;
      tell_end_is_told();
    } else {
      std::cout.flush();
      std::cerr << "kuafu: " << all.size() << (all.size() == 1 ? " text" : " texts") << " in "
                << made.forwards << (made.forwards == 1 ? " forward" : " forwards") << ", "
                << print_seconds(seconds) << std::endl;
    }
    write("embedding",
          {{"pooling", how_.pooling},
           {"unit", how_.is_unit},
           {"cut", how_.cut ? Json(*how_.cut) : Json()},
           {"batch", plan_.train.batch},
           {"forwards", made.forwards},
           {"seconds", seconds},
           {"texts", all}},
          why);
  }

  const EmbedOptions& how_;
  GivenTexts given_;
  TextsToEmbed what_;
};

}  // namespace

void add_embed_options(CLI::App& app, WorkerOptions& o, EmbedOptions& how) {
  add_forward_options(app, o);
  app.add_option("--text", how.text);
  app.add_option("--file", how.file);
  app.add_option("--pooling", how.pooling)->check(CLI::IsMember({"mean", "first"}));
  app.add_option("--cut", how.cut);
  app.add_flag("--unit", how.is_unit);
}

int embed_command(const WorkerOptions& options, const EmbedOptions& how) {
  tell_rank_began();
  KUAFU_REQUIRE(options.json_file != "-",
                "--json -: standard output has the vectors; name a file, such as vectors.json");
  return EmbedRun(options, how)();
}

}  // namespace kuafu
