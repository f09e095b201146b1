// SPDX-License-Identifier: Apache-2.0
//
// kuafu: the front. Reads the command line, runs sweeps, compares results; starts kuafu-worker,
// which loads LibTorch, for whatever trains.

#include <signal.h>

#include <exception>
#include <iostream>
#include <new>

#include "app/kuafu/options.h"
#include "app/kuafu/programs.h"
#include "kuafu/base/errors.h"
#include "kuafu/base/kernel_choice.h"
#include "kuafu/base/launcher.h"
#include "kuafu/base/reason.h"
#include "kuafu/record/files.h"

namespace kuafu {
namespace {

int dispatch(const FrontCall& call) {
  if (call.command.empty()) return call.exit_code;  // help and version
  kernel_choice();  // a word that is none is told before anything starts
  if (call.command == "run" || call.command == "explain" || call.command == "frontier") {
    return worker_command(call.command, call.worker);
  }
  if (call.command == "generate") return generate_command(call.generate);
  if (call.command == "perplexity") return perplexity_command(call.perplexity);
  if (call.command == "embed") return embed_command(call.embed);
  if (call.command == "conformance") return conformance_command(call.conformance);
  if (call.command == "suite") return suite_command(call.suite);
  if (call.command == "export") return export_command(call.exported);
  if (call.command == "import") return import_command(call.imported);
  if (call.command == "tokenize") return tokenize_command(call.tokenize);
  if (call.command == "report") return report_command(call.report);
  if (call.command == "compare") return compare_command(call.compare);
  if (call.command == "merge") return merge_command(call.merge);
  if (call.command == "list") return list_command(call.list);
  if (call.command == "matrix") return matrix_command(call.matrix);
  if (call.command == "new") return new_command(call.created);
  if (call.command == "fuzz") return fuzz_command(call.fuzz);
  if (call.command == "doctor") return doctor_command(call.doctor);
  return call.exit_code;
}

int told(const std::exception& error, int code) {
  std::cerr << "kuafu: " << reason_of(error) << "\n";
  return code;
}

/// A command that has done its work has not, where what it printed went nowhere.
int after_output(int code) {
  std::cout.flush();
  if (std::cout || code != kDone) return code;
  std::cerr << "kuafu: cannot write all of the standard output\n";
  return kUnwritten;
}

}  // namespace
}  // namespace kuafu

int main(int argc, char** argv) {
  ::signal(SIGXFSZ, SIG_IGN);  // a file-size limit is an error of write(), not the end of the sweep
  try {
    return kuafu::after_output(kuafu::dispatch(kuafu::parse_command_line(argc, argv)));
  } catch (const kuafu::Unwritten& error) {
    return kuafu::told(error, kuafu::kUnwritten);
  } catch (const kuafu::TooLittleMemory& error) {
    kuafu::let_rank_0_report();
    return kuafu::told(error, kuafu::kNoMemory);
  } catch (const kuafu::ConfigError& error) {
    kuafu::let_rank_0_report();
    return kuafu::told(error, kuafu::kMisused);
  } catch (const std::bad_alloc& error) {
    return kuafu::told(error, kuafu::kNoMemory);
  } catch (const std::exception& error) {
    return kuafu::told(error, kuafu::kBad);
  }
}
