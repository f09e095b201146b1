// SPDX-License-Identifier: Apache-2.0
#include "kuafu/plan/keys.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "kuafu/base/config.h"
#include "kuafu/base/errors.h"
#include "kuafu/base/suggest.h"

namespace kuafu::plan {
namespace {

constexpr std::array<std::pair<Recompute, std::string_view>, 3> kRecompute = {
    {{Recompute::kNone, "none"}, {Recompute::kSelective, "selective"}, {Recompute::kFull, "full"}}};

std::string number(double value) {
  if (value == static_cast<double>(static_cast<int64_t>(value))) {
    return text(static_cast<int64_t>(value));
  }
  return toml_number(value);
}

std::string print_number(const Key& key, double value) {
  if (key.form == Form::kScale && value == TrainPlan::kAutoScale) return in_quotes("auto");
  if (key.form == Form::kScale && value == TrainPlan::kDynamicScale) return in_quotes("dynamic");
  return toml_number(value);
}

std::string print_integer(const Key& key, int64_t value) {
  return key.form == Form::kAutoInteger && value == 0 ? in_quotes("auto") : text(value);
}

}  // namespace

const Key* find_key(std::string_view name) {
  for (const Key& key : keys()) {
    if (key.name == name) return &key;
  }
  return nullptr;
}

std::string nearest_key(const std::string& path) {
  const auto word_of = [](const std::string& name) { return name.substr(name.rfind('.') + 1); };
  const auto parent_of = [&](const std::string& name) {
    return name.substr(0, name.size() - word_of(name).size());
  };
  std::string best;
  int64_t fewest = std::numeric_limits<int64_t>::max();
  for (const Key& key : keys()) {
    const bool is_end = path.find('.') != std::string::npos && key.name.ends_with("." + path);
    if (is_end) return key.name;  // "tensor.mode" of parallel.tensor.mode
    const std::string table = parent_of(key.name), given = parent_of(path);
    const std::string section = key.section() + ".";
    const int64_t elsewhere =
        table == given              ? 0
        : given == section          ? 1  // its table was left out; another one may be misspelt
        : path.starts_with(section) ? std::min<int64_t>(5, 2 * edit_distance(given, table))
                                    : 6;
    const int64_t edits = std::min(2 * edit_distance(path, key.name),
                                   2 * edit_distance(word_of(path), word_of(key.name)) + elsewhere);
    if (edits < fewest) {
      fewest = edits;
      best = key.name;
    }
  }
  return best;
}

bool has_meaning(const Key& key, const std::function<std::string(const Key&)>& value_of) {
  if (key.governor.empty()) return true;
  const Key& governor = *find_key(key.governor);
  const std::string governing = value_of(governor);
  return std::find(key.needs.begin(), key.needs.end(), governing) != key.needs.end() &&
         has_meaning(governor, value_of);
}

namespace {

/// The bounds of a ratio that nothing keeps in bounds.
bool bounds_nothing(const Key& key, const Plan& plan) {
  const bool is_bound = key.name == "optimizer.ratio_min" || key.name == "optimizer.ratio_max";
  const std::string bounded = plan.optimizer.bounded();
  return is_bound && bounded != "ratio" && bounded != "weights";
}

}  // namespace

bool is_idle(const Key& key, const Plan& plan) {
  // Governors are strings; a member points into a Plan that may be written, and nothing is written.
  const auto value_of = [&](const Key& governor) {
    return *std::get<std::string*>(governor.member(const_cast<Plan&>(plan)));
  };
  return (!has_meaning(key, value_of) || bounds_nothing(key, plan)) &&
         print(key, plan) == print(key, Plan{});
}

std::string allowed(const Key& key) {
  const Limits& range = key.range;
  const std::string span = text(range.is_open_below ? "above " : "from ", number(range.from),
                                " to ", range.is_open ? "below " : "", number(range.to));
  switch (key.form) {
    case Form::kInteger:
      return "an integer " + span;
    case Form::kAutoInteger:
      return "an integer " + span + " or \"auto\"";
    case Form::kBytes:
      return "a size such as \"6 GB\" or \"512 MiB\", or a number of bytes " + span;
    case Form::kOptionalBytes:
      return "a size such as \"6 GB\" or \"512 MiB\", a number of bytes " + span +
             ", or \"unlimited\"";
    case Form::kNumber:
      return "a number " + span;
    case Form::kScale:
      return "a number " + span + ", \"dynamic\" or \"auto\"";
    case Form::kBoolean:
      return "true or false";
    case Form::kString:
      return "a string";
    case Form::kChoice:
      return join_or(in_quotes(key.choices));
    case Form::kIntegers:
      return "a list of integers, each " + span;
  }
  return {};
}

std::string print(const Key& key, const Plan& plan) {
  // A member points into a Plan that may be written; nothing is written here.
  const Member member = key.member(const_cast<Plan&>(plan));
  struct Printer {
    const Key& key;
    std::string operator()(const int64_t* v) const { return print_integer(key, *v); }
    std::string operator()(const uint64_t* v) const { return text(*v); }
    std::string operator()(const double* v) const { return print_number(key, *v); }
    std::string operator()(const bool* v) const { return *v ? "true" : "false"; }
    std::string operator()(const std::string* v) const { return in_quotes(*v); }
    std::string operator()(const DType* v) const { return in_quotes(to_string(*v)); }
    std::string operator()(const Recompute* v) const {
      return in_quotes(kRecompute[static_cast<size_t>(*v)].second);
    }
    std::string operator()(const std::optional<int64_t>* v) const {
      return *v ? text(**v) : in_quotes("unlimited");
    }
    std::string operator()(const std::vector<int64_t>* v) const {
      std::vector<std::string> words;
      for (const int64_t i : *v) words.push_back(text(i));
      return "[" + join(words) + "]";
    }
  };
  return std::visit(Printer{key}, member);
}

}  // namespace kuafu::plan

namespace kuafu {

const std::vector<KeyDoc>& plan_keys() {
  static const std::vector<KeyDoc> docs = [] {
    std::vector<KeyDoc> out;
    const Plan defaults;
    for (const plan::Key& key : plan::keys()) {
      std::string meaning = key.meaning;
      if (!key.governor.empty()) {
        meaning += text("; only with ", key.governor, " = ", join_or(in_quotes(key.needs)));
      }
      out.push_back({key.name, plan::allowed(key), plan::print(key, defaults), meaning});
    }
    return out;
  }();
  return docs;
}

}  // namespace kuafu
