// SPDX-License-Identifier: Apache-2.0
#include "kuafu/experiment/outcome.h"

#include <signal.h>

#include <cstring>
#include <filesystem>

#include "kuafu/base/config.h"
#include "kuafu/base/errors.h"
#include "kuafu/base/limits.h"
#include "kuafu/base/units.h"
#include "kuafu/experiment/finality.h"
#include "kuafu/experiment/verdict.h"
#include "kuafu/record/provenance.h"
#include "kuafu/record/schema.h"

namespace kuafu {
namespace {

using End = ChildResult::End;

constexpr size_t kLastBytes = 2000;
constexpr int kLastLines = 12;

/// "; its last lines: ..." of a standard error, empty where it printed nothing.
std::string last_lines(const std::string& path) {
  std::string bytes;
  try {
    bytes = read_file(path, "errors of the worker");
  } catch (const ConfigError&) {
    return "";
  }
  bytes.erase(bytes.find_last_not_of(" \n\r\t") + 1);
  if (bytes.empty()) return "";
  size_t begin = bytes.size() > kLastBytes ? bytes.size() - kLastBytes : 0;
  size_t at = bytes.size();
  for (int line = 0; line < kLastLines && at != std::string::npos && at > begin; ++line) {
    at = bytes.rfind('\n', at - 1);
  }
  if (at != std::string::npos && at > begin) begin = at + 1;
  return "; its last lines:\n" + bytes.substr(begin);
}

Json plain_document(const Case& c, const char* status, const std::string& reason) {
  return {{"status", status}, {"reason", reason}, {"world", c.world}, {"ranks", c.ranks}};
}

/// ": document.json: No space left on device": the last line of the standard error, without the folder
/// of the case, so that cases have one reason; empty where it has none.
std::string why_unwritten(const Remains& remains) {
  const std::string lines = last_lines(remains.error_path);
  if (lines.empty()) return "";
  std::string line = ": " + lines.substr(lines.rfind('\n') + 1);
  const std::string folder = std::filesystem::path(remains.document_path).parent_path().string();
  if (const size_t at = line.find(folder + "/"); at != std::string::npos)
    line.erase(at, folder.size() + 1);
  return line;
}

/// The worker's document, or null and why there is none.
Json read_document(const std::string& path, std::string& problem) {
  if (!std::filesystem::exists(path)) {
    problem = "without writing its document";
    return nullptr;
  }
  const Json document = Json::parse(read_file(path, "document"), nullptr, false);
  if (document.is_discarded()) {
    problem = "leaving a damaged document";
    return nullptr;
  }
  const auto problems = document_problems(document);
  if (!problems.empty()) {
    problem = "leaving a document that breaks docs/record.md: " + problems.front();
    return nullptr;
  }
  return document;
}

std::string describe_end(const ChildResult& result) {
  if (result.end == End::kSignalled) {
    const std::string extra =
        result.code == SIGKILL ? ", perhaps by the system for want of memory" : "";
    return text("was killed by signal ", result.code, " (", ::strsignal(result.code), extra, ")");
  }
  if (result.end == End::kLost) return "was lost: its guard process was killed";
  return text("exited with code ", result.code);
}

/// The document, with all that was measured, or a plain one where there is none.
Json ended_with(Json document, const Case& c, const char* status, const std::string& reason) {
  if (document.is_null()) return plain_document(c, status, reason);
  document["status"] = status;
  document["reason"] = reason;
  return document;
}

/// A library that ends the process says why on standard error alone.
bool is_of_a_library(const Json& document) {
  return document["status"] == "failed" && document["reason"].get<std::string>().find(
                                               " in the middle of the run") != std::string::npos;
}

}  // namespace

Json document_of(const Case& c, const Remains& remains) {
  const ChildResult& result = remains.result;
  if (result.end == End::kNotStarted) {
    return plain_document(c, "failed",
                          text("cannot start the worker: ", std::strerror(result.code)));
  }
  std::string problem;
  const Json document = read_document(remains.document_path, problem);
  const bool has_reason = !document.is_null() && document["status"] != "ok";
  const auto too_long = [&] {
    return text("did not end in ", print_seconds(c.timeout_s),
                ": killed with everything it started");
  };
  if (is_cut_short(document)) {
    const bool is_late = result.end == End::kTimedOut;
    return with_end(document, is_late ? too_long() : text("the worker ", describe_end(result)));
  }
  if (result.end == End::kTimedOut) {
    const std::string own =
        has_reason ? text("; it said: ", value_at(document, "reason").get<std::string>()) : "";
    return ended_with(document, c, "timeout",
                      text(too_long(), own, last_lines(remains.error_path)));
  }
  if (result.end == End::kExited && !document.is_null()) {
    const bool is_good = document["status"] == "ok" && !is_different(document);
    if (is_good != (result.code == 0)) {
      return ended_with(
          document, c, "failed",
          text("the worker ", describe_end(result), " although its document says ",
               document["status"].get<std::string>(), last_lines(remains.error_path)));
    }
    if (!is_of_a_library(document)) return document;
    return ended_with(document, c, "failed",
                      document["reason"].get<std::string>() + last_lines(remains.error_path));
  }
  if (is_unwritten(result)) {
    return plain_document(c, "failed",
                          text("the worker ", describe_end(result), " ", problem,
                               why_unwritten(remains), "; make room, and call again"));
  }
  if (result.end == End::kExited) {
    return plain_document(c, "failed",
                          text("the worker ", describe_end(result), " ", problem, limit_of_memory(),
                               last_lines(remains.error_path)));
  }
  const std::string own =
      has_reason ? text("; it said: ", value_at(document, "reason").get<std::string>()) : "";
  return ended_with(document, c, "failed",
                    text("the worker ", describe_end(result), own, last_lines(remains.error_path)));
}

void name_line(Json& line, const Case& c) {
  Json settings = Json::object();
  for (const auto& [key, value] : c.settings) settings[key] = value;
  line["name"] = c.name;
  line["settings"] = settings;
}

Json case_line(const Case& c, const Json& document, const ChildResult& result) {
  const Json reason = document.contains("reason") ? document["reason"] : Json(nullptr);
  Json line = {{"kind", "case"},
               {"case_id", c.id},
               {"status", document["status"]},
               {"reason", reason},
               {"wall_s", result.wall_s},
               {"time", utc_time()},
               {"timeout_s", c.timeout_s},
               {"is_final", !is_of_machine(c, document, result)},
               {"document", document}};
  name_line(line, c);
  return line;
}

}  // namespace kuafu
