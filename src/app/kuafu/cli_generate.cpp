// SPDX-License-Identifier: Apache-2.0
#include "app/kuafu/cli.h"

namespace kuafu {
namespace {

/// A number written out to its end.
template <class Number>
CLI::Validator number(const char* kind) {
  return CLI::Validator(
      [kind](const std::string& given) {
        std::istringstream in(given);
        Number value{};
        return (in >> value) && in.eof() ? std::string() : text(in_quotes(given), " is no ", kind);
      },
      "");
}

/// What numbers may be is told by the worker, beside what they do.
void add_sampling_options(CLI::App& app, GenerateCall& call) {
  app.add_option("--tokens", call.tokens,
                 "tokens to generate for each prompt, at most (default: up to model.sequence)")
      ->check(number<int64_t>("whole number"))
      ->type_name("N");
  app.add_option("--temperature", call.temperature,
                 "draw by softmax(logits / T); 0 (default): always the most likely token")
      ->check(number<double>("number"))
      ->type_name("T");
  app.add_option("--top-k", call.top_k, "draw from the K most likely tokens")
      ->check(number<int64_t>("whole number"))
      ->type_name("K");
  app.add_option("--top-p", call.top_p,
                 "draw from the most likely tokens that together have probability P")
      ->check(number<double>("number"))
      ->type_name("P");
  app.add_option("--seed", call.seed, "of what is drawn (default 0)")
      ->check(count_from_zero())
      ->type_name("S");
  list_option(app, "--stop", call.stops, "end before this text; may be repeated")
      ->type_name("TEXT");
}

}  // namespace

void add_generate_command(CLI::App& app, FrontCall& call) {
  GenerateCall& generate = call.generate;
  CLI::App& sub = *app.add_subcommand("generate", "go on with prompts by a plan's model");
  add_plan_options(sub, generate.worker);
  add_world_options(sub, generate.worker);
  list_option(sub, "--prompt", generate.prompts, "the text to go on with")->type_name("TEXT");
  sub.add_option("--file", generate.file, "prompts, one a line")->type_name("FILE");
  sub.add_option("--checkpoint", generate.worker.checkpoint,
                 "weights of a checkpoint, of a folder of several the newest")
      ->type_name("DIR");
  sub.add_option("--init", generate.worker.init,
                 "weights of a folder of Hugging Face's transformers, a checkpoint, or a file of "
                 "`kuafu export`")
      ->type_name("WEIGHTS");
  add_sampling_options(sub, generate);
  sub.add_option("--json", generate.worker.json, "write the document of docs/generate.md")
      ->type_name("FILE");
  sub.footer(R"(Examples:
  kuafu generate plan.toml --checkpoint saved --prompt "Once upon a time" --tokens 50
  kuafu generate plan.toml --checkpoint saved --file prompts.txt --temperature 0.8 --top-p 0.95 --seed 7
  kuafu generate gpt2/plan.toml --init gpt2 --set data.tokenizer=gpt2/tokenizer.json --prompt "Hello" --stop "."
  kuafu generate plan.toml --checkpoint saved --prompt Hello --ranks 4 --set parallel.tensor.mode=2d --set parallel.tensor.size=4
  kuafu generate plan.toml --checkpoint saved --prompt Hello --world mpi --ranks 2 --json made.json

Text is tokens of data.tokenizer, bytes without one. A prompt ends at --tokens, at data.end_token, before a
--stop, or where model.sequence has no further position. What is drawn follows from seed, number of the prompt
and position: neither ranks, plan nor the other prompts change it but by rounding. The most prompts at a time
are train.batch. Without weights they are those of train.seed.
Exit codes: 0 generated, 1 failed, 2 usage, 3 refused, 4 out of memory, 7 a document could not be written)");
}

}  // namespace kuafu
