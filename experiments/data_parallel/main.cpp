// SPDX-License-Identifier: Apache-2.0
//
// The measurements of experiments/data_parallel; run.py drives it. Prints one JSON document.

#include <CLI/CLI.hpp>
#include <iostream>

#include "experiments/data_parallel/data_parallel.h"
#include "kuafu/meter/allocator.h"
#include "kuafu/record/provenance.h"
#include "kuafu/tensor/tensor.h"

namespace kuafu::experiment {
namespace {

int main_with(int argc, char** argv) {
  CLI::App app("How replicas agree: bytes, messages and time");
  app.require_subcommand(1);
  SumsOptions sums;
  CLI::App* sum = app.add_subcommand("sums", "replicas that agree on one parameter");
  sum->add_option("--world", sums.world)->check(CLI::IsMember({"threads", "simulated"}));
  sum->add_option("--ranks", sums.ranks)->check(CLI::PositiveNumber);
  sum->add_option("--ranks-per-node", sums.ranks_per_node)->check(CLI::PositiveNumber);
  sum->add_option("--ways", sums.ways)->delimiter(',')->required();
  sum->add_option("--bytes", sums.bytes)->delimiter(',')->required();
  sum->add_option("--rounds", sums.rounds)->check(CLI::PositiveNumber);
  StragglerOptions slow;
  CLI::App* straggler = app.add_subcommand("straggler", "training with a slow replica");
  straggler->add_option("--ranks", slow.ranks)->check(CLI::PositiveNumber);
  straggler->add_option("--ways", slow.ways)->delimiter(',')->required();
  straggler->add_option("--scenario", slow.scenario)
      ->check(CLI::IsMember({"none", "constant", "rotating"}));
  straggler->add_option("--base", slow.base)->check(CLI::Range(1.0, 1e3));
  straggler->add_option("--factor", slow.factor)->check(CLI::Range(1.0, 1e3));
  straggler->add_option("--steps", slow.steps)->check(CLI::PositiveNumber);
  straggler->add_option("--rounds", slow.rounds)->check(CLI::PositiveNumber);
  straggler->add_flag("--certify,!--no-certify", slow.is_certified);
  try {
    app.parse(argc, argv);
    const Json rows = *sum ? measure_sums(sums) : measure_straggler(slow);
    std::cout << Json{{"rows", rows}, {"provenance", provenance()}}.dump() << std::endl;
    return 0;
  } catch (const CLI::ParseError& e) {
    return app.exit(e);
  } catch (const std::exception& e) {
    std::cerr << "data_parallel: " << e.what() << "\n";
    return 1;
  }
}

}  // namespace
}  // namespace kuafu::experiment

int main(int argc, char** argv) {
  kuafu::install_allocators();
  kuafu::initialise_tensors();
  return kuafu::experiment::main_with(argc, argv);
}
