// SPDX-License-Identifier: Apache-2.0
//
// `kuafu new`: an out-of-tree project that works, from the files in templates/.

#include "app/kuafu/new_command.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <filesystem>
#include <functional>
#include <iostream>

#include "app/kuafu/options.h"
#include "app/kuafu/templates.h"
#include "kuafu/base/errors.h"
#include "kuafu/base/suggest.h"
#include "kuafu/parallel/pipeline/choose.h"
#include "kuafu/record/files.h"

namespace kuafu {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> tensor_names() {
  std::vector<std::string> names;
  for (const auto& [name, mode] : builtin_tensor_modes()) names.push_back(name);
  return names;
}

/// What there is a template for: a registry that plug-ins add to.
struct Kind {
  std::string name;    ///< as typed, and the folder of its template
  std::string what;    ///< "tensor-parallel scheme"
  std::string option;  ///< before its name on the line of `kuafu conformance`
  std::function<std::vector<std::string>()> taken;
};

const std::vector<Kind>& kinds() {
  static const std::vector<Kind> kKinds = {
      {"scheme", "tensor-parallel scheme", "", tensor_names},
      {"sequence", "sequence mode", "--sequence ", builtin_sequence_names},
      {"model", "model", "--model ", builtin_model_names},
      {"schedule", "pipeline schedule", "--schedule ", pipeline::schedule_names},
      {"optimizer", "optimizer", "--optimizer ", builtin_optimizer_names}};
  return kKinds;
}

std::vector<std::string> kind_names() {
  std::vector<std::string> names;
  for (const Kind& kind : kinds()) names.push_back(kind.name);
  return names;
}

const Kind& kind_of(const std::string& given) {
  for (const Kind& kind : kinds()) {
    if (kind.name == given) return kind;
  }
  throw ConfigError(text("kuafu new has no kind ", in_quotes(given), "; did you mean ",
                         in_quotes(nearest(given, kind_names())), "? Kinds are ",
                         join(kind_names())));
}

/// Words that CMake keeps for targets of its own.
bool is_reserved(const std::string& name) {
  const std::vector<std::string> kWords = {"all",     "clean", "edit_cache",    "help", "install",
                                           "package", "test",  "rebuild_cache", "kuafu"};
  return std::find(kWords.begin(), kWords.end(), name) != kWords.end();
}

bool is_identifier(const std::string& name) {
  const auto is_part = [](unsigned char c) {
    return std::islower(c) || std::isdigit(c) || c == '_';
  };
  return !name.empty() && std::islower(static_cast<unsigned char>(name[0])) &&
         std::all_of(name.begin(), name.end(), is_part);
}

/// The identifier that a name nearly is: "2D-ring" -> "my_2d_ring".
std::string identifier_near(const std::string& given) {
  std::string name;
  for (const char c : given) {
    const auto byte = static_cast<unsigned char>(c);
    name += std::isalnum(byte) && byte < 128 ? static_cast<char>(std::tolower(byte)) : '_';
  }
  return is_identifier(name) ? name : "my_" + name;
}

std::string with_article(const std::string& what) {
  const bool is_open = std::string("aeiou").find(what.front()) != std::string::npos;
  return (is_open ? "an " : "a ") + what;
}

void check_name(const Kind& kind, const std::string& name) {
  const std::vector<std::string> taken = kind.taken();
  KUAFU_REQUIRE(
      std::find(taken.begin(), taken.end(), name) == taken.end(), "there is ",
      with_article(kind.what), " ", in_quotes(name), " already, beside ", join(taken),
      "; nearest: ", in_quotes(is_identifier(name) ? "my_" + name : identifier_near(name)));
  KUAFU_REQUIRE(is_identifier(name), in_quotes(name), " is no name for ", with_article(kind.what),
                "; allowed: a small letter, then small letters, digits and _ (it becomes a file, a "
                "library and a value of plans); nearest: ",
                in_quotes(identifier_near(name)));
  KUAFU_REQUIRE(!is_reserved(name), in_quotes(name),
                " is a word of the build's own; nearest: ", in_quotes("my_" + name));
}

/// "two_rings" -> "TwoRings"
std::string camel_case(const std::string& name) {
  std::string out;
  bool is_start = true;
  for (const char c : name) {
    if (c != '_') out += is_start ? static_cast<char>(std::toupper(c)) : c;
    is_start = c == '_';
  }
  return out;
}

std::string replaced(std::string in, const std::string& word, const std::string& by) {
  for (size_t at = in.find(word); at != std::string::npos; at = in.find(word, at + by.size())) {
    in.replace(at, word.size(), by);
  }
  return in;
}

fs::path own_program() { return fs::read_symlink("/proc/self/exe"); }

/// The words of the templates and what they become.
std::vector<std::pair<std::string, std::string>> words_of(const Kind& kind,
                                                          const std::string& name) {
  const std::string title = camel_case(kind.name);
  return {{"my_plugin", "my_" + kind.name},
          {"my_" + kind.name, name},
          {"My" + title, camel_case(name) + title},
          {"@KUAFU_FOLDER@", own_program().parent_path().parent_path().string()},
          {"@KUAFU@", own_program().string()},
          {"@OPTION@", kind.option},
          {"@WHAT@", with_article(kind.what)},
          {"@KINDS@", kind.what + "s"}};
}

/// "scheme/my_scheme.cpp" -> "NAME.cpp"; empty where the file is of another kind.
std::string file_of(const Template& from, const Kind& kind, const std::string& name) {
  const fs::path path(from.path);
  const std::string folder = path.parent_path().string();
  if (folder != "project" && folder != kind.name) return {};
  return replaced(path.filename().string(), "my_" + kind.name, name);
}

}  // namespace

void add_new(CLI::App& app, NewCall& call) {
  CLI::App& sub = *app.add_subcommand(
      "new",
      "write a project for a scheme, sequence mode, model, schedule or optimizer of your own");
  sub.add_option("kind", call.kind, "one of " + join(kind_names()))->required()->type_name("KIND");
  sub.add_option("name", call.name, "its name: in plans, of its file and of its library")
      ->required()
      ->type_name("NAME");
  sub.add_option("--out", call.out, "folder to write, which must not be there (default: NAME)")
      ->type_name("DIR");
  sub.footer(R"(Examples:
  kuafu new scheme two_rings
  kuafu new model braked --out ../braked_gpt
  kuafu new optimizer rms
  kuafu new schedule late_weights && cd late_weights && cmake -B build && cmake --build build

The project stands outside of Kuafu's tree. It works as it is written, passes `kuafu conformance`, and its source is the
tutorial: start with its README.
Exit codes: 0 written, 2 no such kind, a name that will not do, or a folder that is there: nothing was written)");
}

int new_command(const NewCall& call) {
  const Kind& kind = kind_of(call.kind);
  check_name(kind, call.name);
  const fs::path folder = call.out.empty() ? call.name : call.out;
  std::error_code error;
  KUAFU_REQUIRE(!fs::exists(fs::symlink_status(folder, error)), folder.string(),
                " is there already; name another folder with --out, such as --out ",
                folder.lexically_normal().string(), "_2");
  make_writable_folder(folder.string());
  std::cout << "wrote " << folder.string() << ":";
  for (const Template& from : templates()) {
    const std::string file = file_of(from, kind, call.name);
    if (file.empty()) continue;
    std::string content(from.text);
    for (const auto& [word, by] : words_of(kind, call.name)) content = replaced(content, word, by);
    replace_file((folder / file).string(), content);
    std::cout << " " << file;
  }
  std::cout << "\n\n  cd " << folder.string() << "\n  cmake -B build\n  cmake --build build\n  "
            << own_program().string() << " conformance " << kind.option << call.name
            << " --plugin build/lib" << call.name << ".so\n  " << own_program().string()
            << " run plan.toml --certify --plugin build/lib" << call.name << ".so\n";
  return kDone;
}

}  // namespace kuafu
