// SPDX-License-Identifier: Apache-2.0
#include "kuafu/experiment/meeting.h"

#include <set>

#include "kuafu/base/errors.h"
#include "kuafu/base/suggest.h"
#include "kuafu/experiment/verdict.h"
#include "kuafu/record/schema.h"

namespace kuafu {
namespace {

/// What makes two cases the same where one side has no ids: the plan and its place.
std::string place_of(const Result& result) {
  const Json& d = result.document;
  return text(value_at(d, "plan_hash").dump(), value_at(d, "world").dump(),
              value_at(d, "ranks").dump(), verdict_of(d) == "not_run" || verdict_of(d).empty());
}

bool is_of_same_plan(const Result& a, const Result& b) {
  return !value_at(a.document, "plan_hash").is_null() && place_of(a) == place_of(b);
}

void require_names_once(const Results& results) {
  std::set<std::string> names;
  for (const Result& result : results.cases) {
    KUAFU_REQUIRE(names.insert(result.name).second, "--by name: ", results.origin,
                  " has two cases named ", in_quotes(result.name),
                  "; compare by id, or a --subset");
  }
}

bool is_default_corpus(const Json& document) {
  return value_at(document, "data.kind") == "text" && value_at(document, "data.path").is_null();
}

}  // namespace

std::string data_hash(const Json& document) {
  const Json hash = value_at(document, "data.hash");
  return hash.is_string() ? hash.get<std::string>() : "";
}

bool reads_other_data(const Json& a, const Json& b) {
  const std::string before = data_hash(a), after = data_hash(b);
  return !before.empty() && !after.empty() && before != after;
}

std::string other_data(const Json& a, const Json& b) {
  const auto side = [](const Json& d) {
    return text(value_at(d, "data.bytes").dump(), " bytes, hash ", data_hash(d));
  };
  std::string out = text("A read a corpus of ", side(a), "; B one of ", side(b));
  if (is_default_corpus(a) || is_default_corpus(b)) {
    const auto version = [](const Json& d) {
      const Json known = value_at(d, "provenance.libraries.LibTorch");
      return known.is_string() ? known.get<std::string>() : std::string("unknown");
    };
    out += text("; the default corpus is the headers of the installed LibTorch (A ", version(a),
                ", B ", version(b), "), which differ from version to version: give data.path");
  }
  return out;
}

Meeting::Meeting(const Results& a, const Results& b, CompareOptions::By by)
    : a_(a), b_(b), partners_(a.cases.size(), nullptr), met_(b.cases.size(), false) {
  if (by == CompareOptions::By::kName) {
    require_names_once(a);
    require_names_once(b);
    pair([](const Result& ours, const Result& theirs) { return ours.name == theirs.name; });
    return;
  }
  pair([](const Result& ours, const Result& theirs) {
    return !ours.case_id.empty() && ours.case_id == theirs.case_id;
  });
  pair([](const Result& ours, const Result& theirs) {
    const bool has_ids = !ours.case_id.empty() && !theirs.case_id.empty();
    const bool is_old = data_hash(ours.document).empty() != data_hash(theirs.document).empty();
    return (!has_ids || is_old) && is_of_same_plan(ours, theirs);
  });
}

std::string Meeting::why_missing(const Result& ours) const {
  for (size_t i = 0; i < b_.cases.size(); ++i) {
    const Result& theirs = b_.cases[i];
    if (!met_[i] && is_of_same_plan(ours, theirs) &&
        reads_other_data(ours.document, theirs.document)) {
      return other_data(ours.document, theirs.document);
    }
  }
  return "";
}

template <class IsSame>
void Meeting::pair(const IsSame& is_same) {
  for (size_t i = 0; i < a_.cases.size(); ++i) {
    for (size_t j = 0; j < b_.cases.size() && partners_[i] == nullptr; ++j) {
      if (met_[j] || !is_same(a_.cases[i], b_.cases[j])) continue;
      met_[j] = true;
      partners_[i] = &b_.cases[j];
    }
  }
}

}  // namespace kuafu
