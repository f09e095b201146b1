// SPDX-License-Identifier: Apache-2.0
#include "kuafu/experiment/verdict.h"

#include "kuafu/base/errors.h"
#include "kuafu/record/schema.h"
#include "kuafu/record/table.h"

namespace kuafu {

std::string verdict_of(const Json& document) {
  const Json verdict = value_at(document, "certificate.verdict");
  return verdict.is_string() ? verdict.get<std::string>() : "";
}

bool is_different(const Json& document) {
  return value_at(document, "status") == "ok" && verdict_of(document) == "different";
}

bool is_cut_short(const Json& document) {
  const Json reason = value_at(document, "certificate.reason");
  return value_at(document, "status") == "ok" && verdict_of(document) == "not_run" &&
         reason.is_string() && reason.get<std::string>().starts_with(kCutShort);
}

Json with_end(Json document, const std::string& how) {
  Json& reason = document["certificate"]["reason"];
  if (reason == kCutShort) reason = text(kCutShort, ": ", how);
  return document;
}

std::string why_of_verdict(const Json& document) {
  const std::string verdict = verdict_of(document);
  if (verdict.empty() || verdict == "equal") return "";
  const Json reason = value_at(document, "certificate.reason");
  if (reason.is_string()) return reason.get<std::string>();
  if (verdict != "different") return "";
  std::string errors;
  for (const char* what : {"loss", "gradient", "routes", "parameter"}) {
    const Json error = value_at(document, text("certificate.", what, "_error"));
    if (!error.is_number()) continue;
    errors +=
        text(errors.empty() ? "" : ", ", what, " error ", human_number(error.get<double>(), 3));
  }
  const Json tolerance = value_at(document, "certificate.tolerance");
  if (tolerance.is_number()) {
    errors +=
        text(errors.empty() ? "" : ", ", "tolerance ", human_number(tolerance.get<double>(), 3));
  }
  return errors;
}

}  // namespace kuafu
