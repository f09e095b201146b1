// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace kuafu::fuzz {

/// What a reader did wrong with an input.
class Finding : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

inline void require(bool condition, const std::string& what) {
  if (!condition) throw Finding(what);
}

enum class Answer : uint8_t { kValue, kRefused };

/// A reader with valid inputs to begin from. `read` gives it the bytes and checks what comes back:
/// a value must be the one that is written in the bytes (as a walk without the reader finds it; of
/// what has a checksum it is one of the valid inputs' values). A ConfigError it lets pass on.
/// Resealed ones get a checksum that fits after the change, so that what lies behind it is met.
struct Target {
  std::string name;
  std::vector<std::string> valid;
  std::function<void(const std::string& bytes)> read;
};

/// "index", "index-resealed", "safetensors", "safetensors-resealed", "weights", "hdf5" (where it was
/// built), "record", "record-resealed", "plan", "suite", "timetable", "trace".
std::vector<std::string> target_names();
Target make_target(const std::string& name);

/// Valid plans, of which all together have every key of the key table, and valid suites.
std::vector<std::string> plan_seeds();
std::vector<std::string> suite_seeds();

/// Runs the reader. Throws Finding where the answer is neither a right value nor a ConfigError with
/// a text of UTF-8.
Answer answer_of(const Target& target, const std::string& bytes);

// Of the files checkpoint_targets.cpp, record_targets.cpp and trace_target.cpp.
Target index_target(bool is_resealed);
Target safetensors_target(bool is_resealed);
Target weights_target();
Target record_target(bool is_resealed);
Target hdf5_target();
Target trace_target();

}  // namespace kuafu::fuzz
