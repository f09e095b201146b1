// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "app/worker/matrix.h"
#include "kuafu/base/errors.h"
#include "kuafu/base/suggest.h"
#include "kuafu/engine/proof/certificate.h"
#include "kuafu/record/provenance.h"

namespace kuafu::matrix {
namespace {

/// Reasons in the order they were met; cells name them by number.
class Notes {
 public:
  size_t number(const std::string& why) {
    const auto found = std::find(all_.begin(), all_.end(), why);
    if (found != all_.end()) return static_cast<size_t>(found - all_.begin()) + 1;
    all_.push_back(why);
    return all_.size();
  }
  std::string str() const {
    std::string out;
    for (size_t i = 0; i < all_.size(); ++i) out += text(i + 1, ". ", one_line(all_[i]), "\n");
    return out;
  }

 private:
  static std::string one_line(std::string words) {
    std::replace(words.begin(), words.end(), '\n', ' ');
    return words;
  }
  std::vector<std::string> all_;
};

std::string cell(const CellOutcome& outcome, Notes& notes) {
  switch (outcome.status) {
    case Status::kEqual:
      return outcome.why.empty() ? "equal" : text("equal (blind) ", notes.number(outcome.why));
    case Status::kRefused:
      return text("refused ", notes.number(outcome.why));
    case Status::kDifferent:
      return text("**DIFFERENT** ", notes.number(outcome.why));
  }
  return {};
}

/// The table of a pair of dimensions; empty where no case of it ran.
std::string table(const std::vector<Dimension>& dims, size_t a, size_t b,
                  const std::vector<Cell>& cases, Notes& notes) {
  const auto find = [&](size_t i, size_t j) -> const Cell* {
    const Combination wanted = {{a, i}, {b, j}};
    for (const Cell& one : cases) {
      if (one.combination == wanted) return &one;
    }
    return nullptr;
  };
  std::string rows;
  for (size_t i = 0; i < dims[a].values.size(); ++i) {
    std::string row;
    bool has_any = false;
    for (size_t j = 0; j < dims[b].values.size(); ++j) {
      const Cell* one = find(i, j);
      has_any = has_any || one != nullptr;
      row += text(" ", one == nullptr ? "" : cell(one->outcome, notes), " |");
    }
    if (has_any) rows += text("| ", dims[a].values[i].name, " |", row, "\n");
  }
  if (rows.empty()) return {};
  std::string head = text("| ", dims[a].name, " \\ ", dims[b].name, " |"), line = "|---|";
  for (const DimensionValue& value : dims[b].values) {
    head += text(" ", value.name, " |");
    line += "---|";
  }
  return text("\n", head, "\n", line, "\n", rows);
}

std::string counts(const std::vector<Cell>& cases, size_t size) {
  std::vector<std::string> words;
  for (const Status status : {Status::kEqual, Status::kRefused, Status::kDifferent}) {
    const auto n = std::count_if(cases.begin(), cases.end(), [&](const Cell& c) {
      return c.combination.size() == size && c.outcome.status == status;
    });
    words.push_back(text(n, " ", to_string(status)));
  }
  return join(words);
}

/// How near errors came to their bounds: the least and the largest ratio of both parts of the
/// certificates, and of how many it is above kFarRatio without a reason.
Json bounds_of(const std::vector<Cell>& cases) {
  double least = 0, largest = 0;
  int64_t unexplained = 0;
  for (const Cell& one : cases) {
    for (const double ratio : {one.outcome.ratio, one.outcome.native_ratio}) {
      if (ratio <= 0) continue;  // nothing compared, or no error
      least = least == 0 ? ratio : std::min(least, ratio);
      largest = std::max(largest, ratio);
    }
    unexplained += one.outcome.why_far == kUnexplained ? 1 : 0;
  }
  return {{"least_ratio", least}, {"largest_ratio", largest}, {"unexplained", unexplained}};
}

}  // namespace

std::string to_string(Status status) {
  switch (status) {
    case Status::kEqual:
      return "equal";
    case Status::kRefused:
      return "refused";
    case Status::kDifferent:
      return "different";
  }
  return {};
}

Json to_json(const std::vector<Dimension>& dims, const std::vector<Cell>& cases, uint64_t seed) {
  Json out;
  out["provenance"] = provenance();
  out["seed"] = seed;
  for (const Dimension& dimension : dims) {
    for (const DimensionValue& value : dimension.values) {
      out["dimensions"][dimension.name].push_back(value.name);
    }
  }
  out["bounds"] = bounds_of(cases);
  out["cases"] = Json::array();
  for (const Cell& one : cases) {
    Json values = Json::object();
    for (const ChosenValue& c : one.combination) {
      values[dims[c.dimension].name] = dims[c.dimension].values[c.value].name;
    }
    const CellOutcome& o = one.outcome;
    Json row = {{"values", values}, {"status", to_string(o.status)}, {"ranks", o.ranks}};
    if (!o.why.empty()) row["why"] = o.why;
    if (o.tolerance > 0) {
      row["gradient_error"] = o.gradient_error;
      row["tolerance"] = o.tolerance;
      row["ratio"] = o.ratio;
      row["native_ratio"] = o.native_ratio;
      if (!o.why_far.empty()) row["why_far"] = o.why_far;
    }
    out["cases"].push_back(row);
  }
  return out;
}

std::string to_markdown(const std::vector<Dimension>& dims, const std::vector<Cell>& cases,
                        uint64_t seed, const std::string& part) {
  Notes notes;
  std::string out = text(
      "# What works together\n\nWritten by `kuafu matrix`. Each cell is a small plan with the two "
      "values and the rest at the matrix's own defaults\n(two layers of 32, synthetic tokens, f32, "
      "two steps). \"equal\": every\ncertified step is the oracle's, of the plan itself and of its "
      "f64 twin: loss, "
      "gradients, update and optimizer state (`src/kuafu/engine/README.md`); in the\nsimulated "
      "world: bytes, messages, peers, calls, FLOPs and peak memory are those of thread ranks; "
      "resumed: losses are those\nof a run without a stop too, and the last state under the same "
      "plan; under another one in f64 alone, and what is loaded and saved at once is\nthe save, to "
      "the bit, in every type. "
      "\"equal (blind) n\": equal, and the certificate says in note n what it could not see. "
      "\"refused n\": refused\nwhen the plan is read, for reason n below. \"different\" would be a "
      "bug. A value that is a default leaves its plan\nas it is: such cells show one plan.\n\n"
      "Pairs: ",
      counts(cases, 2), ". Triples (seed ", seed, "): ", counts(cases, 3), ".\n");
  if (!part.empty()) {
    out += text("\n**A part of all combinations**, by", part, ": an empty cell was not tried.\n");
  }
  for (size_t a = 0; a < dims.size(); ++a) {
    for (size_t b = a + 1; b < dims.size(); ++b) out += table(dims, a, b, cases, notes);
  }
  std::string triples;
  for (const Cell& one : cases) {
    if (one.combination.size() != 3 || one.outcome.status == Status::kEqual) continue;
    triples += text("| ", name_of(dims, one.combination), " | ", cell(one.outcome, notes), " |\n");
  }
  if (!triples.empty()) {
    out += text("\nTriples that are not equal:\n\n| combination | |\n|---|---|\n", triples);
  }
  const std::string reasons = notes.str();
  if (!reasons.empty()) out += text("\n## Reasons\n\n", reasons);
  return out;
}

}  // namespace kuafu::matrix
