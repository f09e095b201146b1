// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <sstream>
#include <string>
#include <vector>

#include "app/kuafu/options.h"
#include "kuafu/base/errors.h"
#include "kuafu/base/suggest.h"

namespace kuafu {

/// Values given to an option of `app`; none where it has no such option.
std::vector<std::string> given_to(const CLI::App& app, const std::string& name);

/// Throws ConfigError where a file is written twice, or over what is read: the plan, its corpus and
/// schedule, plug-ins, a trace, a checkpoint, a suite, a record. Files that are there by any name.
void refuse_file_conflicts(const CLI::App& app);

/// Accepts the given words only; the message has the nearest.
CLI::Validator one_of(const std::vector<std::string>& allowed);

/// A number written out to its end; what it may be is told by the worker.
template <class Number>
CLI::Validator any_number(const char* kind) {
  return CLI::Validator(
      [kind](const std::string& given) {
        std::istringstream in(given);
        Number value{};
        return (in >> value) && in.eof() ? std::string() : text(in_quotes(given), " is no ", kind);
      },
      "");
}

/// Accepts a number from `least` on, written out to its end.
template <class Number>
CLI::Validator number_from(Number least, const std::string& kind) {
  return CLI::Validator(
      [=](const std::string& given) {
        std::istringstream in(given);
        Number number{};
        const bool is_number = static_cast<bool>(in >> number) && in.eof();
        if (is_number && number >= least) return std::string();
        return text(in_quotes(given), " is not ", kind, " from ", least, " on");
      },
      "");
}

/// Whole numbers from 1 on, and from 0 on.
CLI::Validator count();
CLI::Validator count_from_zero();

/// The plan of a command, and where its ranks are.
void add_plan_options(CLI::App& app, WorkerCall& call);
void add_world_options(CLI::App& app, WorkerCall& call);

/// To transform() a time with: "90", "90s", "15m", "2h", "1d" become seconds.
CLI::Validator time_in_seconds();

/// To transform() a size with: "16GiB" becomes bytes.
CLI::Validator size_in_bytes();

/// An option that may be repeated, one value each time.
CLI::Option* list_option(CLI::App& app, const char* name, std::vector<std::string>& values,
                         const char* help);

/// --checkpoint and --init.
void add_weights_options(CLI::App& app, WorkerCall& call);

/// The commands of each file and their options, filled into `call` as the line is parsed.
void add_run_commands(CLI::App& app, FrontCall& call);        ///< run, explain, frontier
void add_generate_command(CLI::App& app, FrontCall& call);    ///< generate
void add_perplexity_command(CLI::App& app, FrontCall& call);  ///< perplexity
void add_embed_command(CLI::App& app, FrontCall& call);       ///< embed
void add_sweep_commands(CLI::App& app, FrontCall& call);      ///< suite, merge, compare, report
void add_check_commands(CLI::App& app, FrontCall& call);      ///< matrix, fuzz, conformance
void add_weights_commands(CLI::App& app, FrontCall& call);    ///< export, import
void add_tokenize_command(CLI::App& app, FrontCall& call);    ///< tokenize
void add_machine_commands(CLI::App& app, FrontCall& call);    ///< list, doctor

}  // namespace kuafu
