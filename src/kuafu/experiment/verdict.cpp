// SPDX-License-Identifier: Apache-2.0
#include "kuafu/experiment/verdict.h"

#include <sstream>
#include <vector>

#include "kuafu/base/errors.h"
#include "kuafu/base/suggest.h"
#include "kuafu/record/certificate_words.h"
#include "kuafu/record/schema.h"

namespace kuafu {

std::string verdict_of(const Json& document) {
  const Json verdict = value_at(document, "certificate.verdict");
  return verdict.is_string() ? verdict.get<std::string>() : "";
}

bool is_different(const Json& document) { return verdict_of(document) == "different"; }

bool is_by_engine(const Json& document) {
  return value_at(document, "certificate.reference") == "engine";
}

std::string status_words(const std::string& status, const Json& document) {
  return status == "ok" && is_different(document) ? "different" : status;
}

std::string verdict_words(const Json& document) {
  const std::string verdict = verdict_of(document);
  if (verdict.empty()) return "-";
  if (verdict == "not_run") return "not run";
  std::vector<std::string> how;
  if (value_at(document, "certificate.level") == "scaled") how.emplace_back("scaled");
  if (is_by_engine(document)) how.emplace_back("engine");
  if (value_at(document, "certificate.native.unseen").is_string()) how.emplace_back("blind");
  return how.empty() ? verdict : text(verdict, " (", join(how), ")");
}

bool is_cut_short(const Json& document) {
  const Json reason = value_at(document, "certificate.reason");
  return value_at(document, "status") == "ok" && verdict_of(document) == "not_run" &&
         reason.is_string() && reason.get<std::string>().starts_with(kCutShort);
}

bool is_late_certificate(const Json& document) {
  if (!is_cut_short(document)) return false;
  const std::string reason = value_at(document, "certificate.reason").get<std::string>();
  // As the worker that ends itself says it, and as document_of() does.
  return reason.find("the case took longer than ") != std::string::npos ||
         reason.find("did not end in ") != std::string::npos;
}

Json with_end(Json document, const std::string& how) {
  Json& reason = document["certificate"]["reason"];
  if (reason == kCutShort) reason = text(kCutShort, ": ", how);
  return document;
}

bool has_same_arithmetic(const Json& a, const Json& b) {
  for (const char* path : {"world", "provenance.cpu_model", "provenance.libraries.LibTorch"}) {
    if (value_at(a, path) != value_at(b, path)) return false;
  }
  return true;
}

namespace {

/// The words of a text with a blank between them.
std::string in_one_line(const std::string& text) {
  std::istringstream in(text);
  std::string line, word;
  while (in >> word) line += (line.empty() ? "" : " ") + word;
  return line;
}

}  // namespace

std::string why_of_verdict(const Json& document) {
  const std::string verdict = verdict_of(document);
  if (verdict.empty() || verdict == "equal") return "";
  const Json certificate = value_at(document, "certificate");
  const Json reason = value_at(certificate, "reason");
  const std::string why = reason.is_string() ? in_one_line(reason.get<std::string>()) : "";
  if (verdict != "different") return why;
  const bool is_native = value_at(certificate, "native.verdict") == "different";
  const std::string words = is_native ? words_of_native(certificate) : words_of_twin(certificate);
  return text(why, why.empty() ? "" : "; ", is_native ? "the run itself: " : "its f64 twin: ",
              words.empty() ? "nothing could be measured" : words);
}

}  // namespace kuafu
