// SPDX-License-Identifier: Apache-2.0
//
// `kuafu generate`: prompts, and what follows them.

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <map>

#include "app/worker/forward_command.h"
#include "app/worker/generate_options.h"
#include "app/worker/generated_text.h"
#include "app/worker/run_options.h"
#include "app/worker/stop_signals.h"
#include "kuafu/base/launcher.h"
#include "kuafu/base/philox.h"
#include "kuafu/base/suggest.h"
#include "kuafu/base/units.h"
#include "kuafu/base/xxh64.h"
#include "kuafu/generation/causal.h"
#include "kuafu/generation/foretold.h"
#include "kuafu/record/files.h"

namespace kuafu {
namespace {

/// Why all ends where the text cannot be written, as a signal.
constexpr int64_t kNoRoom = SIGXFSZ;

/// Whether it is a pipe whose reader is gone.
bool is_unread(int descriptor) {
  pollfd asked{.fd = descriptor, .events = POLLOUT, .revents = 0};
  return ::poll(&asked, 1, 0) == 1 && (asked.revents & POLLERR) != 0;
}

class GenerateRun final : public ForwardCommand {
 public:
  GenerateRun(const WorkerOptions& options, const GenerateOptions& how)
      : ForwardCommand(options, "generates no tokens"), how_(how) {}

 private:
  void read() override {
    sampling_ = sampling_of(how_);
    if (!is_simulated()) {
      KUAFU_REQUIRE(!how_.prompt_tokens,
                    "--prompt-tokens is of --world simulated; give --prompt TEXT, ",
                    "or --file FILE with one a line");
      given_ = given_texts(how_.prompt, "--prompt", how_.file, "prompt");
      return;
    }
    KUAFU_REQUIRE(how_.prompt_tokens && !how_.prompt && how_.file.empty(),
                  "--world simulated reads ",
                  "no text; give --prompt-tokens N, of each of train.batch prompts, and neither ",
                  "--prompt nor --file");
    const char* idle = how_.temperature      ? "--temperature"
                       : !how_.stops.empty() ? "--stop"
                                             : nullptr;
    KUAFU_REQUIRE(idle == nullptr, idle, " has no effect with --world simulated, which chooses no ",
                  "tokens; leave it out");
  }

  int64_t samples() const override { return is_simulated() ? own_batch() : std::ssize(given_); }

  void take_text() override {
    KUAFU_REQUIRE(how_.cache != "host" || plan_.memory.has_tiers(),
                  "--cache host keeps keys and values on the host, and the plan has no tiers of "
                  "memory (memory.policy = \"plain\"); set memory.policy, or leave --cache out");
    if (is_simulated()) {
      const int64_t most = plan_.model.sequence - 1;
      KUAFU_REQUIRE(*how_.prompt_tokens >= 1 && *how_.prompt_tokens <= most, "--prompt-tokens ",
                    *how_.prompt_tokens, ": allowed: 1 to ", most, ", which leaves one of ",
                    "model.sequence for a token");
    }
    for (const auto& [words, where] : given_) {
      try {
        prompts_.push_back({words, text_->encode(words)});
      } catch (const ConfigError& e) {
        throw ConfigError(text(where, ": ", e.what()));
      }
    }
  }

  bool is_fitted() const override { return how_.is_fitted; }

  void require_fits(const Plan& plan) const override {
    kuafu::require_fits(plan, registries_, batch_size());
  }

  BatchSize batch_size() const {
    BatchSize size{.longest = how_.prompt_tokens.value_or(1),
                   .tokens = how_.tokens.value_or(0),
                   .cache = cache(),
                   .has_weights_on_disk = has_weights_on_disk()};
    for (const Prompt& prompt : prompts_) {
      size.longest = std::max(size.longest, std::ssize(prompt.tokens));
    }
    return size;
  }

  Cache cache() const {
    return how_.cache == "off"    ? Cache::kOff
           : how_.cache == "host" ? Cache::kHost
                                  : Cache::kWherePossible;
  }

  Generation generation() const {
    Generation what{.tokens = how_.tokens.value_or(0),
                    .choices = text_->size(),
                    .sampling = sampling_,
                    .cache = cache()};
    for (const Prompt& prompt : prompts_) what.prompts.push_back(prompt.tokens);
    return what;
  }

  bool is_foretold() const override { return true; }

  void foretell() override {
    tell_fit();
    BatchSize size = batch_size();
    if (size.tokens == 0) size.tokens = plan_.model.sequence - size.longest;
    const ForetoldGeneration made = foretell_generation(plan_, registries_, size);
    tell_cache(made.why_no_cache);
    const int64_t prompts = std::min(own_batch(), plan_.train.batch);  // others fill the batch up
    const int64_t tokens = prompts * made.forwards;
    const double rate = static_cast<double>(tokens) / made.seconds;
    std::cout << "simulated: " << prompts << (prompts == 1 ? " prompt of " : " prompts of ")
              << size.longest << " tokens, " << made.forwards << " tokens of each\n"
              << "  first token     " << print_seconds(made.prompts_s) << "\n"
              << "  each token      "
              << (made.forwards > 1 ? print_seconds(made.token_s()) : "none behind the first")
              << "\n"
              << "  throughput      " << rate << " tokens/s\n"
              << "  peak memory     " << print_bytes(most(made.peak)) << " on the device";
    if (!made.host_peak.empty()) {
      std::cout << ", " << print_bytes(most(made.host_peak))
                << " on the host, of the fullest rank\n"
                << "  to the device   " << print_bytes(most(made.to_device)) << " of weights";
      moves_ = {{"to_device_bytes", made.to_device}};
    }
    if (!made.from_disk.empty()) {
      std::cout << ", " << print_bytes(most(made.from_disk)) << " of them read from the disk";
      moves_["from_disk_bytes"] = made.from_disk;
    }
    if (!made.cache_to_device.empty()) {
      std::cout << ", " << print_bytes(most(made.cache_to_device)) << " of keys and values";
      moves_["cache_to_device_bytes"] = made.cache_to_device;
      moves_["cache_to_host_bytes"] = made.cache_to_host;
    }
    std::cout << std::endl;
    write("generation", {{"batch", plan_.train.batch},
                         {"cache", cache_},
                         {"cache_bytes", made.cache_bytes},
                         {"prompt_tokens", size.longest},
                         {"tokens", tokens},
                         {"seconds", made.seconds},
                         {"tokens_per_s", rate},
                         {"first_token_s", made.prompts_s},
                         {"token_s", made.token_s()},
                         {"peak_bytes", made.peak},
                         {"host_peak_bytes", made.host_peak}});
  }

  static int64_t most(const std::vector<int64_t>& of) {
    return of.empty() ? 0 : *std::max_element(of.begin(), of.end());
  }

  std::string given() const override { return hash_digits(Json(generation().prompts).dump()); }

  void forward(Engine& engine, Communicator& world) override {
    require_causal(engine, world);
    const int64_t tried = engine.loaded().value_or(0), tried_disk = engine.moves().disk.read;
    Generation what = generation();
    std::optional<GeneratedText> text;
    if (world.rank() == 0) {
      tell_fit();
      tell_cache(engine.why_no_cache());
      text.emplace(std::cout, *text_, prompts_, how_.stops);
      what.on_token = [&](size_t p, int64_t token) { return text->on_token(p, token); };
      what.on_end = [&](size_t p, const Continuation& done) { text->on_end(p, done); };
      what.why_stop = [] {
        return std::cout ? signal_to_stop() : is_unread(STDOUT_FILENO) ? SIGPIPE : kNoRoom;
      };
    }
    foretell_forwards(engine, registries_, world.rank(), batch_size());
    const auto began = std::chrono::steady_clock::now();
    const Generated made = generate(engine, world, what);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
    if (made.stopped == kNoRoom) throw Unwritten("cannot write all of the standard output");
    stopped_ = static_cast<int>(made.stopped);
    if (const auto loaded = engine.loaded()) take_moves("to_device_bytes", *loaded - tried, world);
    if (has_weights_on_disk())
      take_moves("from_disk_bytes", engine.moves().disk.read - tried_disk, world);
    if (how_.cache == "host") {
      const auto [to_device, to_host] = engine.cache_moves();
      take_moves("cache_to_device_bytes", to_device, world);
      take_moves("cache_to_host_bytes", to_host, world);
    }
    if (!text) return;
    if (made.stopped != 0) text->stop();
    tell(*text, made, took.count());
  }

  void tell_fit() const {
    if (!how_.is_fitted) return;
    std::string hold = " holds";
    if (plan_.memory.has_tiers() && plan_.memory.host.has_value())
      hold = text(" and memory.host = ", print_bytes(*plan_.memory.host), " hold");
    std::cerr << "kuafu: --fit: batches of " << plan_.train.batch << " for " << samples()
              << " prompts, the largest that memory.device = " << print_bytes(*plan_.memory.device)
              << hold << std::endl;
  }

  void tell_cache(const std::string& why_none) {
    cache_ = how_.cache == "off" || why_none.empty() ? how_.cache : why_none;
    if (why_none.empty() || cache_ == "off") return;
    std::cerr << "kuafu: no cache of keys and values: " << why_none
              << "; each token is a forward of the whole sequence" << std::endl;
  }

  void tell(const GeneratedText& text, const Generated& made, double seconds) const {
    const bool is_stopped = made.stopped != 0;
    const std::string why = is_stopped ? words_of_stop(made) : "";
    const double rate = static_cast<double>(made.num_tokens()) / seconds;
    if (!is_stopped) {
      tell_rate(made, seconds, rate);
    } else {
      if (made.stopped != SIGPIPE) std::cerr << "kuafu: " << why << std::endl;
      tell_end_is_told();
    }
    write("generation",
          {{"batch", plan_.train.batch},
           {"cache", cache_},
           {"cache_bytes", made.cache_bytes},
           {"tokens", made.num_tokens()},
           {"seconds", seconds},
           {"tokens_per_s", rate},
           {"first_token_s", made.all[0].first_s},
           {"temperature", sampling_.temperature},
           {"top_k", how_.top_k ? Json(*how_.top_k) : Json()},
           {"top_p", sampling_.top_p},
           {"seed", sampling_.seed},
           {"prompts", text.document(made.all)}},
          why);
  }

  static std::string words_of_stop(const Generated& made) {
    const int64_t tokens = made.num_tokens();
    const std::string who = made.stopped == SIGPIPE
                                ? "nobody reads the text any more"
                                : text("stopped by ", name_of_signal(made.stopped));
    return text(who, "; ", tokens, tokens == 1 ? " token was made" : " tokens were made");
  }

  static void tell_rate(const Generated& made, double seconds, double rate) {
    std::map<std::string, int64_t> endings;
    for (const Continuation& c : made.all) ++endings[std::string(name_of(c.ending))];
    std::vector<std::string> ended;
    for (const auto& [name, count] : endings) {
      ended.push_back(made.all.size() == 1 ? name : text(name, " (", count, ")"));
    }
    std::cerr << "kuafu: " << made.num_tokens() << " tokens in " << print_seconds(seconds) << ", "
              << rate << " tokens/s, the first after " << print_seconds(made.all[0].first_s)
              << "; ended by " << join(ended) << std::endl;
  }

  const GenerateOptions& how_;
  Sampling sampling_;
  GivenTexts given_;
  std::vector<Prompt> prompts_;
  std::string cache_;  ///< "on", "off", or why there is none
};

}  // namespace

int generate_command(const WorkerOptions& options, const GenerateOptions& how) {
  tell_rank_began();
  KUAFU_REQUIRE(options.json_file != "-",
                "--json -: standard output has the text; name a file, such as made.json");
  return GenerateRun(options, how)();
}

}  // namespace kuafu
