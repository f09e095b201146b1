// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kuafu/base/errors.h"
#include "kuafu/experiment/claims.h"
#include "kuafu/experiment/membership.h"
#include "tests/record/support.h"

// A sweep whose columns and claims are tested, and a record of it.
namespace kuafu::test {

inline const std::string kSweep = R"([suite]
name = "s"
[[strategy]]
name = "one rank"
ranks = 1
[[strategy]]
name = "data"
ranks = [2, 4]
parallel.data = "$ranks"
[grid]
train.batch = [8, 16]
)";

/// A suite of six cases, and a record in which the step of a case takes 80 ms / ranks * batch / 8.
class Derivation : public testing::Test {
 protected:
  void read(const std::string& more) {
    suite_ = parse_suite(kSweep + more, "dir/s.toml");
    record_ = {};
    record_.header = suite_header(suite_);
    for (const Case& c : suite_.cases) record_.cases.push_back(line_of(c));
  }

  static Json line_of(const Case& c) {
    Json document = sample_document(c.ranks, 0);
    const int64_t batch = std::stoll(*case_value(c, "train.batch"));
    const double median = 0.08 / static_cast<double>(c.ranks) * static_cast<double>(batch) / 8;
    document["plan"]["train"]["batch"] = batch;
    document["step_time_s"]["median"] = median;
    document["step_time_s"]["ci95"] = {0.9 * median, 1.1 * median};
    document["tokens_per_s"] = static_cast<double>(batch) * 64 / median;
    if (c.ranks == 1) document["ledger"] = Json::object();
    Json line = sample_case(c.id, document);
    line["name"] = c.name;
    line["settings"] = Json::object();
    for (const auto& [key, value] : c.settings) line["settings"][key] = value;
    return line;
  }

  Json& line(const std::string& name) {
    for (Json& l : record_.cases) {
      if (l["name"] == name) return l;
    }
    throw InternalError("no case " + name);
  }

  void end_as(const std::string& name, const std::string& status) {
    Json& l = line(name);
    l["status"] = status;
    l["document"] = {{"status", status}, {"reason", "no"}, {"ranks", 2}};
  }

  Rows rows(bool is_suite_known = true) const {
    return {suite_.derived, record_, is_suite_known ? &suite_ : nullptr};
  }

  std::string verdict(const std::string& formula, const std::string& more = "",
                      bool is_suite_known = true) {
    const auto before = record_.cases;
    read("[[claim]]\nname = \"c\"\nsource = \"here\"\nformula = \"" + formula + "\"\n" + more);
    if (!before.empty()) record_.cases = before;
    results_ = check_claims(rows(is_suite_known));
    return describe(results_.at(0).verdict);
  }

  std::string column(const std::string& formula, const std::string& name) {
    const auto before = record_.cases;
    read("[[column]]\nname = \"x\"\nformula = \"" + formula + "\"\n");
    if (!before.empty()) record_.cases = before;
    const Rows all = rows();
    for (size_t i = 0; i < all.all().size(); ++i) {
      if (all.all()[i].name == name) {
        const Value value = all.column(0, i);
        return value.is_absent() ? value.words : value.json().dump();
      }
    }
    return "no such case";
  }

  Suite suite_;
  RunRecord record_;
  std::vector<ClaimResult> results_;
};

}  // namespace kuafu::test
