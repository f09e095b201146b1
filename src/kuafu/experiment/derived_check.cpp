// SPDX-License-Identifier: Apache-2.0
#include "kuafu/experiment/derived_check.h"

#include <algorithm>

#include "kuafu/base/errors.h"
#include "kuafu/base/suggest.h"
#include "kuafu/experiment/baselines.h"
#include "kuafu/experiment/expand.h"
#include "kuafu/experiment/formula.h"
#include "kuafu/plan/keys.h"
#include "kuafu/record/field_path.h"
#include "kuafu/record/schema.h"

namespace kuafu {
namespace {

using Kind = FormulaNode::Kind;

bool is_one_of(const std::string& word, const std::vector<std::string>& words) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

bool is_list(const FieldDoc& field) {
  return field.type != FieldType::kText && field.type != FieldType::kInteger &&
         field.type != FieldType::kNumber && field.type != FieldType::kObject;
}

/// The field of a path, or of the list that it names an element of; null in open objects.
const FieldDoc* field_of(const std::string& path) {
  const auto parts = parts_of(path);
  for (const FieldDoc& field : document_fields()) {
    const auto own = parts_of(field.path);
    const bool is_element = is_list(field) && parts.size() == own.size() + 1;
    if (parts.size() != own.size() && !is_element) continue;
    const bool is_same =
        std::equal(own.begin(), own.end(), parts.begin(),
                   [](const auto& a, const auto& b) { return a == "*" || a == b; });
    if (is_same) return &field;
  }
  return nullptr;
}

/// Why a field is no single value; empty: it is.
std::string not_single(const std::string& path) {
  const FieldDoc* field = field_of(path);
  if (field == nullptr) return path == "plan" || path == "provenance" ? path + " is an object" : "";
  if (field->type == FieldType::kObject) return path + " is an object; name a field inside of it";
  const bool is_of_lists = field->type == FieldType::kNumbersPerStep;
  const bool is_element = parts_of(path).size() > parts_of(field->path).size();
  if (!is_list(*field) || (is_element && !is_of_lists)) return "";
  if (is_of_lists && !is_element) {
    return text(path, " is a list of lists; say ", path,
                ".last.max: the step by first, last or an ",
                "index, of its numbers first, last, max, sum or an index");
  }
  return text(path, " is a list; say ", path, ".first, .last, .max, .sum or an index");
}

class Checker {
 public:
  Checker(const Derived& derived, const std::vector<Case>& cases)
      : derived_(derived), cases_(cases), names_({"name", "case_id", "wall_s"}) {
    for (const Case& c : cases) {
      for (const auto& [key, value] : c.settings) {
        if (!is_one_of(key, settings_)) settings_.push_back(key);
      }
    }
    names_.insert(names_.end(), settings_.begin(), settings_.end());
    for (const KeyDoc& doc : plan_keys()) names_.push_back(doc.key);
  }

  void run() {
    for (const Column& c : derived_.columns) {
      line_ = c.line;
      what_ = text("[[column]] ", in_quotes(c.name), ": ");
      require(!is_one_of(c.name, columns_), "a column above has this name");
      require(!is_taken(c.name), "a setting, a plan key or a field has this name");
      check(Formula(c.formula), "formula");
      columns_.push_back(c.name);
    }
    std::vector<std::string> claims;
    for (const Claim& c : derived_.claims) {
      line_ = c.line;
      what_ = text("[[claim]] ", in_quotes(c.name), ": ");
      require(!is_one_of(c.name, claims), "a claim above has this name");
      claims.push_back(c.name);
      check_claim(Formula(c.formula));
      check(c.where);
    }
    for (const FigureSpec& f : derived_.figures) {
      line_ = f.line;
      what_ = "[[figure]]: ";
      for (const auto& [key, name] :
           {std::pair{"x", &f.x}, {"y", &f.y}, {"z", &f.z}, {"by", &f.by}}) {
        if (!name->empty()) check_name(*name, text(key, " = ", in_quotes(*name)));
      }
      check(f.where);
    }
  }

 private:
  template <class... Args>
  void require(bool condition, const Args&... message) const {
    KUAFU_REQUIRE(condition, derived_.origin, ":", line_, ": ", what_, message...);
  }

  bool is_setting(const std::string& name) const {
    return std::any_of(settings_.begin(), settings_.end(), [&](const std::string& key) {
      return key == name || last_word(key) == name;
    });
  }

  bool is_taken(const std::string& name) const {
    return is_one_of(name, names_) || is_setting(name) ||
           plan::find_key(whole_key(name)) != nullptr || path_problem(name).empty();
  }

  /// What is wrong with a name; empty: nothing.
  std::string find_problem(const std::string& name) const {
    if (is_one_of(name, columns_)) return "";
    if (const std::string why = why_ambiguous(name, settings_); !why.empty()) return why;
    if (is_one_of(name, names_) || is_setting(name)) return "";
    const std::string key = name.starts_with("plan.") ? name.substr(5) : name;
    if (plan::find_key(whole_key(key)) != nullptr) return "";
    if (!name.starts_with("plan.") && path_problem(name).empty()) return not_single(name);
    std::vector<std::string> known = columns_;
    known.insert(known.end(), names_.begin(), names_.end());
    for (const std::string& whole : known) {
      const bool is_begin = whole.size() > name.size() && whole.starts_with(name);
      if (!is_begin || (whole[name.size()] != '-' && whole[name.size()] != ' ')) continue;
      return text("no ", in_quotes(name), " is known here; if it is the begin of ",
                  in_quotes(whole), ", write that between backticks: `", whole, "`");
    }
    for (const FieldDoc& field : document_fields()) {
      known.push_back(field.path);
      if (!is_list(field)) continue;
      const bool is_of_lists = field.type == FieldType::kNumbersPerStep;
      for (const char* element : {".first", ".last", ".max", ".sum"}) {
        known.push_back(text(field.path, is_of_lists ? ".last" : "", element));
      }
    }
    return text("no ", in_quotes(name), " is known here", did_you_mean_name(name, known),
                " Known are columns above, settings, plan keys and what `kuafu list fields` has");
  }

  void check_name(const std::string& name, const std::string& where) const {
    const std::string problem = find_problem(name);
    require(problem.empty(), where, ": ", problem);
  }

  void check(const Formula& formula, const char* where) const {
    formula.visit([&](const FormulaNode& node, bool) {
      const std::string place = text(where, ", letter ", node.letter);
      if (node.kind == Kind::kName) check_name(node.word, place);
      if (node.kind == Kind::kBinary) check_sides(node, place);
      for (const auto& [key, asked] : node.picks) {
        check_name(key, place);
        if (asked.kind == Kind::kLiteral) check_value(key, asked.value.json(), place);
      }
    });
  }

  /// A documented field beside a literal that it can never equal.
  void check_sides(const FormulaNode& node, const std::string& where) const {
    for (const bool is_left : {true, false}) {
      const FormulaNode& name = node.parts[is_left ? 0 : 1];
      const FormulaNode& literal = node.parts[is_left ? 1 : 0];
      if (name.kind != Kind::kName || literal.kind != Kind::kLiteral) continue;
      if (is_one_of(name.word, columns_)) continue;
      const bool is_text = literal.value.kind == Value::Kind::kText;
      const std::string given = literal.value.shown();
      const bool is_equality = node.word == "==" || node.word == "!=";
      if (is_text && is_equality && !is_number_field(name.word))
        check_value(name.word, literal.value.json(), where, false);
      if (is_text_field(name.word)) {
        require(is_text, where, ": ", name.word, " is a text; compare it with one in quotes, not ",
                given);
      } else if (is_number_field(name.word)) {
        require(!is_text, where, ": ", name.word,
                " is a number; compare it with one, not the text ", given);
      }
    }
  }

  /// Whether a name is a setting, and all cases that have it give what `is_kind` asks for.
  template <class F>
  bool is_setting_of(const std::string& name, const F& is_kind) const {
    return is_setting(name) && std::all_of(cases_.begin(), cases_.end(), [&](const Case& c) {
             const Json* value = find_setting(c.settings, name);
             return value == nullptr || is_kind(*value);
           });
  }

  bool is_text_field(const std::string& name) const {
    if (is_setting(name)) return is_setting_of(name, [](const Json& v) { return v.is_string(); });
    const FieldDoc* field = field_of(name);
    return name == "name" || name == "case_id" ||
           (field != nullptr && field->type == FieldType::kText);
  }

  bool is_number_field(const std::string& name) const {
    if (is_setting(name)) return is_setting_of(name, [](const Json& v) { return v.is_number(); });
    const FieldDoc* field = field_of(name);
    return name == "wall_s" || (field != nullptr && (field->type == FieldType::kInteger ||
                                                     field->type == FieldType::kNumber));
  }

  void check(const Picked& where) const {
    for (const auto& [key, allowed] : where.values) {
      check_name(key, "where");
      for (const Json& value : allowed) check_value(key, value, "where");
    }
    if (!where.formula.empty()) check(Formula(where.formula), "where");
  }

  /// A setting or plan key has the value in some case; of other names that is known when they ended.
  void check_value(const std::string& key, const Json& value, const std::string& where,
                   bool picks = true) const {
    if (const std::vector<std::string> words = words_of_field(key); !words.empty()) {
      const std::string given = plain_text(value);
      require(is_one_of(given, words), where, ": ", key, " is never ", in_quotes(given),
              did_you_mean(given, words), " It is ", join_or(words));
    }
    const bool is_decided =
        key == "name" || is_setting(key) || plan::find_key(whole_key(key)) != nullptr;
    if (is_one_of(key, columns_) || !is_decided) return;
    std::vector<std::string> there;
    for (const Case& c : cases_) {
      const auto own = case_value(c, named_in_full(key, settings_));
      if (!own) continue;
      if (*own == plain_text(value)) return;
      if (!is_one_of(*own, there)) there.push_back(*own);
    }
    // In == and != it may be a value that no case has by now; one that is near to theirs is misspelt.
    if (!picks && did_you_mean(plain_text(value), there) == ".") return;
    require(false, where, ": no case has ", key, " = ", in_quotes(plain_text(value)),
            did_you_mean(plain_text(value), there), " ", key, " is ", join_or(in_quotes(there)));
  }

  /// Whether a name may be true or false in some case; of what the documents leave open it may.
  bool may_be_truth(const std::string& name) const {
    for (const Column& c : derived_.columns) {
      if (c.name == name) return may_be_truth(Formula(c.formula).root());
    }
    const std::string key = name.starts_with("plan.") ? name.substr(5) : name;
    if (const plan::Key* known = plan::find_key(whole_key(key))) {
      return known->form == plan::Form::kBoolean;
    }
    if (name == "name" || name == "case_id" || name == "wall_s") return false;
    if (is_setting(name)) {
      return std::any_of(cases_.begin(), cases_.end(), [&](const Case& c) {
        const Json* value = find_setting(c.settings, name);
        return value != nullptr && value->is_boolean();
      });
    }
    return field_of(name) == nullptr;
  }

  bool may_be_truth(const FormulaNode& node) const {
    const auto is_part = [this](const FormulaNode& part) { return may_be_truth(part); };
    switch (node.kind) {
      case Kind::kLiteral:
        return node.value.kind == Value::Kind::kTruth;
      case Kind::kName:
        return may_be_truth(node.word);
      case Kind::kSign:
        return false;
      case Kind::kNot:
        return is_part(node.parts.front());
      case Kind::kBinary:
        if (node.word != "and" && node.word != "or") {
          return std::string("+-*/%").find(node.word) == std::string::npos;
        }
        return std::all_of(node.parts.begin(), node.parts.end(), is_part);
      case Kind::kCall:
        if (node.word != "at" && node.word != "all" && node.word != "any") return false;
        return node.parts.empty() || is_part(node.parts.back());
    }
    return true;
  }

  void check_claim(const Formula& formula) const {
    check(formula, "formula");
    require(formula.root().kind != Kind::kLiteral && may_be_truth(formula.root()),
            "formula: expected what is true or false, such as loss.last < loss.first; given ",
            in_quotes(formula.text()));
    require(formula.is_of_row() || formula.has_aggregate(), "formula: ", in_quotes(formula.text()),
            " asks no case");
  }

  const Derived& derived_;
  const std::vector<Case>& cases_;
  std::vector<std::string> names_, settings_, columns_;
  int line_ = 0;
  std::string what_;
};

}  // namespace

void check_derived(const Derived& derived, const std::vector<Case>& cases) {
  if (!derived.is_empty()) Checker(derived, cases).run();
}

std::string unit_of(const Derived& derived, const std::string& name) {
  for (const Column& c : derived.columns) {
    if (c.name == name) return c.unit;
  }
  const FieldDoc* field = field_of(name);
  return field == nullptr ? "" : field->unit;
}

}  // namespace kuafu
