// SPDX-License-Identifier: Apache-2.0
#include "app/kuafu/cli.h"

namespace kuafu {

void add_tokenize_command(CLI::App& app, FrontCall& call) {
  TokenizeCall& tokenize = call.tokenize;
  CLI::App& sub = *app.add_subcommand(
      "tokenize", "ids of text by a Hugging Face tokenizer.json, or the text of ids");
  sub.add_option("tokenizer", tokenize.tokenizer, "a tokenizer.json")
      ->required()
      ->type_name("TOKENIZER.json");
  sub.add_option("file", tokenize.files, "text, line by line (default: the standard input)")
      ->type_name("FILE");
  sub.add_flag("--decode", tokenize.is_decoded, "lines of ids become lines of text");
  sub.add_flag("--special", tokenize.has_special,
               "put the special tokens around each text; with --decode, tell those that are there");
  CLI::Option* whole =
      sub.add_flag("--whole", tokenize.is_whole, "a file is one text, its line ends included");
  sub.add_flag("--json", tokenize.is_json,
               "a line is JSON: a string, or a list of ids; so that a text may have line ends");
  sub.get_option("--decode")->excludes(whole);
  sub.footer(R"(Examples:
  kuafu tokenize tokenizer.json corpus.txt
  kuafu tokenize tokenizer.json corpus.txt --special > ids.txt
  kuafu tokenize tokenizer.json ids.txt --decode
  echo '"two\nlines"' | kuafu tokenize tokenizer.json --json
  echo '[464, 3290]' | kuafu tokenize tokenizer.json --json --decode
  kuafu tokenize tokenizer.json README.md --whole --json

Ids and texts are those of the `tokenizers` package, but that truncation and padding are passed over; which parts a file may have: src/kuafu/tokenizer/README.md.
An error names file and line, and nothing is printed.
Exit codes: 0 printed, 2 a tokenizer that cannot be read, text that is no UTF-8, an id that is no token,
7 the standard output could not be written whole)");
}

}  // namespace kuafu
