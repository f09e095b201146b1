// SPDX-License-Identifier: Apache-2.0
#include "kuafu/experiment/finality.h"

#include <signal.h>

#include <algorithm>
#include <iterator>

#include "kuafu/base/errors.h"
#include "kuafu/base/suggest.h"
#include "kuafu/base/units.h"
#include "kuafu/base/worlds.h"
#include "kuafu/experiment/verdict.h"
#include "kuafu/record/schema.h"

namespace kuafu {
namespace {

using End = ChildResult::End;

constexpr std::string_view kRefusals[] = {
    "std::bad_alloc", "can't allocate memory", "Cannot allocate memory",
    // as reason_of() has it
    "the system gave no more", "the system starts no more threads",
    "Resource temporarily unavailable",
    // as limit_of_memory() has it, where a library ended a worker
    "(ulimit -v)", "before a rank began", "before its ranks met", "An error occurred in MPI_Init",
    // the loader of libraries, which ends with 127
    "failed to map segment from shared object"};

/// Exit code of a worker where a file could not be written whole.
constexpr int kUnwrittenCode = 7;

/// A signal that others send; those of a crash are the program's own.
bool is_from_outside(int signal) {
  return signal == SIGKILL || signal == SIGTERM || signal == SIGHUP || signal == SIGINT;
}

/// mpirun ends with 1 where a signal ended it, and says nothing. So does it where a rank ended with 1,
/// but then the document says why, or mpirun on its standard error that one did.
bool is_killed_launcher(const Case& c, const Json& reason, const ChildResult& result) {
  if (c.world != worlds::kMpi || result.end != End::kExited || result.code != 1) return false;
  return reason == text(kCutShort, ": the worker exited with code 1") ||
         reason == "the worker exited with code 1 without writing its document";
}

/// What the system and its libraries say where they give no memory or process.
bool is_refused_by_system(const std::string& reason) {
  return std::any_of(std::begin(kRefusals), std::end(kRefusals), [&](std::string_view words) {
    return reason.find(words) != std::string::npos;
  });
}

constexpr const char* kRefuted = "different";  // what a certificate says, whatever the status

}  // namespace

std::vector<std::string> retried_statuses() {
  std::vector<std::string> retried = statuses();
  retried.erase(std::remove(retried.begin(), retried.end(), "ok"), retried.end());
  retried.emplace_back(kRefuted);
  return retried;
}

std::set<std::string> parse_retry(std::string_view list) {
  const std::vector<std::string> known = retried_statuses();
  std::set<std::string> asked;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    const std::string status(list.substr(begin, end - begin));
    KUAFU_REQUIRE(std::find(known.begin(), known.end(), status) != known.end(), "--retry ", list,
                  ": ", in_quotes(status), " is no status that runs again",
                  did_you_mean(status, known), " Give a list of ", join_or(known),
                  ", such as --retry failed,timeout");
    asked.insert(status);
    begin = end + 1;
  }
  return asked;
}

bool is_of_machine(const Case& c, const Json& document, const ChildResult& result) {
  const std::string status = document["status"].get<std::string>();
  // A launcher of MPI ranks ends with 128 and the signal of the rank that was killed.
  const int signal = result.end == End::kSignalled ? result.code
                     : result.end == End::kExited  ? result.code - 128
                                                   : 0;
  if (status == "ok") {
    const Json why = value_at(document, "certificate.reason");
    const bool is_refused = why.is_string() && is_refused_by_system(why.get<std::string>());
    return verdict_of(document) == "not_run" &&
           (is_refused ||
            (is_cut_short(document) && (is_from_outside(signal) || is_unwritten(result) ||
                                        is_killed_launcher(c, why, result))));
  }
  if (status == "out_of_memory") {
    const Json budget = value_at(document, "out_of_memory.budget_bytes");
    const bool has_budget = budget.is_number_integer() && budget > 0;
    return !has_budget || !case_value(c, "memory.device");
  }
  if (status == "interrupted") return true;  // by a signal: nobody stops a case by --stop-after
  if (status != "failed") return false;
  if (result.end == End::kNotStarted || result.end == End::kLost) return true;
  const Json reason = value_at(document, "reason");
  // A worker that ended well has written: somebody took the folder away.
  const bool is_taken = result.end == End::kExited && result.code == 0 &&
                        reason == "the worker exited with code 0 without writing its document";
  return is_taken || is_unwritten(result) || is_from_outside(signal) ||
         is_killed_launcher(c, reason, result) ||
         (reason.is_string() && is_refused_by_system(reason.get<std::string>()));
}

bool is_unwritten(const ChildResult& result) {
  return result.end == End::kExited && result.code == kUnwrittenCode;
}

bool is_unwritten(const Json& line) {
  const Json reason = value_at(line, "reason");
  return line["status"] == "failed" && reason.is_string() &&
         reason.get<std::string>().starts_with(
             text("the worker exited with code ", kUnwrittenCode, " "));
}

std::string why_again(const Case& c, const Json& line, const std::set<std::string>& retried) {
  const std::string status = line["status"].get<std::string>();
  if (value_at(line, "is_final") == false) {
    return (status == "ok" ? "its certificate was cut short" : status) + " by the machine's doing";
  }
  const Json before = value_at(line, "timeout_s");
  const bool may_differ = status == "timeout" || status == "failed";
  if (may_differ && before.is_number() && before.get<double>() != c.timeout_s) {
    return text(status, " under a time-out of ", print_seconds(before.get<double>()), ", now ",
                print_seconds(c.timeout_s));
  }
  if (is_late_certificate(value_at(line, "document"))) {
    if (before.is_number() && before.get<double>() < c.timeout_s) {
      return text("its certificate was cut short under a time-out of ",
                  print_seconds(before.get<double>()), ", now ", print_seconds(c.timeout_s));
    }
    if (retried.contains("timeout")) return "its certificate was cut short, as --retry asks";
  }
  if (retried.contains(kRefuted) && is_different(value_at(line, "document"))) {
    return text(kRefuted, ", as --retry asks");
  }
  return retried.contains(status) ? status + ", as --retry asks" : "";
}

}  // namespace kuafu
