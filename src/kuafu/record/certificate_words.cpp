// SPDX-License-Identifier: Apache-2.0
#include "kuafu/record/certificate_words.h"

#include <initializer_list>

#include "kuafu/base/errors.h"
#include "kuafu/record/schema.h"
#include "kuafu/record/table.h"

namespace kuafu {
namespace {

struct MeasureFields {
  const char *name, *error, *bound;
};

/// The writer named the place of what is nearest to its bound: `worst`.
std::string nearest(const Json& part, std::initializer_list<MeasureFields> measures) {
  std::string words;
  double most = -1;
  for (const MeasureFields& m : measures) {
    const Json error = value_at(part, m.error), bound = value_at(part, m.bound);
    if (!bound.is_number() || bound == 0) continue;
    // An error that is no number is written as null.
    const double share = error.is_number() ? error.get<double>() / bound.get<double>() : 1e300;
    if (share <= most) continue;
    most = share;
    words = text(m.name, " error ",
                 error.is_number() ? human_number(error.get<double>(), 3) : "without bounds",
                 " of ", human_number(bound.get<double>(), 3));
  }
  const Json worst = value_at(part, "worst");
  if (words.empty() || !worst.is_string()) return words;
  // Refuted by bits, or by what has no bound: what was compared beside that.
  const bool is_told_otherwise = value_at(part, "verdict") == "different" && most <= 1;
  return text(is_told_otherwise ? "though within bounds: " : "", words, " (",
              worst.get<std::string>(), ")");
}

}  // namespace

std::string words_of_native(const Json& certificate) {
  return nearest(value_at(certificate, "native"), {{"loss", "loss_error", "loss_bound"},
                                                   {"gradient", "gradient_error", "gradient_bound"},
                                                   {"routes", "routes_error", "routes_bound"},
                                                   {"block", "blocks_error", "blocks_bound"},
                                                   {"update", "update_error", "update_bound"}});
}

std::string words_of_twin(const Json& certificate) {
  return nearest(certificate, {{"loss", "loss_error", "loss_tolerance"},
                               {"gradient", "gradient_error", "tolerance"},
                               {"routes", "routes_error", "routes_tolerance"},
                               {"update", "parameter_error", "parameter_tolerance"}});
}

}  // namespace kuafu
