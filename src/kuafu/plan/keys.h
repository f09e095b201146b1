// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "kuafu/plan/plan.h"

namespace kuafu::plan {

/// Who chooses what lies where, one of memory/policies.def, of a plug-in, or "plain".
inline constexpr std::string_view kPolicyKey = "memory.policy";

/// Where a plan keeps the value of a key.
using Member = std::variant<int64_t*, uint64_t*, double*, bool*, std::string*, DType*, Recompute*,
                            std::optional<int64_t>*, std::vector<int64_t>*>;

/// How a key is written.
enum class Form : uint8_t {
  kInteger,
  kAutoInteger,    ///< an integer or "auto", stored as 0
  kBytes,          ///< "25 MiB" or a number of bytes
  kOptionalBytes,  ///< the same, or "unlimited", stored as none
  kNumber,
  kScale,  ///< a number, "auto" or "dynamic", stored as TrainPlan's constants
  kBoolean,
  kString,
  kChoice,    ///< one of `choices`
  kIntegers,  ///< a list of them, each within the range
};

/// Numbers a key takes; the upper end is part of it unless `is_open`, the lower unless
/// `is_open_below`.
struct Limits {
  double from = 0, to = 0;
  bool is_open = false, is_open_below = false;
};

/// Everything there is to know about one key: parsing, printing, messages and docs read this.
struct Key {
  std::string name;  ///< "parallel.tensor.size"
  Form form;
  Member (*member)(Plan&);
  std::string meaning;
  Limits range = {};
  std::vector<std::string> choices = {};
  /// The key has meaning only while `governor` has one of the values `needs`; both empty where
  /// always.
  std::string governor = {};
  std::vector<std::string> needs = {};

  std::string section() const { return name.substr(0, name.find('.')); }
};

/// All keys in the order of `to_toml`, section by section.
const std::vector<Key>& keys();

/// The key of that name; null where there is none.
const Key* find_key(std::string_view name);

/// The nearest key to a path: by its last word, and the farther the less of the rest they share.
std::string nearest_key(const std::string& path);

/// Whether a key has a meaning: its governor has one of the values it needs, and has a meaning
/// itself. `value_of` gives the value of a governor, without quotes.
bool has_meaning(const Key& key, const std::function<std::string(const Key&)>& value_of);

/// Whether a key has no meaning beside the other values of a plan, and its default: a document
/// leaves it out.
bool is_idle(const Key& key, const Plan& plan);

/// Whether a key names a place of data, whose bytes count, not its name: data.hash stands for them.
bool is_place(std::string_view name);

/// What a key takes, in words: `an integer from 1 to 1048576`, `"f64", "f32" or "bf16"`.
std::string allowed(const Key& key);

/// The value of a key as TOML.
std::string print(const Key& key, const Plan& plan);

/// A document as it is read: `docs/plan.md` is this text.
std::string markdown();

}  // namespace kuafu::plan
