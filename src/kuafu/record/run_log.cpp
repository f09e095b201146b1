// SPDX-License-Identifier: Apache-2.0
#include "kuafu/record/run_log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "kuafu/base/config.h"
#include "kuafu/base/errors.h"
#include "kuafu/record/schema.h"

namespace kuafu {
namespace {

constexpr std::chrono::seconds kSyncEvery{3};

void add_line(const std::string& path, int64_t number, std::string_view line, RunRecord& record) {
  const Json value = Json::parse(line, nullptr, false);
  if (value.is_discarded() || !value.is_object()) {
    record.damaged.emplace_back(line);
    return;
  }
  if (value.contains("format") && value["format"] != kRecordFormat) {
    throw ConfigError(text(path, ":", number, ": the record has format ", value["format"].dump(),
                           ", this program reads format ", kRecordFormat,
                           "; choose another folder, or the program that wrote it"));
  }
  const std::vector<std::string> problems = line_problems(value);
  KUAFU_REQUIRE(problems.empty(), path, ":", number,
                ": not a line of a record (docs/record.md): ", problems.front());
  const bool is_header = value["kind"] == "suite";
  if (is_header) {
    KUAFU_REQUIRE(record.header.is_null(), path, ":", number, ": a second suite line");
    record.header = value;
  } else {
    KUAFU_REQUIRE(!record.header.is_null(), path, ":", number,
                  ": a case before the suite line, which is damaged or missing; choose another "
                  "folder with --out, or move the file away");
    record.cases.push_back(value);
  }
}

}  // namespace

RunRecord read_run(const std::string& path) {
  const std::string bytes = read_file(path, "record");
  RunRecord record;
  int64_t number = 0;
  for (size_t at = 0; at < bytes.size();) {
    const size_t end = bytes.find('\n', at);
    const std::string_view line = std::string_view(bytes).substr(at, end - at);
    ++number;
    if (end == std::string::npos) {  // written without its end: never whole, even if it parses
      record.damaged.emplace_back(line);
      break;
    }
    if (!line.empty()) add_line(path, number, line, record);
    at = end + 1;
  }
  return record;
}

RunLog::RunLog(const std::string& folder)
    : path_(folder + "/" + kRunFile), last_sync_(std::chrono::steady_clock::now()) {
  if (std::filesystem::exists(path_)) {
    record_ = read_run(path_);
    if (!record_.damaged.empty()) move_damage_aside();
  }
  file_ = File(::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  KUAFU_REQUIRE(file_.is_open(), system_error("write", path_));
  sync_folder(folder);
}

RunLog::~RunLog() {
  if (file_.is_open()) ::fsync(file_.descriptor());
}

void RunLog::move_damage_aside() {
  const std::string aside = path_ + ".damaged";
  const File file(::open(aside.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  KUAFU_REQUIRE(file.is_open(), system_error("write", aside));
  for (const std::string& line : record_.damaged) write_all(file, line + "\n", aside);
  KUAFU_REQUIRE(::fsync(file.descriptor()) == 0, system_error("write", aside));
  std::string whole;
  if (!record_.header.is_null()) whole += record_.header.dump() + "\n";
  for (const Json& line : record_.cases) whole += line.dump() + "\n";
  replace_file(path_, whole);
  notes_.push_back(text(path_, ": ", record_.damaged.size(),
                        record_.damaged.size() == 1 ? " line was" : " lines were",
                        " damaged (cut off in the middle); moved to ", aside, ", ",
                        record_.cases.size(), " finished cases are whole"));
  record_.damaged.clear();
}

void RunLog::begin(const Json& header) {
  KUAFU_CHECK(record_.header.is_null() && record_.cases.empty(), "the record has begun already");
  write_line(header);
  sync();
  record_.header = header;
}

void RunLog::append(const Json& line) {
  write_line(line);
  record_.cases.push_back(line);
  if (std::chrono::steady_clock::now() - last_sync_ >= kSyncEvery) sync();
}

void RunLog::write_line(const Json& line) {
  const std::vector<std::string> problems = line_problems(line);
  KUAFU_CHECK(problems.empty(), "a line of the record is wrong: ", problems.front());
  struct stat before {};
  KUAFU_REQUIRE(::fstat(file_.descriptor(), &before) == 0, system_error("look at", path_));
  // Text that is no UTF-8 (a crashing child's stderr) must not cost the case.
  const std::string bytes = line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  try {
    write_all(file_, bytes, path_);
  } catch (const ConfigError& error) {
    const bool is_undone = ::ftruncate(file_.descriptor(), before.st_size) == 0;
    throw ConfigError(text(
        error.what(), "; ", record_.cases.size(), " finished cases are safe in it",
        is_undone ? "" : " (its last line is damaged)", "; make room and call again to go on"));
  }
}

void RunLog::sync() {
  KUAFU_REQUIRE(::fsync(file_.descriptor()) == 0, system_error("write", path_));
  last_sync_ = std::chrono::steady_clock::now();
}

}  // namespace kuafu
