// SPDX-License-Identifier: Apache-2.0
#include <charconv>
#include <cstdint>
#include <system_error>

#include "app/kuafu/cli.h"

namespace kuafu {
namespace {

/// Of Philox: any number of 64 bits.
CLI::Validator seed() {
  return CLI::Validator(
      [](const std::string& given) {
        uint64_t value = 0;
        const char* const last = given.data() + given.size();
        const auto [end, error] = std::from_chars(given.data(), last, value);
        if (error == std::errc() && end == last) return std::string();
        return text(in_quotes(given), " is no whole number from 0 to ", UINT64_MAX);
      },
      "");
}

/// What numbers may be is told by the worker, beside what they do.
void add_sampling_options(CLI::App& app, GenerateCall& call) {
  app.add_option("--tokens", call.tokens,
                 "tokens to generate for each prompt, at most (default: up to model.sequence)")
      ->check(any_number<int64_t>("whole number"))
      ->type_name("N");
  app.add_option("--temperature", call.temperature,
                 "draw by softmax(logits / T); 0 (default): always the most likely token")
      ->check(any_number<double>("number"))
      ->type_name("T");
  app.add_option("--top-k", call.top_k, "draw from the K most likely tokens")
      ->check(any_number<int64_t>("whole number"))
      ->type_name("K");
  app.add_option("--top-p", call.top_p,
                 "draw from the most likely tokens that together have probability P")
      ->check(any_number<double>("number"))
      ->type_name("P");
  app.add_option("--seed", call.seed, "of what is drawn, from 0 to 2^64 - 1 (default 0)")
      ->check(seed())
      ->type_name("S");
  list_option(app, "--stop", call.stops, "end before this text; may be repeated")
      ->type_name("TEXT");
}

}  // namespace

void add_weights_options(CLI::App& app, WorkerCall& call) {
  app.add_option("--checkpoint", call.checkpoint,
                 "weights of a checkpoint, of a folder of several the newest")
      ->type_name("DIR");
  app.add_option("--init", call.init,
                 "weights of a folder of Hugging Face's transformers, a checkpoint, or a file of "
                 "`kuafu export`")
      ->type_name("WEIGHTS");
  app.add_option(
         "--weights", call.weights,
         "where weights lie between their uses, of a plan with tiers: host (default), or disk, "
         "in a file without a name in memory.disk_path")
      ->check(one_of({"host", "disk"}));
}

void add_generate_command(CLI::App& app, FrontCall& call) {
  GenerateCall& generate = call.generate;
  CLI::App& sub = *app.add_subcommand("generate", "go on with prompts by a plan's model");
  add_plan_options(sub, generate.worker);
  add_world_options(sub, generate.worker);
  sub.add_option("--prompt", generate.prompt, "the text to go on with")->type_name("TEXT");
  sub.add_option("--file", generate.file,
                 "prompts, one a line; texts may have line ends, so that --json alone tells where "
                 "each ends")
      ->type_name("FILE");
  sub.add_option(
         "--prompt-tokens", generate.prompt_tokens,
         "with --world simulated, instead of prompts: train.batch prompts of so many tokens; "
         "tells time by the plan's [cluster], and bytes")
      ->check(any_number<int64_t>("whole number"))
      ->type_name("N");
  add_weights_options(sub, generate.worker);
  add_sampling_options(sub, generate);
  sub.add_option(
         "--cache", generate.cache,
         "on (default): keep keys and values of earlier positions where the plan lets a "
         "token go forward alone; host: keep them on the host between their uses, of a plan "
         "with tiers; off: each token is a forward of the whole sequence")
      ->check(one_of({"on", "host", "off"}));
  sub.add_flag("--fit", generate.is_fitted,
               "as many prompts at a time as memory.device holds, instead of train.batch: weights "
               "that come from host or disk come once for all of them");
  sub.add_option("--json", generate.worker.json, "write the document of docs/generate.md")
      ->type_name("FILE");
  sub.footer(R"(Examples:
  kuafu generate plan.toml --checkpoint saved --prompt "Once upon a time" --tokens 50
  kuafu generate plan.toml --checkpoint saved --file prompts.txt --temperature 0.8 --top-p 0.95 --seed 7
  kuafu generate gpt2/plan.toml --init gpt2 --set data.tokenizer=gpt2/tokenizer.json --prompt "Hello" --stop "."
  kuafu generate plan.toml --checkpoint saved --prompt Hello --ranks 4 --set parallel.tensor.mode=2d --set parallel.tensor.size=4
  kuafu generate plan.toml --checkpoint saved --prompt Hello --world mpi --ranks 2 --json made.json
  kuafu generate plan.toml --checkpoint saved --prompt Hello --cache off    # what the cache is worth
  kuafu generate plan.toml --init opt --file prompts.txt --set memory.device=2GB --fit
  kuafu generate plan.toml --init opt --file prompts.txt --set memory.policy=static --set memory.device=2GB --fit --cache host
  kuafu generate plan.toml --init opt --file prompts.txt --set memory.policy=host --set memory.disk_path=. --weights disk
  kuafu generate opt-30b.toml --world simulated --prompt-tokens 512 --tokens 32 --set train.batch=144 --cache host

Text is tokens of data.tokenizer, bytes without one. A prompt ends at --tokens, at data.end_token, before a
--stop, or where model.sequence has no further position. What is drawn follows from seed, number of the prompt
and position: neither ranks, plan, cache nor the other prompts change it but by rounding. Prompts go forward
train.batch at a time, or the next number above that the plan's layouts take. Without weights they are those of
train.seed. A parallel.sequence and the scheme 1d-sp share the positions of a sequence among ranks: no cache.
SIGINT and SIGTERM end it after a token, a second one at once; a reader of the text that goes ends it quietly.
Exit codes: 0 generated, 1 failed, 2 usage, 3 refused, 4 out of memory, 7 a document could not be written,
130 SIGINT, 143 SIGTERM, 141 nobody reads the text any more)");
}

}  // namespace kuafu
