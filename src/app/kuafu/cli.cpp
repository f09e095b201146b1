// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <filesystem>
#include <iostream>
#include <map>
#include <sstream>

#include "app/kuafu/cli.h"
#include "app/kuafu/new_command.h"
#include "kuafu/base/build_info.h"
#include "kuafu/base/errors.h"
#include "kuafu/base/suggest.h"
#include "kuafu/base/units.h"

namespace kuafu {
namespace {

/// Names of the options of `app` as they are typed.
std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const auto& name : option->get_lnames()) names.push_back("--" + name);
    for (const auto& name : option->get_fnames()) names.push_back("--" + name);
  }
  return names;
}

std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* sub : app.get_subcommands(nullptr)) names.push_back(sub->get_name());
  return names;
}

/// What the parser left over becomes an error with the nearest name.
void refuse_extras(const CLI::App& app) {
  for (const CLI::App* sub : app.get_subcommands()) {
    for (const std::string& extra : sub->remaining()) {
      const std::string name = extra.substr(0, extra.find('='));
      KUAFU_REQUIRE(extra.rfind('-', 0) != 0, "kuafu ", sub->get_name(), " has no option ", name,
                    did_you_mean(name, option_names(*sub)), " `kuafu ", sub->get_name(),
                    " --help` lists them");
      throw ConfigError(text("kuafu ", sub->get_name(), " does not expect ", in_quotes(extra),
                             "; `kuafu ", sub->get_name(), " --help` shows its arguments"));
    }
  }
}

/// The parser's message.
std::string described(const CLI::ParseError& error) {
  const std::string message = error.what(), twice = ": At Most 1 required but received ";
  const size_t at = message.find(twice);
  if (at == std::string::npos) return message;
  return text(message.substr(0, at), " is given ", message.substr(at + twice.size()),
              " times; give it once");
}

/// The parser reads "--dry-run=no" as a flag with a value, and any number as yes.
void refuse_values_of_flags(const CLI::App& command, int argc, char** argv) {
  for (int i = 2; i < argc && std::string_view(argv[i]) != "--"; ++i) {
    const std::string word = argv[i], name = word.substr(0, word.find('='));
    if (!word.starts_with("--") || name == word) continue;
    const CLI::Option* option = command.get_option_no_throw(name);
    const bool is_flag = option != nullptr && option->get_items_expected_max() == 0;
    KUAFU_REQUIRE(!is_flag, name, " takes no value, given ",
                  in_quotes(word.substr(name.size() + 1)), "; leave it out for no");
  }
}

/// An empty value is a shell variable that is not set, more often than meant.
void refuse_empty_values(const CLI::App& command) {
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& value : option->results()) {
      KUAFU_REQUIRE(option->get_positional() || !value.empty(), option->get_name(),
                    ": an empty value was given; give one, or leave the option out");
    }
  }
}

/// Names that no file system takes: told before any work is done.
void refuse_long_names(const CLI::App& command) {
  constexpr size_t kLongestName = 255, kLongestPath = 4095;
  const std::vector<std::string> kinds = {"FILE", "DIR", ".toml", ".so", "CHECKPOINT", "A B..."};
  for (const CLI::Option* option : command.get_options()) {
    const std::string type = option->get_type_name();
    const bool is_path = std::any_of(kinds.begin(), kinds.end(), [&](const std::string& kind) {
      return type.find(kind) != std::string::npos;
    });
    for (const std::string& value : option->results()) {
      if (!is_path) break;
      std::string longest;
      for (const auto& part : std::filesystem::path(value)) {
        if (part.string().size() > longest.size()) longest = part.string();
      }
      const bool is_of_parts = longest.size() <= kLongestName;
      const std::string& shown = is_of_parts ? value : longest;
      KUAFU_REQUIRE(is_of_parts && value.size() <= kLongestPath, option->get_name(), ": the ",
                    is_of_parts ? "path " : "name ", in_quotes(shown.substr(0, 32)), "... has ",
                    shown.size(), " bytes; allowed: at most ",
                    is_of_parts ? kLongestPath : kLongestName);
    }
  }
}

/// What options say against each other, before anything starts.
void refuse_contradictions(const CLI::App& app) {
  KUAFU_REQUIRE(given_to(app, "--certify").empty() || given_to(app, "--no-certify").empty(),
                "--certify and --no-certify are given together; give one of them");
  const bool may_certify = app.get_option_no_throw("--certify") != nullptr;
  KUAFU_REQUIRE(!may_certify || given_to(app, "--certify-memory").empty() ||
                    !given_to(app, "--certify").empty(),
                "--certify-memory without --certify proves nothing; add --certify");
  refuse_file_conflicts(app);
}

void refuse_unknown_command(const CLI::App& app, int argc, char** argv) {
  const std::vector<std::string> commands = command_names(app);
  if (argc < 2) return;
  const std::string given = argv[1];
  if (given.rfind('-', 0) == 0) {
    const std::vector<std::string> known = {"--help", "-h", "--version"};
    KUAFU_REQUIRE(std::find(known.begin(), known.end(), given) != known.end(),
                  "kuafu has no option ", given, " before a command; commands are ",
                  join(commands));
    return;
  }
  KUAFU_REQUIRE(std::find(commands.begin(), commands.end(), given) != commands.end(),
                "kuafu has no command ", in_quotes(given), did_you_mean(given, commands),
                " Commands are ", join(commands));
}

}  // namespace

std::vector<std::string> given_to(const CLI::App& app, const std::string& name) {
  const CLI::Option* option = app.get_option_no_throw(name);
  return option == nullptr ? std::vector<std::string>() : option->results();
}

CLI::Validator one_of(const std::vector<std::string>& allowed) {
  return CLI::Validator(
      [allowed](const std::string& given) {
        if (std::find(allowed.begin(), allowed.end(), given) != allowed.end()) return std::string();
        return text(in_quotes(given), " is none of ", join(allowed), did_you_mean(given, allowed));
      },
      join(allowed, "|"));
}

CLI::Validator count() { return number_from<int64_t>(1, "a whole number"); }

CLI::Validator count_from_zero() { return number_from<int64_t>(0, "a whole number"); }

CLI::Validator time_in_seconds() {
  return CLI::Validator(
      [](std::string& given) {
        const std::map<std::string, double> kUnits = {{"", 1},     {"s", 1},    {"m", 60},
                                                      {"min", 60}, {"h", 3600}, {"d", 86400}};
        std::istringstream in(given);
        double number = 0;
        std::string unit, more;
        const bool is_number = in >> number && std::isfinite(number) && number > 0;
        in >> unit >> more;
        const auto found = kUnits.find(unit);
        if (!is_number || found == kUnits.end() || !more.empty()) {
          return text(in_quotes(given), " is no time above 0; write seconds, or 90s, 15m, 2h, 1d");
        }
        given = text(number * found->second);
        return std::string();
      },
      "");
}

CLI::Validator size_in_bytes() {
  return CLI::Validator(
      [](std::string& given) {
        try {
          const int64_t bytes = parse_bytes(given);
          if (bytes <= 0) return text(in_quotes(given), " is no room; write a size such as 16GiB");
          given = text(bytes);
        } catch (const ConfigError& error) {
          return std::string(error.what());
        }
        return std::string();
      },
      "");
}

CLI::Option* list_option(CLI::App& app, const char* name, std::vector<std::string>& values,
                         const char* help) {
  return app.add_option(name, values, help)->allow_extra_args(false);  // one value each time
}

Overrides split_pairs(const std::vector<std::string>& pairs, const std::string& option) {
  Overrides split;
  for (const std::string& pair : pairs) {
    const size_t equals = pair.find('=');
    KUAFU_REQUIRE(equals != std::string::npos && equals > 0, option, " ", pair,
                  ": expected key=value, such as ", option, " train.batch=8");
    split.emplace_back(pair.substr(0, equals), pair.substr(equals + 1));
  }
  return split;
}

FrontCall parse_command_line(int argc, char** argv) {
  FrontCall call;
  CLI::App app("Kuafu: a testbed for training large models in parallel", "kuafu");
  app.set_version_flag("--version", std::string("kuafu ") + std::string(build_info::kVersion));
  add_run_commands(app, call);
  add_generate_command(app, call);
  add_perplexity_command(app, call);
  add_embed_command(app, call);
  add_sweep_commands(app, call);
  add_weights_commands(app, call);
  add_tokenize_command(app, call);
  add_check_commands(app, call);
  add_new(app, call.created);
  add_machine_commands(app, call);
  app.require_subcommand(1);
  app.footer(
      "Each command has its own --help with examples. Start with:\n"
      "  kuafu doctor\n  kuafu suite suites/quickstart.toml\n"
      "in the folder of the source. Exit codes of every command: 0 done, 1 failed or refuted "
      "(`different`), 2 wrong usage, 4 too little memory (ulimit -v), 7 the standard output or a "
      "file could not be written whole (a full disk); others are in the --help of their commands");
  for (CLI::App* sub : app.get_subcommands(nullptr)) sub->allow_extras();
  if (argc < 2) {
    std::cout << app.help();
    call.exit_code = kMisused;
    return call;
  }
  refuse_unknown_command(app, argc, argv);
  for (const CLI::App* sub : app.get_subcommands(nullptr)) {
    if (sub->get_name() == argv[1]) refuse_values_of_flags(*sub, argc, argv);
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {
      call.exit_code = app.exit(error);  // help or version
      return call;
    }
    refuse_extras(app);  // a misspelt option is the likelier cause than what it left missing
    throw ConfigError(text(described(error), "\n`kuafu ", argv[1], " --help` shows its options"));
  }
  refuse_extras(app);
  refuse_long_names(*app.get_subcommands().front());
  refuse_contradictions(*app.get_subcommands().front());
  refuse_empty_values(*app.get_subcommands().front());
  call.command = app.get_subcommands().front()->get_name();
  return call;
}

}  // namespace kuafu
