// SPDX-License-Identifier: Apache-2.0
#include "app/kuafu/cli.h"

namespace kuafu {
namespace {

/// There is one format; who names it is understood.
void add_format(CLI::App& app) {
  app.add_option_function<std::string>(
         "--format", [](const std::string&) {}, "of the file (default and only: safetensors)")
      ->check(one_of({"safetensors"}))
      ->type_name("FORMAT");
}

}  // namespace

void add_weights_commands(CLI::App& app, FrontCall& call) {
  CLI::App& out = *app.add_subcommand(
      "export", "write a checkpoint's weights as one plain safetensors file of whole tensors");
  out.add_option("checkpoint", call.exported.checkpoint,
                 "folder of a checkpoint, or of several: the newest is taken")
      ->required()
      ->type_name("CHECKPOINT");
  out.add_option("--out", call.exported.out, "file to write; FILE.json beside it describes it")
      ->required()
      ->type_name("FILE.safetensors");
  add_format(out);
  out.footer(R"(Examples:
  kuafu export saved --out weights.safetensors
  kuafu export saved --format safetensors --out weights.safetensors
  kuafu export saved/step-00000100 --out weights.safetensors
  kuafu export saved/best --out weights.safetensors

A file that is there is not replaced. Tensors pass one at a time. Names, types and metadata: docs/checkpoint.md.
Of a checkpoint the weights alone are read, and held to their checksums; a run that goes on reads all of it.
Exit codes: 0 written, 2 no complete checkpoint, damaged weights, or a file that is there or may not be written,
7 a full disk)");

  CLI::App& in = *app.add_subcommand(
      "import", "make a plain file of weights a checkpoint that a run of any plan can begin from");
  in.add_option("file", call.imported.file, "what `kuafu export` wrote, or another of its form")
      ->required()
      ->type_name("FILE.safetensors");
  in.add_option("--out", call.imported.out, "folder of checkpoints; must hold none yet")
      ->required()
      ->type_name("DIR");
  add_format(in);
  list_option(in, "--plugin", call.imported.plugins, "load a plugin; may be repeated")
      ->type_name("LIB.so");
  in.footer(R"(Examples:
  kuafu import weights.safetensors --out begun
  kuafu run plan.toml --checkpoint begun --resume

The plan must have the model that the file names; its optimizer begins anew at step 0.
Exit codes: 0 written, 2 a file that is damaged, lacks, adds or misshapes a tensor, or holds an element that
is infinite or no number, 7 a full disk)");
}

}  // namespace kuafu
