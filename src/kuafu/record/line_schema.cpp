// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cctype>
#include <set>

#include "kuafu/base/errors.h"
#include "kuafu/base/suggest.h"
#include "kuafu/record/json_text.h"
#include "kuafu/record/schema.h"

namespace kuafu {
namespace {

bool is_count(const Json& value) { return value.is_number_integer() && value.get<int64_t>() >= 0; }
bool is_place(const Json& value) { return is_count(value) && value.get<int64_t>() > 0; }
bool is_number_or_null(const Json& value) { return value.is_number() || value.is_null(); }

/// Cases have folders by their ids: no id leads out of the results.
bool is_plain_name(const Json& value) {
  if (!value.is_string()) return true;  // said already
  const auto name = value.get<std::string>();
  return !name.empty() && std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '-';
  });
}

bool is_one_of(const Json& value, const std::vector<std::string>& words) {
  return value.is_string() &&
         std::find(words.begin(), words.end(), value.get<std::string>()) != words.end();
}

/// Or absent, as in older records.
bool is_list_of(const Json& value, bool (Json::*is_right)() const noexcept) {
  return value.is_null() ||
         (value.is_array() && std::all_of(value.begin(), value.end(),
                                          [&](const Json& item) { return (item.*is_right)(); }));
}

/// {"median": number, "ci95": [low, high] or null}
bool is_step_time(const Json& value) {
  const Json interval = value_at(value, "ci95");
  return value_at(value, "median").is_number() && value.contains("ci95") &&
         (interval.is_null() || (interval.is_array() && interval.size() == 2 &&
                                 is_number_or_null(interval[0]) && is_number_or_null(interval[1])));
}

/// Collects what is wrong with one line.
class LineChecker {
 public:
  explicit LineChecker(const Json& line) : line_(line) {}

  std::vector<std::string> run() {
    const Json kind = value_at(line_, "kind");
    if (kind == "suite") {
      check_header();
    } else if (kind == "case" || kind == "former") {
      check_case();
    } else {
      problems_.push_back(
          text("kind: ", json_excerpt(kind), R"( is none of "suite", "case" and "former")"));
    }
    return std::move(problems_);
  }

 private:
  void need(const std::string& path, bool is_right, const std::string& type) {
    if (is_right) return;
    problems_.push_back(
        text(path, ": expected ", type, ", found ", json_excerpt(value_at(line_, path))));
  }

  void check_header() {
    const Json format = value_at(line_, "format");
    need("format", format == kRecordFormat || format == kOldestRecordFormat,
         text("format ", kOldestRecordFormat, " or ", kRecordFormat));
    for (const char* name : {"name", "question", "suite_hash"}) {
      need(name, value_at(line_, name).is_string(), "text");
    }
    need("cases", is_count(value_at(line_, "cases")), "integer");
    need("provenance", value_at(line_, "provenance").is_object(), "object");
    const Json derived = value_at(line_, "derived");
    need("derived", derived.is_null() || derived.is_object(), "object");
    need("order", is_list_of(value_at(line_, "order"), &Json::is_string), "a list of texts");
    need("references", is_list_of(value_at(line_, "references"), &Json::is_object),
         "a list of objects");
  }

  void check_case() {
    for (const char* name : {"case_id", "name", "status"}) {
      need(name, value_at(line_, name).is_string(), "text");
    }
    need("case_id", is_plain_name(value_at(line_, "case_id")),
         "letters, digits, _ and - (a folder's name)");
    need("settings", value_at(line_, "settings").is_object(), "object");
    need("wall_s", value_at(line_, "wall_s").is_number(), "number");
    for (const auto& problem : document_problems(value_at(line_, "document"))) {
      problems_.push_back("document: " + problem);
    }
    check_rounds();
    check_timing();
    if (problems_.empty() && line_["status"] != line_["document"]["status"]) {
      problems_.push_back("status: differs from document.status");
    }
  }

  void check_rounds() {
    const Json rounds = value_at(line_, "rounds");
    if (rounds.is_null()) return;  // older, or not timed
    need("rounds", rounds.is_array() && !rounds.empty(), "a list of rounds");
    std::set<Json> numbers;
    for (size_t i = 0; rounds.is_array() && i < rounds.size(); ++i) {
      check_round(rounds[i], text("rounds.", i, "."));
      const Json number = value_at(rounds[i], "round");
      need(text("rounds.", i, ".round"), numbers.insert(number).second, "another number a round");
    }
    if (rounds.is_array() && !rounds.empty()) {
      need("rounds.0.round", value_at(rounds[0], "round") == 1, "round 1, that of the document");
    }
  }

  void check_round(const Json& round, const std::string& at) {
    const Json place = value_at(round, "position"), began = value_at(round, "began");
    need(at + "round", is_place(value_at(round, "round")), "integer from 1");
    need(at + "position", place.is_null() || is_place(place), "integer from 1, or null");
    need(at + "began", began.is_null() || began.is_string(), "text or null");
    const Json sweep = value_at(round, "sweep");
    need(at + "sweep", sweep.is_null() || sweep.is_string(), "text or null");
    need(at + "status", is_one_of(value_at(round, "status"), statuses()),
         "one of " + join(statuses()));
    need(at + "wall_s", value_at(round, "wall_s").is_number(), "number");
    const Json time = value_at(round, "step_time_s");
    need(at + "step_time_s", time.is_null() || is_step_time(time), "median and ci95, or null");
    need(at + "tokens_per_s", is_number_or_null(value_at(round, "tokens_per_s")), "number or null");
    const Json load = value_at(round, "load"), losses = value_at(round, "losses");
    need(at + "load", load.is_object() || load.is_null(), "object or null");
    need(at + "losses", losses.is_null() || is_one_of(losses, {"same", "different"}),
         R"("same", "different" or null)");
  }

  void check_timing() {
    const Json timing = value_at(line_, "timing");
    if (timing.is_null()) return;
    need("timing.rounds", is_place(value_at(timing, "rounds")), "integer from 1");
    need("timing.step_time_s", is_step_time(value_at(timing, "step_time_s")), "median and ci95");
    need("timing.tokens_per_s", is_number_or_null(value_at(timing, "tokens_per_s")),
         "number or null");
  }

  const Json& line_;
  std::vector<std::string> problems_;
};

}  // namespace

std::vector<std::string> line_problems(const Json& line) {
  if (!line.is_object()) return {"a line is one JSON object"};
  return LineChecker(line).run();
}

}  // namespace kuafu
