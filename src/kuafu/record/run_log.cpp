// SPDX-License-Identifier: Apache-2.0
#include "kuafu/record/run_log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "kuafu/base/config.h"
#include "kuafu/base/crc32.h"
#include "kuafu/base/errors.h"
#include "kuafu/base/suggest.h"
#include "kuafu/base/utf8.h"
#include "kuafu/record/json_text.h"
#include "kuafu/record/schema.h"

namespace kuafu {
namespace {

constexpr std::chrono::seconds kSyncEvery{3};

// The end of every line: the field's name, 8 hex digits, the object's end.
constexpr std::string_view kSealOpens = ",\"checksum\":\"", kSealCloses = "\"}";
constexpr size_t kDigits = 8, kSealBytes = kSealOpens.size() + kDigits + kSealCloses.size();

/// Position of a line's seal; npos where it has none.
size_t seal_of(std::string_view line) {
  if (line.size() <= kSealBytes || !line.ends_with(kSealCloses)) return std::string_view::npos;
  const size_t at = line.size() - kSealBytes;
  return line.substr(at, kSealOpens.size()) == kSealOpens ? at : std::string_view::npos;
}

/// The line without its seal. Throws ConfigError where the two do not match.
std::string opened(const std::string& where, std::string_view line) {
  const size_t at = seal_of(line);
  if (at == std::string_view::npos) return std::string(line);
  const std::string_view content = line.substr(0, at);
  const std::string_view given = line.substr(at + kSealOpens.size(), kDigits);
  const std::string found = crc32_digits(content);
  KUAFU_REQUIRE(
      given == found, where, "the line has the checksum ", in_quotes(as_utf8(given)),
      ", its content has ", found,
      ": it was changed after it was written; take the line out, and its case runs again");
  return text(content, "}");
}

/// Its format of a first line; 0 of a line that gives none. Throws ConfigError for one that nobody
/// here reads.
int64_t format_of(const std::string& where, const Json& line) {
  const auto format = line.find("format");
  if (format == line.end()) return 0;
  if (*format == kRecordFormat || *format == kOldestRecordFormat) return format->get<int64_t>();
  throw ConfigError(text(where, "the record has format ", json_excerpt(*format),
                         ", this program reads formats ", kOldestRecordFormat, " and ",
                         kRecordFormat, "; choose another folder, or the program that wrote it"));
}

/// Removes what a kill left of a record that was being replaced. @pre nobody else writes it
void remove_unfinished(const std::string& folder) {
  namespace fs = std::filesystem;
  std::error_code error;
  std::vector<fs::path> unfinished;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(text(kRunFile, ".")) && name.ends_with(".new")) {
      unfinished.push_back(entry.path());
    }
  }
  for (const fs::path& path : unfinished) fs::remove(path, error);
}

Json parse_line(std::string_view line) {
  try {
    return parse_json(line);
  } catch (const ConfigError&) {
    return Json(Json::value_t::discarded);
  }
}

void add_line(const std::string& path, int64_t number, std::string_view line, RunRecord& record) {
  const std::string where = text(path, ":", number, ": ");
  if (!parse_line(line).is_object()) {
    record.damaged.emplace_back(line);
    return;
  }
  const bool is_sealed = seal_of(line) != std::string_view::npos;
  const Json value = parse_line(opened(where, line));
  const int64_t own = format_of(where, value);
  const bool has_header = !record.header.is_null();
  const int64_t format = own > 0      ? own
                         : has_header ? record.header["format"].get<int64_t>()
                                      : kRecordFormat;
  KUAFU_REQUIRE(is_sealed || (format == kOldestRecordFormat && !value.contains("checksum")), where,
                "the line has no checksum at its end, as lines of format ", kRecordFormat,
                " have; take the line out, and its case runs again");
  const std::vector<std::string> problems = line_problems(value);
  KUAFU_REQUIRE(problems.empty(), where,
                "not a line of a record (docs/record.md): ", problems.front());
  const bool is_header = value["kind"] == "suite";
  if (is_header) {
    KUAFU_REQUIRE(record.header.is_null(), where, "a second suite line");
    record.header = value;
  } else {
    KUAFU_REQUIRE(!record.header.is_null(), where,
                  "a case before the suite line, which is damaged or missing; choose another "
                  "folder with --out, or move the file away");
    if (value["kind"] == "former") return record.former.push_back(value);
    for (const Json& other : record.cases) {
      if (other["case_id"] != value["case_id"]) continue;
      KUAFU_REQUIRE(other == value, where, "a second line of the case ", value["name"].dump(),
                    ", and not the same one; take one of them out");
      return;  // copied twice
    }
    record.cases.push_back(value);
  }
}

/// A line as a reader gets it. @pre it is one of docs/record.md
Json as_read(const Json& line) {
  const std::vector<std::string> problems = line_problems(line);
  KUAFU_CHECK(problems.empty(), "a line of the record is wrong: ", problems.front());
  return Json::parse(json_line(line));
}

std::string all_lines(const RunRecord& record) {
  std::string all;
  if (!record.header.is_null()) all += sealed(record.header) + "\n";
  for (const std::vector<Json>* lines : {&record.cases, &record.former}) {
    for (const Json& line : *lines) all += sealed(line) + "\n";
  }
  return all;
}

}  // namespace

std::string sealed(const Json& line) {
  std::string content = json_line(line);
  content.pop_back();  // the object's end comes after the seal
  return text(content, kSealOpens, crc32_digits(content), kSealCloses);
}

RunRecord read_run(const std::string& path) {
  const std::string bytes = read_file(path, "record");
  RunRecord record;
  int64_t number = 0;
  for (size_t at = 0; at < bytes.size();) {
    const size_t end = bytes.find('\n', at);
    const std::string_view line = std::string_view(bytes).substr(at, end - at);
    ++number;
    if (end == std::string::npos) {  // written without its end: never whole, even if it parses
      record.is_cut = true;
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
  remove_unfinished(folder);
  if (std::filesystem::exists(path_)) {
    record_ = read_run(path_);
    if (!record_.damaged.empty()) move_damage_aside();
  }
  open();
  sync_folder(folder);
}

RunLog::~RunLog() {
  if (file_.is_open()) ::fsync(file_.descriptor());
}

void RunLog::open() {
  file_ = File(::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!file_.is_open()) throw_unwritten(path_);
}

void RunLog::move_damage_aside() {
  const std::string aside = path_ + ".damaged";
  const File file(::open(aside.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!file.is_open()) throw_unwritten(aside);
  for (const std::string& line : record_.damaged) write_all(file, line + "\n", aside);
  if (::fsync(file.descriptor()) != 0) throw_unwritten(aside);
  replace_file(path_, all_lines(record_));
  notes_.push_back(text(path_, ": ", record_.damaged.size(),
                        record_.damaged.size() == 1 ? " line was" : " lines were",
                        " damaged (cut off in the middle); moved to ", aside, ", ",
                        record_.cases.size(), " finished cases are whole"));
  record_.damaged.clear();
  record_.is_cut = false;
}

void RunLog::begin(const Json& header) {
  KUAFU_CHECK(record_.header.is_null() && record_.cases.empty(), "the record has begun already");
  record_.header = write_line(header);
  sync();
}

void RunLog::append(const Json& line) {
  record_.cases.push_back(write_line(line));
  if (std::chrono::steady_clock::now() - last_sync_ >= kSyncEvery) sync();
}

void RunLog::replace(const Json& line) {
  RunRecord next = record_;
  const auto is_same = [&](const Json& other) { return other["case_id"] == line["case_id"]; };
  const auto first = std::find_if(next.cases.begin(), next.cases.end(), is_same);
  KUAFU_CHECK(first != next.cases.end(), "no line of the case is there to be replaced");
  *first = as_read(line);
  next.cases.erase(std::remove_if(first + 1, next.cases.end(), is_same), next.cases.end());
  put_in_place(std::move(next));
}

void RunLog::rewrite(const RunRecord& record) {
  RunRecord next{record.header, {}, {}, {}, false};
  for (const Json& line : record.cases) next.cases.push_back(as_read(line));
  for (const Json& line : record.former) next.former.push_back(as_read(line));
  put_in_place(std::move(next));
}

void RunLog::put_in_place(RunRecord next) {
  replace_file(path_, all_lines(next));
  record_ = std::move(next);
  open();  // the name is another file's now
}

Json RunLog::write_line(const Json& line) {
  Json read = as_read(line);
  struct stat before {};
  KUAFU_REQUIRE(::fstat(file_.descriptor(), &before) == 0, system_error("look at", path_));
  const std::string bytes = sealed(line) + "\n";
  try {
    write_all(file_, bytes, path_);
  } catch (const ConfigError& error) {
    const bool is_undone = ::ftruncate(file_.descriptor(), before.st_size) == 0;
    const std::string why =
        text(error.what(), "; ", record_.cases.size(), " finished cases are safe in it",
             is_undone ? "" : " (its last line is damaged)", "; make room and call again to go on");
    if (dynamic_cast<const Unwritten*>(&error) != nullptr) throw Unwritten(why);
    throw ConfigError(why);
  }
  return read;
}

void RunLog::sync() {
  if (::fsync(file_.descriptor()) != 0) throw_unwritten(path_);
  last_sync_ = std::chrono::steady_clock::now();
}

}  // namespace kuafu
