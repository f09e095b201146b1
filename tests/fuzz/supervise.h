// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tests/fuzz/targets.h"

namespace kuafu::fuzz {

/// Inputs [begin, end) of a campaign.
struct Range {
  uint64_t seed = 1;
  uint64_t begin = 0, end = 0;
};

/// What a range of inputs came to. It ends behind the first input that the reader does wrong with.
struct ReaderOutcome {
  uint64_t end = 0;
  uint64_t values = 0, refused = 0;
  std::string wrong;  ///< of input end - 1: a Finding's text, the signal, "hang"; empty where none
};

/// Runs a range in a child process, so that a crash or a hang (no answer in `limit_s` seconds)
/// costs one input.
ReaderOutcome run_range(const Target& target, const Range& range, unsigned limit_s);

/// Runs one input in a child process; what is wrong, or empty.
std::string wrong_with(const Target& target, const std::string& bytes, unsigned limit_s);

/// The shortest input found that the reader does the same wrong with, by leaving parts out.
std::string minimised(const Target& target, const std::string& bytes, const std::string& wrong,
                      unsigned limit_s);

}  // namespace kuafu::fuzz
