// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kuafu/plan/plan.h"
#include "kuafu/record/json.h"

namespace kuafu::micro {

/// A GPT in f32, AdamW, no clipping, synthetic tokens of a vocabulary of 256.
struct Shape {
  int64_t layers = 2, hidden = 1024, heads = 16, sequence = 128, batch = 16;
};

/// A tensor scheme on its ranks.
struct Scheme {
  std::string mode = "none";
  int64_t ranks = 1, depth = 1;
};
std::string to_string(const Scheme& s);  ///< "2.5d on 8"

/// `steps`: that one engine of the plan will make.
Plan plan_of(const Scheme& scheme, const Shape& shape, int64_t steps);
Json to_json(const Scheme& scheme, const Shape& shape);

/// {median, quartiles, minimum, maximum, samples}
Json spread(std::vector<double> samples);

/// Where the CPU time of a step goes, scheme by scheme. Prints a table; returns the document.
Json profile(const Shape& shape, int64_t steps);
/// Steps beside what the measured rates of products and links predict.
Json predict(const Shape& shape, int64_t rounds);

}  // namespace kuafu::micro
