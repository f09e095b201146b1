// SPDX-License-Identifier: Apache-2.0
#include "app/kuafu/cli.h"

namespace kuafu {
namespace {

void add_format(CLI::App& app, std::string& format) {
  app.add_option(
         "--format", format,
         "safetensors (the default): one file of Kuafu's tensors; hf: a folder of Hugging Face's "
         "transformers")
      ->check(one_of({"safetensors", "hf"}))
      ->type_name("FORMAT");
}

}  // namespace

void add_weights_commands(CLI::App& app, FrontCall& call) {
  CLI::App& out = *app.add_subcommand(
      "export",
      "write a checkpoint's weights as one plain safetensors file of whole tensors, or as a "
      "folder of transformers");
  out.add_option("checkpoint", call.exported.checkpoint,
                 "folder of a checkpoint, or of several: the newest is taken")
      ->required()
      ->type_name("CHECKPOINT");
  out.add_option("--out", call.exported.out,
                 "file to write, FILE.json beside it describes it; of hf the folder")
      ->required()
      ->type_name("OUT");
  add_format(out, call.exported.format);
  out.add_option("--shard", call.exported.shard_bytes,
                 "hf: bytes of one file at most, an index beside several (default 5 GiB)")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::PositiveNumber)
      ->type_name("SIZE");
  out.footer(R"(Examples:
  kuafu export saved --out weights.safetensors
  kuafu export saved --format safetensors --out weights.safetensors
  kuafu export saved/step-00000100 --out weights.safetensors
  kuafu export saved/best --out weights.safetensors
  kuafu export saved --format hf --out opt-mine        # AutoModel.from_pretrained("opt-mine")

A file that is there is not replaced. Tensors pass one at a time. Names, types and metadata: docs/checkpoint.md.
Of a checkpoint the weights alone are read, and held to their checksums; a run that goes on reads all of it.
Exit codes: 0 written, 2 no complete checkpoint, damaged weights, or a file that is there or may not be written,
7 a full disk)");

  CLI::App& in = *app.add_subcommand("import",
                                     "make weights a checkpoint that a run of any plan can begin "
                                     "from: a plain file, or a folder of transformers");
  in.add_option(
        "file", call.imported.file,
        "what `kuafu export` wrote, or another of its form; of hf a folder with config.json and "
        "model.safetensors")
      ->required()
      ->type_name("WEIGHTS");
  in.add_option("--out", call.imported.out, "folder of checkpoints; must hold none yet")
      ->required()
      ->type_name("DIR");
  add_format(in, call.imported.format);
  in.add_flag("--plan-only", call.imported.is_plan_only,
              "write DIR/plan.toml alone, for commands that take the weights by --init");
  list_option(in, "--plugin", call.imported.plugins, "load a plugin; may be repeated")
      ->type_name("LIB.so");
  in.footer(R"(Examples:
  kuafu import weights.safetensors --out begun
  kuafu run plan.toml --checkpoint begun --resume
  kuafu import opt-125m --format hf --out begun
  kuafu run begun/plan.toml --checkpoint begun --resume --set data.tokenizer=opt-125m/tokenizer.json --set data.path=text
  kuafu import opt-6.7b --format hf --plan-only --out opt
  kuafu run opt/plan.toml --init opt-6.7b --set data.tokenizer=opt-6.7b/tokenizer.json --set data.path=text

The plan must have the model that the file names; its optimizer begins anew at step 0.
Exit codes: 0 written, 2 a file that is damaged, lacks, adds or misshapes a tensor, or holds an element that
is infinite or no number, 7 a full disk)");
}

}  // namespace kuafu
