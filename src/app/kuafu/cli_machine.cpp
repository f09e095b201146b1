// SPDX-License-Identifier: Apache-2.0
#include "app/kuafu/cli.h"

namespace kuafu {

void add_machine_commands(CLI::App& app, FrontCall& call) {
  CLI::App& list = *app.add_subcommand(
      "list",
      "what there is: tensor and sequence modes, models, schedules, optimizers, memory policies, "
      "worlds, plan keys, suites, baselines");
  list.add_option("kind", call.list.kind, "one kind only")->type_name("KIND");
  list_option(list, "--plugin", call.list.plugins, "load a plugin; may be repeated")
      ->type_name("LIB.so");
  list.footer(
      "Examples:\n  kuafu list\n  kuafu list keys\n  kuafu list optimizers\n  kuafu list --plugin "
      "libmine.so");

  CLI::App& doctor =
      *app.add_subcommand("doctor", "what was found on this machine; what is off and why");
  doctor.add_flag("--provenance", call.doctor.tells_provenance,
                  "only the block of commit, program and machine that results carry, as JSON");
  doctor.footer("Examples:\n  kuafu doctor\n  kuafu doctor --provenance");
}

}  // namespace kuafu
