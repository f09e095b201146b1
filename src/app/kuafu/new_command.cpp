// SPDX-License-Identifier: Apache-2.0
//
// `kuafu new`: an out-of-tree project that works, from the files in templates/.

#include "app/kuafu/new_command.h"

#include <unistd.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <functional>
#include <iostream>

#include "app/kuafu/options.h"
#include "app/kuafu/templates.h"
#include "kuafu/base/errors.h"
#include "kuafu/base/names.h"
#include "kuafu/base/suggest.h"
#include "kuafu/memory/policy_kinds.h"
#include "kuafu/parallel/pipeline/choose.h"
#include "kuafu/plan/plan.h"
#include "kuafu/record/files.h"
#include "kuafu/record/missing_folders.h"

namespace kuafu {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> tensor_names() {
  std::vector<std::string> names;
  for (const auto& [name, mode] : builtin_tensor_modes()) names.push_back(name);
  return names;
}

/// And the word of plans without one.
std::vector<std::string> policy_names() {
  std::vector<std::string> names = {MemoryPlan{}.policy};
  for (const auto& kind : memory::builtin_policy_kinds()) names.push_back(kind.name);
  return names;
}

/// What there is a template for: a registry that plug-ins add to.
struct ProjectKind {
  std::string name;    ///< as typed, and the folder of its template
  std::string what;    ///< "tensor-parallel scheme"
  std::string option;  ///< before its name on the line of `kuafu conformance`
  std::function<std::vector<std::string>()> taken;
};

const std::vector<ProjectKind>& project_kinds() {
  static const std::vector<ProjectKind> kKinds = {
      {"scheme", "tensor-parallel scheme", "", tensor_names},
      {"sequence", "sequence mode", "--sequence ", builtin_sequence_names},
      {"model", "model", "--model ", builtin_model_names},
      {"schedule", "pipeline schedule", "--schedule ", pipeline::schedule_names},
      {"optimizer", "optimizer", "--optimizer ", builtin_optimizer_names},
      {"policy", "memory policy", "--policy ", policy_names}};
  return kKinds;
}

std::vector<std::string> kind_names() {
  std::vector<std::string> names;
  for (const ProjectKind& kind : project_kinds()) names.push_back(kind.name);
  return names;
}

const ProjectKind& kind_of(const std::string& given) {
  for (const ProjectKind& kind : project_kinds()) {
    if (kind.name == given) return kind;
  }
  throw ConfigError(text("kuafu new has no kind ", in_quotes(given),
                         did_you_mean(given, kind_names()), " Kinds are ", join(kind_names())));
}

/// Words that CMake keeps for targets of its own.
bool is_reserved(const std::string& name) {
  const std::vector<std::string> kWords = {"all",     "clean", "edit_cache",    "help", "install",
                                           "package", "test",  "rebuild_cache", "kuafu"};
  return std::find(kWords.begin(), kWords.end(), name) != kWords.end();
}

std::string with_article(const std::string& what) {
  const bool is_open = std::string("aeiou").find(what.front()) != std::string::npos;
  return (is_open ? "an " : "a ") + what;
}

std::string plural(const std::string& what) {
  return what.ends_with("y") ? what.substr(0, what.size() - 1) + "ies" : what + "s";
}

void check_name(const ProjectKind& kind, const std::string& name) {
  const std::vector<std::string> taken = kind.taken();
  KUAFU_REQUIRE(std::find(taken.begin(), taken.end(), name) == taken.end(), "there is ",
                with_article(kind.what), " ", in_quotes(name), " already, beside ", join(taken),
                "; nearest: ", in_quotes("my_" + plain_name_near(name)));
  KUAFU_REQUIRE(is_plain_name(name), with_article(kind.what), " ", problem_of_name(name),
                " (it becomes a file, a library and a value of plans)");
  KUAFU_REQUIRE(!std::isdigit(static_cast<unsigned char>(name.front())), in_quotes(name),
                " begins with a digit, as no class of C++ may; nearest: ", in_quotes("my-" + name));
  KUAFU_REQUIRE(!is_reserved(name), in_quotes(name),
                " is a word of the build's own; nearest: ", in_quotes("my_" + name));
}

/// "two_rings", "two-rings" -> "TwoRings"
std::string camel_case(const std::string& name) {
  std::string out;
  bool is_start = true;
  for (const char c : name) {
    const bool is_between = c == '_' || c == '-';
    if (!is_between) out += is_start ? static_cast<char>(std::toupper(c)) : c;
    is_start = is_between;
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
std::vector<std::pair<std::string, std::string>> words_of(const ProjectKind& kind,
                                                          const std::string& name) {
  const std::string title = camel_case(kind.name);
  return {{"my_plugin", "my_" + kind.name},
          {"my_" + kind.name, name},
          {"My" + title, camel_case(name) + title},
          {"@KUAFU_FOLDER@", own_program().parent_path().parent_path().string()},
          {"@KUAFU@", own_program().string()},
          {"@OPTION@", kind.option},
          {"@WHAT@", with_article(kind.what)},
          {"@KINDS@", plural(kind.what)}};
}

/// "scheme/my_scheme.cpp" -> "NAME.cpp"; empty where the file is of another kind.
std::string file_of(const Template& from, const ProjectKind& kind, const std::string& name) {
  const fs::path path(from.path);
  const std::string folder = path.parent_path().string();
  if (folder != "project" && folder != kind.name) return {};
  return replaced(path.filename().string(), "my_" + kind.name, name);
}

/// Writes the project's files into a folder that is there. Returns their names.
std::vector<std::string> write_project(const fs::path& folder, const ProjectKind& kind,
                                       const std::string& name) {
  std::vector<std::string> files;
  for (const Template& from : templates()) {
    const std::string file = file_of(from, kind, name);
    if (file.empty()) continue;
    std::string content(from.text);
    for (const auto& [word, by] : words_of(kind, name)) content = replaced(content, word, by);
    replace_file((folder / file).string(), content);
    files.push_back(file);
  }
  return files;
}

/// Makes the whole project or nothing, under its name at the end.
std::vector<std::string> make_project(const fs::path& folder, const ProjectKind& kind,
                                      const std::string& name) {
  const fs::path parent = folder.has_parent_path() ? folder.parent_path() : fs::path(".");
  const std::vector<std::string> own = missing_folders(parent.string());
  const fs::path partial = text(folder.string(), ".", ::getpid(), ".partial");
  std::error_code error;
  const auto leave_nothing = [&] {
    fs::remove_all(partial, error);
    remove_empty_folders(own);
  };
  try {
    make_writable_folder(parent.string());
    make_writable_folder(partial.string());
    const std::vector<std::string> files = write_project(partial, kind, name);
    fs::rename(partial, folder, error);
    KUAFU_REQUIRE(!error, "cannot make the folder ", folder.string(), ": ", error.message(),
                  "; choose another one with --out");
    return files;
  } catch (const Unwritten& e) {
    leave_nothing();
    throw Unwritten(replaced(e.what(), partial.string(), folder.string()));
  } catch (const Error&) {
    leave_nothing();
    throw;
  }
}

}  // namespace

void add_new(CLI::App& app, NewCall& call) {
  CLI::App& sub = *app.add_subcommand(
      "new",
      "write a project for a scheme, sequence mode, model, schedule, optimizer or memory policy of "
      "your own");
  sub.add_option("kind", call.kind, "one of " + join(kind_names()))->required()->type_name("KIND");
  sub.add_option("name", call.name,
                 text("its name, in plans, of its file and of its library: a letter, then letters, "
                      "digits, _ and -, at most ",
                      kLongestName))
      ->required()
      ->type_name("NAME");
  sub.add_option("--out", call.out, "folder to write, which must not be there (default: NAME)")
      ->type_name("DIR");
  sub.footer(R"(Examples:
  kuafu new scheme two_rings
  kuafu new model braked --out ../braked_gpt
  kuafu new optimizer rms
  kuafu new policy largest_first
  kuafu new schedule late_weights && cd late_weights && cmake -B build && cmake --build build

The project stands outside of Kuafu's tree. It works as it is written, passes `kuafu conformance`, and its source is the
tutorial: start with its README.
Exit codes: 0 written, 2 no such kind, a name that will not do, or a folder that is there, 7 a full disk; where it is
not 0, nothing was written)");
}

int new_command(const NewCall& call) {
  const ProjectKind& kind = kind_of(call.kind);
  check_name(kind, call.name);
  fs::path folder = fs::path(call.out.empty() ? call.name : call.out).lexically_normal();
  if (!folder.has_filename()) folder = folder.parent_path();  // "mine/"
  std::error_code error;
  KUAFU_REQUIRE(!fs::exists(fs::symlink_status(folder, error)), folder.string(),
                " is there already; name another folder with --out, such as --out ",
                folder.string(), "_2");
  const std::vector<std::string> files = make_project(folder, kind, call.name);
  std::cout << "wrote " << folder.string() << ": " << join(files, " ") << "\n\n  cd "
            << folder.string() << "\n  cmake -B build\n  cmake --build build\n  "
            << own_program().string() << " conformance " << kind.option << call.name
            << " --plugin build/lib" << call.name << ".so\n  " << own_program().string()
            << " run plan.toml --certify --plugin build/lib" << call.name << ".so\n";
  return kDone;
}

}  // namespace kuafu
