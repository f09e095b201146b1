// SPDX-License-Identifier: Apache-2.0
#include "kuafu/experiment/rows.h"

#include <algorithm>
#include <map>

#include "kuafu/base/errors.h"
#include "kuafu/base/suggest.h"
#include "kuafu/experiment/baselines.h"
#include "kuafu/experiment/derived_check.h"
#include "kuafu/experiment/expand.h"
#include "kuafu/experiment/references.h"
#include "kuafu/experiment/timing.h"
#include "kuafu/experiment/verdict.h"
#include "kuafu/record/schema.h"

namespace kuafu {
namespace {

using Picks = FormulaScope::Picks;

/// Fields that a case has however it ended.
bool is_about_the_end(const std::string& path) {
  for (const char* field : {"status", "reason", "world", "ranks", "certificate", "out_of_memory"}) {
    if (path == field || path.starts_with(text(field, "."))) return true;
  }
  return false;
}

bool is_time(const std::string& path) {
  return path == "tokens_per_s" || path == "step_time_s" || path.starts_with("step_time_s.");
}

const Json* exact_setting(const Settings& settings, const std::string& key) {
  for (const auto& [name, value] : settings) {
    if (name == key) return &value;
  }
  return nullptr;
}

/// The cases as the suite has them, as far as the record tells; those that it does not name come last.
std::vector<const Json*> in_order(const RunRecord& record) {
  std::vector<const Json*> lines;
  for (const Json& line : record.cases) lines.push_back(&line);
  if (!has_references(record.header)) return lines;
  std::map<std::string, size_t> places;
  for (const std::string& id : order_in(record.header)) places.emplace(id, places.size());
  const auto place = [&](const Json* line) {
    const auto found = places.find((*line)["case_id"].get<std::string>());
    return found == places.end() ? places.size() : found->second;
  };
  std::stable_sort(lines.begin(), lines.end(),
                   [&](const Json* a, const Json* b) { return place(a) < place(b); });
  return lines;
}

}  // namespace

/// A row, or none, as the scope of a formula.
class RowScope : public FormulaScope {
 public:
  RowScope(const Rows& rows, std::optional<size_t> row, Rows::Among among, Rows::Reading reading,
           Pass pass)
      : rows_(rows),
        row_(row),
        among_(std::move(among)),
        reading_(reading),
        pass_(std::move(pass)) {}

  Value value(const std::string& name) const override {
    if (!row_) return Value::absent(name + ": of which case?");
    return rows_.value(*row_, name, reading_, pass_);
  }

  std::unique_ptr<FormulaScope> like(const Picks& picks, std::string& why_not) const override {
    if (!row_) {
      why_not = "at(): like which case?";
      return nullptr;
    }
    const auto found = rows_.like(*row_, picks, why_not);
    return found ? rows_.scope(*found, among_, Rows::Reading::kStrict, pass_) : nullptr;
  }

  std::vector<std::unique_ptr<FormulaScope>> rows(const Picks& picks) const override {
    std::vector<std::unique_ptr<FormulaScope>> out;
    for (const size_t i : *among_) {
      const bool is_in = std::all_of(picks.begin(), picks.end(), [&](const auto& pick) {
        return rows_.has(i, pick.first, pick.second).is_true();
      });
      if (is_in) out.push_back(rows_.scope(i, among_, Rows::Reading::kStrict, pass_));
    }
    return out;
  }

  std::vector<std::unique_ptr<FormulaScope>> rounds() const override {
    std::vector<std::unique_ptr<FormulaScope>> out;
    if (pass_ != Rows::kAllRounds) return out;
    for (const Pass& pass : rows_.passes_) {
      out.push_back(std::make_unique<RowScope>(rows_, row_, among_, reading_, pass));
    }
    return out;
  }

  std::string unit(const std::string& name) const override {
    return unit_of(rows_.derived(), name);
  }

  bool is_difference(const std::string& name) const override { return rows_.is_difference(name); }

 private:
  const Rows& rows_;
  std::optional<size_t> row_;
  Rows::Among among_;
  Rows::Reading reading_;
  Pass pass_;
};

Rows::Rows(const Derived& derived, const RunRecord& record, const Suite* suite)
    : derived_(derived) {
  std::map<std::string, const Json*> lines;
  for (const Json& line : record.cases) lines[line["case_id"].get<std::string>()] = &line;
  if (suite != nullptr) {
    for (const Case& c : suite->cases) {
      const auto line = lines.find(c.id);
      rows_.push_back({c.id, c.name, c.settings, line == lines.end() ? nullptr : line->second, &c});
    }
  } else {
    for (const Json* line : in_order(record)) {
      const Json& settings = (*line)["settings"];
      Row row;
      row.id = (*line)["case_id"].get<std::string>();
      row.name = (*line)["name"].get<std::string>();
      row.line = line;
      for (const auto& [key, value] : settings.items()) row.settings.emplace_back(key, value);
      rows_.push_back(std::move(row));
    }
    const int64_t planned =
        record.header.is_object() ? record.header.value("cases", int64_t{0}) : 0;
    num_unknown_ = std::max<int64_t>(0, planned - static_cast<int64_t>(rows_.size()));
  }
  for (const Column& c : derived.columns) formulas_.emplace_back(c.formula);
  std::vector<size_t> sound;
  for (size_t i = 0; i < rows_.size(); ++i) {
    if (is_sound(rows_[i])) sound.push_back(i);
  }
  sound_ = std::make_shared<const std::vector<size_t>>(std::move(sound));
  for (const Row& row : rows_) {
    for (const auto& [key, value] : row.settings) {
      if (std::find(keys_.begin(), keys_.end(), key) == keys_.end()) keys_.push_back(key);
    }
    const Json rounds = row.line == nullptr ? Json() : value_at(*row.line, "rounds");
    for (const Json& round : rounds) passes_.insert(pass_of(round));
  }
  columns_[kAllRounds].assign(formulas_.size(), std::vector<std::optional<Known>>(rows_.size()));
  for (const Pass& pass : passes_) columns_[pass] = columns_[kAllRounds];
}

bool Rows::is_sound(const Row& row) {
  return row.line != nullptr && (*row.line)["status"] == "ok" &&
         !is_different((*row.line)["document"]);
}

Value Rows::column(size_t column, size_t row, const Pass& pass) const {
  auto& known = columns_[pass][column][row];
  if (!known) {
    const Ground before = take_ground();
    Value value = formulas_[column].evaluate(*scope(row, sound_, Reading::kAsRecorded, pass));
    known = {std::move(value), take_ground()};
    ground_ = before;
  }
  ground_.add(known->ground);
  return known->value;
}

std::unique_ptr<FormulaScope> Rows::scope(size_t row, Among among, Reading reading,
                                          const Pass& pass) const {
  return std::make_unique<RowScope>(*this, row, std::move(among), reading, pass);
}

std::unique_ptr<FormulaScope> Rows::scope(Among among) const {
  return std::make_unique<RowScope>(*this, std::nullopt, std::move(among), Reading::kStrict,
                                    kAllRounds);
}

bool Rows::is_difference(const std::string& name) const {
  for (size_t i = 0; i < formulas_.size(); ++i) {
    if (derived_.columns[i].name == name) return formulas_[i].is_difference(*scope(sound_));
  }
  return false;
}

bool Rows::is_field(const std::string& name) const {
  const auto [known, is_new] = is_field_.emplace(name, false);
  if (is_new) known->second = !name.starts_with("plan.") && path_problem(name).empty();
  return known->second;
}

Value Rows::field(const Row& row, const std::string& name, Reading reading,
                  const Pass& pass) const {
  const std::string who = in_quotes(row.name);
  if (row.line == nullptr) return Value::absent(who + " has not ended");
  const std::string status = (*row.line)["status"].get<std::string>();
  if (!is_about_the_end(name)) {
    if (status != "ok") return Value::absent(text(who, " ended as ", status));
    if (reading == Reading::kStrict && !is_sound(row)) {
      return Value::absent(text("the certificate of ", who, " says different"));
    }
  }
  if (is_time(name)) {
    ground_.add({.is_estimated = is_estimated((*row.line)["document"]),
                 .is_of_two_rounds = value_at(*row.line, "timing.rounds") == 2});
  }
  Value value = field_value(*row.line, name, pass);
  if (value.is_absent()) value.words += " in " + who;
  value.origin = row.id + " " + name;
  return value;
}

/// Of the plan as it ran, else as it is planned, else of the setting.
Value Rows::plan_value(size_t index, const std::string& name) const {
  const Row& row = rows_[index];
  const std::string key =
      whole_key(name.starts_with("plan.") ? name.substr(5) : named_in_full(name, keys_));
  if (row.line != nullptr) {
    const Json recorded = value_at((*row.line)["document"], "plan." + key);
    if (!recorded.is_null()) return Value::of(recorded, name);
  }
  if (const Json* setting = find_setting(row.settings, name)) return Value::of(*setting, name);
  const auto planned = row.planned != nullptr ? case_value(*row.planned, key) : std::nullopt;
  if (!planned) return Value::absent(text(name, " is not known of ", in_quotes(row.name)));
  const Json json = Json::parse(*planned, nullptr, false);
  return json.is_number() || json.is_boolean() ? Value::of(json, name) : Value::text(*planned);
}

Value Rows::value(size_t index, const std::string& name, Reading reading, const Pass& pass) const {
  const Row& row = rows_[index];
  for (size_t i = 0; i < formulas_.size(); ++i) {
    if (derived_.columns[i].name != name) continue;
    // What a wrong result is worth is no side of a comparison.
    const bool is_refuted = row.line != nullptr && (*row.line)["status"] == "ok" && !is_sound(row);
    if (reading == Reading::kStrict && is_refuted) return field(row, name, reading, pass);
    return column(i, index, pass);
  }
  if (const Json* setting = exact_setting(row.settings, name)) return Value::of(*setting, name);
  if (name == "name") return Value::text(row.name);
  if (name == "case_id") return Value::text(row.id);
  if (name == "wall_s" && row.line != nullptr) return Value::of((*row.line)["wall_s"], name);
  return is_field(name) ? field(row, name, reading, pass) : plan_value(index, name);
}

Value Rows::has(size_t row, const std::string& key, const Value& value) const {
  const Value own = this->value(row, key, Reading::kAsRecorded);
  if (own.is_absent()) return own;
  return Value::truth(plain_text(own.json()) == plain_text(value.json()));
}

Value Rows::is_in(size_t row, const Picked& where, const std::optional<Formula>& formula) const {
  Value is_in = Value::truth(true);
  for (const auto& [key, allowed] : where.values) {
    Value is_one = Value::truth(false);
    for (const Json& value : allowed) is_one = either(is_one, has(row, key, Value::of(value, key)));
    is_in = both(is_in, is_one);
  }
  return formula ? both(is_in, formula->evaluate(*scope(row, sound_, Reading::kAsRecorded)))
                 : is_in;
}

std::vector<size_t> Rows::picked(const Picked& where, int64_t& num_open) const {
  std::optional<Formula> formula;
  if (!where.formula.empty()) formula.emplace(where.formula);
  std::vector<size_t> out;
  for (size_t i = 0; i < rows_.size(); ++i) {
    const Value is_picked = is_in(i, where, formula);
    if (is_picked.is_true()) out.push_back(i);
    if (is_picked.is_absent() && rows_[i].line == nullptr) ++num_open;
  }
  return out;
}

}  // namespace kuafu
