// SPDX-License-Identifier: Apache-2.0
#include "app/kuafu/cli.h"

namespace kuafu {

void add_embed_command(CLI::App& app, FrontCall& call) {
  EmbedCall& embed = call.embed;
  CLI::App& sub = *app.add_subcommand("embed", "make a vector of each text by a BERT");
  add_plan_options(sub, embed.worker);
  add_world_options(sub, embed.worker);
  sub.add_option("--text", embed.text, "the text")->type_name("TEXT");
  sub.add_option("--file", embed.file, "texts, one a line, instead of --text")->type_name("FILE");
  sub.add_option(
         "--pooling", embed.pooling,
         "which last hidden states make the vector: mean (default), of all tokens, or first")
      ->check(one_of({"mean", "first"}));
  sub.add_flag("--unit", embed.is_unit, "scale each vector to a length of 1");
  sub.add_option("--cut", embed.cut,
                 "tokens of a text at most, special ones counted; longer ones lose their end "
                 "(default: such a text is an error)")
      ->check(any_number<int64_t>("whole number"))
      ->type_name("N");
  add_weights_options(sub, embed.worker);
  sub.add_option("--json", embed.worker.json, "write the document of docs/embed.md")
      ->type_name("FILE");
  sub.footer(R"(Examples:
  kuafu import all-MiniLM-L6-v2 --format hf --plan-only --out minilm
  kuafu embed minilm/plan.toml --init all-MiniLM-L6-v2 --set data.tokenizer=all-MiniLM-L6-v2/tokenizer.json --unit --text "A text."
  kuafu embed minilm/plan.toml --init all-MiniLM-L6-v2 --set data.tokenizer=all-MiniLM-L6-v2/tokenizer.json --unit --cut 256 --file texts.txt > vectors.jsonl
  kuafu embed plan.toml --checkpoint saved --file texts.txt --pooling first --ranks 4 --set parallel.tensor.mode=2d --set parallel.tensor.size=4

Standard output has one line a text, in their order: a JSON array of model.hidden numbers. Texts of one length go
forward together, train.batch at a time, or the next number above that the plan's layouts take. Without weights
they are those of train.seed. SIGINT and SIGTERM end it after a batch, a second one at once.
Exit codes: 0 done, 1 failed, 2 usage, 3 refused, 4 out of memory, 7 a document could not be written,
130 SIGINT, 143 SIGTERM)");
}

}  // namespace kuafu
