// SPDX-License-Identifier: Apache-2.0
#include "app/kuafu/cli.h"

namespace kuafu {

void add_perplexity_command(CLI::App& app, FrontCall& call) {
  PerplexityCall& perplexity = call.perplexity;
  CLI::App& sub = *app.add_subcommand("perplexity", "say how well a plan's model foretells a text");
  add_plan_options(sub, perplexity.worker);
  add_world_options(sub, perplexity.worker);
  sub.add_option("--file", perplexity.file, "the text")->required()->type_name("FILE");
  sub.add_option("--stride", perplexity.stride,
                 "tokens from one window of model.sequence to the next (default: model.sequence, "
                 "side by side)")
      ->check(any_number<int64_t>("whole number"))
      ->type_name("N");
  add_weights_options(sub, perplexity.worker);
  sub.add_option("--json", perplexity.worker.json, "write the document of docs/perplexity.md")
      ->type_name("FILE");
  sub.footer(R"(Examples:
  kuafu perplexity plan.toml --checkpoint saved --file held-out.txt
  kuafu perplexity plan.toml --checkpoint saved --file held-out.txt --stride 16 --json found.json
  kuafu perplexity opt-125m/plan.toml --init opt-125m --set data.tokenizer=opt-125m/tokenizer.json --file wikitext-2-raw/wiki.test.raw
  kuafu perplexity plan.toml --checkpoint saved --file held-out.txt --ranks 4 --set parallel.tensor.mode=2d --set parallel.tensor.size=4
  kuafu perplexity plan.toml --checkpoint saved --file held-out.txt --world mpi --ranks 2

exp of the mean of -log p over the tokens of the text, each from what stands before it in its window:
docs/perplexity.md. Text is tokens of data.tokenizer, bytes without one. Windows go forward train.batch at a
time, or the next number above that the plan's layouts take. Without weights they are those of train.seed.
SIGINT and SIGTERM end it after a batch of windows, a second one at once.
Exit codes: 0 done, 1 failed, 2 usage, 3 refused, 4 out of memory, 7 a document could not be written,
130 SIGINT, 143 SIGTERM)");
}

}  // namespace kuafu
