// SPDX-License-Identifier: Apache-2.0
//
// What a command writes is held against what it reads, and against what else it writes, before
// anything starts.

#include <algorithm>
#include <filesystem>
#include <map>

#include "app/kuafu/cli.h"
#include "kuafu/base/config.h"
#include "kuafu/experiment/suite_text.h"
#include "kuafu/parallel/pipeline/choose.h"
#include "kuafu/record/hdf5.h"
#include "kuafu/record/run_log.h"

namespace kuafu {
namespace {

namespace fs = std::filesystem;

/// A file or folder of the command line.
struct Named {
  std::string by;  ///< "--json"; of what is read what it is: "the corpus"
  std::string path;
};

constexpr const char* kFileOptions[] = {"--json", "--trace", "--timeline", "--timetable",
                                        "--log",  "--csv",   "--junit",    "--parquet"};
constexpr const char* kFolderOptions[] = {"--tensorboard", "--checkpoint"};

/// One spelling of a path, whether there is such a file or not.
std::string plain_path(const std::string& path) {
  std::error_code error;
  return fs::absolute(path, error).lexically_normal().string();
}

/// /dev/null, a pipe
bool is_device(const std::string& path) {
  std::error_code error;
  return fs::is_other(path, error) || fs::is_character_file(path, error);
}

template <size_t n>
std::vector<Named> named_by(const CLI::App& app, const char* const (&options)[n]) {
  std::vector<Named> all;
  for (const char* option : options) {
    for (const std::string& path : given_to(app, option)) {
      if (!is_device(path)) all.push_back({option, path});
    }
  }
  return all;
}

void refuse_two_writers(const CLI::App& app) {
  std::map<std::string, Named> written;
  for (const Named& file : named_by(app, kFileOptions)) {
    const auto [known, is_new] = written.try_emplace(plain_path(file.path), file);
    KUAFU_REQUIRE(is_new, known->second.by, " and ", file.by, " both write ", file.path,
                  "; give each a file of its own");
  }
  for (const Named& folder : named_by(app, kFolderOptions)) {  // which may share one
    const auto known = written.find(plain_path(folder.path));
    KUAFU_REQUIRE(known == written.end(), known->second.by, " and ", folder.by, " both write ",
                  folder.path, "; the first is a file, the second a folder");
  }
}

/// The files that a plan names, or --set over it. What is wrong with them is told where they are read.
void add_files_of_plan(const CLI::App& app, const std::string& plan, std::vector<Named>& read) {
  std::map<std::string, std::string> files = {
      {"data.path", ""}, {"data.tokenizer", ""}, {"parallel.pipeline.schedule", ""}};
  std::error_code error;
  try {
    const bool is_file = fs::is_regular_file(plan, error);  // a pipe is read once
    const ConfigValue whole = is_file ? parse_toml(read_file(plan, "plan"), plan) : ConfigValue{};
    for (auto& [key, path] : files) {
      const ConfigValue* value = find_dotted(whole, key);
      if (value != nullptr && value->kind == ConfigValue::Kind::kString) path = value->string;
    }
  } catch (const ConfigError&) {
  }
  for (const std::string& pair : given_to(app, "--set")) {
    const size_t equals = pair.find('=');
    const auto file = files.find(pair.substr(0, equals));
    if (equals == std::string::npos || file == files.end()) continue;
    const auto quoted = parse_toml_value(pair.substr(equals + 1));
    const bool is_quoted = quoted && quoted->kind == ConfigValue::Kind::kString;
    file->second = is_quoted ? quoted->string : pair.substr(equals + 1);
  }
  const std::string& schedule = files["parallel.pipeline.schedule"];
  for (const auto& [key, what] :
       {std::pair{"data.path", "the corpus"}, {"data.tokenizer", "the tokenizer"}}) {
    if (!files[key].empty()) read.push_back({what, files[key]});
  }
  if (pipeline::is_schedule_file(schedule)) read.push_back({"the schedule", schedule});
}

std::vector<Named> files_read(const CLI::App& app) {
  std::vector<Named> read;
  for (const std::string& plan : given_to(app, "plan")) {
    read.push_back({"the plan", plan});
    add_files_of_plan(app, plan, read);
  }
  for (const char* option : {"--plugin", "--oracles", "--from", "--init", "--suite", "--file"}) {
    for (const std::string& path : given_to(app, option)) read.push_back({option, path});
  }
  for (const std::string& folder : given_to(app, "--checkpoint")) {
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(folder, error)) {
      if (entry.is_directory(error)) read.push_back({"a checkpoint", entry.path().string()});
    }
  }
  if (app.get_name() != "report") return read;
  for (const std::string& folder : given_to(app, "folder")) {
    for (const char* file : {kRunFile, kHdf5File})
      read.push_back({"the record", text(folder, "/", file)});
  }
  return read;
}

/// Whether a file that is there is the other one, by whatever name, or lies in that folder.
bool is_in(const std::string& file, const std::string& other) {
  std::error_code error;
  if (fs::equivalent(file, other, error)) return true;
  if (!fs::is_directory(other, error) || !fs::exists(file, error)) return false;
  const fs::path relative = fs::relative(file, other, error);
  return !error && !relative.empty() && *relative.begin() != "..";
}

void refuse_written_inputs(const CLI::App& app) {
  const std::vector<Named> written = named_by(app, kFileOptions);
  if (written.empty()) return;
  for (const Named& in : files_read(app)) {
    for (const Named& out : written) {
      KUAFU_REQUIRE(!is_in(out.path, in.path), out.by, " ", out.path, " would write over ", in.by,
                    in.path == out.path ? "" : " " + in.path, ", which is read; give another name");
    }
  }
}

}  // namespace

void refuse_file_conflicts(const CLI::App& app) {
  std::vector<std::string> plugins;
  for (const std::string& plugin : given_to(app, "--plugin")) {
    const std::string path = plain_path(plugin);
    KUAFU_REQUIRE(std::find(plugins.begin(), plugins.end(), path) == plugins.end(), "--plugin ",
                  plugin, " is given twice; give each plug-in once");
    plugins.push_back(path);
  }
  refuse_two_writers(app);
  refuse_written_inputs(app);
}

}  // namespace kuafu
