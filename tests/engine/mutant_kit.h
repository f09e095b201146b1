// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "tests/engine/mutants.h"

// Words to write kits of mutants with: each adds one to a family or a few.
namespace kuafu::tests {

class Kit {
 public:
  template <class Fault>
  void add(const std::string& family_name, const std::string& what, const Fault& fault) {
    set_fault(make(family_name, what), fault);
  }
  Mutant& make(const std::string& family_name, const std::string& what) {
    mutants_.push_back({.name = family_name + ": " + what,
                        .plan = mutated_plan(family_name),
                        .fired = std::make_shared<std::atomic<int64_t>>(0)});
    return mutants_.back();
  }
  std::vector<Mutant> take() { return std::move(mutants_); }

 private:
  std::vector<Mutant> mutants_;
};

/// The calls `calls` of a verb on an axis are not made.
void drop(Kit& kit, const std::string& family_name, const std::string& axis, Verb verb,
          const std::vector<int64_t>& calls);
/// The result of call `at` times `factor`; 0: of every call.
void scale(Kit& kit, const std::string& family_name, const std::string& axis, Verb verb, int64_t at,
           double factor);
/// Call `at` gives the result of the one before.
void stale(Kit& kit, const std::string& family_name, const std::string& axis, Verb verb,
           int64_t at);
/// Call `at` is not made on rank 1 of the group.
void on_one_rank(Kit& kit, const std::string& family_name, const std::string& axis, Verb verb,
                 int64_t at);

/// What is wrong with the samples that rank 1 reads.
enum class DataFault { kNextSample, kFirstSamples, kInputIds, kTargetIds };
void read_wrongly(Kit& kit, const std::string& family_name, const std::string& what,
                  DataFault fault);
/// Rank 1 runs another plan.
void believe_wrongly(Kit& kit, const std::string& family_name, const std::string& what,
                     const std::function<void(Plan&)>& change);
/// The products of a scheme scaled, lost and reused.
void multiply_wrongly(Kit& kit, const std::string& family_name);

}  // namespace kuafu::tests
