// SPDX-License-Identifier: Apache-2.0
//
// Small wrongs in the way of experts: the certificate must notice each.

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "kuafu/parallel/expert/interface.h"
#include "tests/engine/mutants.h"
#include "tests/support/plans.h"

namespace kuafu {
namespace {

using tests::CommFault;
using tests::Mutant;
using Action = CommFault::Action;

enum class SlotFault { kNextRow, kNextExpert, kNoGates, kNoCombine };

/// Dispatches or combines wrongly in one call of the first step.
class WrongSlots : public ExpertParallel {
 public:
  WrongSlots(std::unique_ptr<ExpertParallel> inner, SlotFault fault,
             std::shared_ptr<std::atomic<int64_t>> fired)
      : inner_(std::move(inner)), fault_(fault), fired_(std::move(fired)) {}

  Tensor dispatch(const Tensor& x, const Slots& slots) const override {
    Slots wrong = slots;
    const bool is_hit = ++dispatched_ == 2;
    if (is_hit && fault_ == SlotFault::kNextRow) wrong.rows = at::roll(slots.rows, {1}, {2});
    if (is_hit && fault_ == SlotFault::kNextExpert) wrong.rows = at::roll(slots.rows, {1}, {1});
    *fired_ += !at::equal(wrong.rows, slots.rows);
    return inner_->dispatch(x, wrong);
  }

  Tensor combine(const Tensor& rows, const Tensor& gates, const Slots& slots) const override {
    const bool is_hit = ++combined_ == 2;
    if (is_hit && fault_ == SlotFault::kNoGates) {
      ++*fired_;
      return inner_->combine(rows, gates * 0 + gates.detach().ge(0).to(gates.scalar_type()), slots);
    }
    const Tensor y = inner_->combine(rows, gates, slots);
    if (!is_hit || fault_ != SlotFault::kNoCombine) return y;
    ++*fired_;
    return y * 0;
  }

 private:
  std::unique_ptr<ExpertParallel> inner_;
  SlotFault fault_;
  std::shared_ptr<std::atomic<int64_t>> fired_;
  mutable int64_t dispatched_ = 0, combined_ = 0;
};

Mutant mutant(const std::string& what, const Overrides& more = {}) {
  Overrides all = {{"model.kind", "moe_gpt"}, {"model.experts", "4"},
                   {"model.hidden", "16"},    {"model.sequence", "8"},
                   {"parallel.data", "4"},    {"parallel.expert.size", "2"},
                   {"optimizer.kind", "sgd"}, {"optimizer.lr", "0.1"},
                   {"optimizer.clip", "0.1"}, {"parallel.data.bucket", "1"}};
  all.insert(all.end(), more.begin(), more.end());
  return {.name = what,
          .plan = tests::small_plan(all),
          .fired = std::make_shared<std::atomic<int64_t>>(0)};
}

std::vector<Mutant> all_mutants() {
  std::vector<Mutant> all;
  const auto comm = [&](const std::string& what, const CommFault& fault) {
    all.push_back(mutant(what));
    tests::set_fault(all.back(), fault);
  };
  const auto slot = [&](const std::string& what, SlotFault fault) {
    all.push_back(mutant(what));
    all.back().options.wraps.experts =
        [fault, fired = all.back().fired](std::unique_ptr<ExpertParallel> inner) {
          return std::make_unique<WrongSlots>(std::move(inner), fault, fired);
        };
  };
  // Four all-to-alls a mixture: dispatch, combine, and the same backward.
  for (const int64_t at : {1, 2, 3, 4, 5, 8}) {
    comm(text("skips all-to-all ", at),
         {.action = Action::kDrop, .axis = "expert", .verb = Verb::kAllToAll, .at = at});
  }
  comm("scales a combine", {.action = Action::kScale,
                            .axis = "expert",
                            .verb = Verb::kAllToAll,
                            .at = 2,
                            .factor = 1.001});
  comm("reuses the dispatch of the layer before",
       {.action = Action::kStale, .axis = "expert", .verb = Verb::kAllToAll, .at = 3});
  comm("one rank keeps its own slots",
       {.action = Action::kDrop, .axis = "expert", .verb = Verb::kAllToAll, .at = 1, .rank = 1});
  // Experts' gradients sum over "replica"; a bucket a tensor, four expert tensors a mixture.
  for (const int64_t at : {1, 2, 3, 4}) {
    comm(text("forgets the sum of an expert's gradient ", at),
         {.action = Action::kDrop, .axis = "replica", .verb = Verb::kAllReduce, .at = at});
  }
  slot("fills slots with the row of the slot before", SlotFault::kNextRow);
  slot("sends rows to the expert beside", SlotFault::kNextExpert);
  slot("combines without gates", SlotFault::kNoGates);
  slot("skips the combine", SlotFault::kNoCombine);
  const auto believe = [&](const std::string& what, const std::function<void(Plan&)>& change,
                           const Overrides& more = {}) {
    all.push_back(mutant(what, more));
    all.back().believe = [change, fired = all.back().fired](Plan plan, int rank) {
      if (rank == 1) change(plan), ++*fired;
      return plan;
    };
  };
  believe("one rank weighs its balance loss twice", [](Plan& p) { p.model.balance_loss *= 2; });
  believe("one rank has no z-loss", [](Plan& p) { p.model.z_loss = 0; });
  believe("one rank routes to one expert", [](Plan& p) { p.model.router = "top1"; },
          {{"model.capacity_factor", "100"}});
  believe("one rank visits every second expert", [](Plan& p) { p.model.random_second = false; },
          {{"model.random_second", "true"}});
  return all;
}

TEST(ExpertMutants, DecoratorsAloneChangeNothing) {
  Mutant m = mutant("harmless");
  tests::set_fault(m, CommFault{.axis = "expert", .verb = Verb::kAllToAll, .at = 1 << 30});
  EXPECT_EQ(tests::fate_of(m), "equal");
}

TEST(ExpertMutants, AreNoticed) {
  const std::vector<Mutant> mutants = all_mutants();
  ASSERT_GE(mutants.size(), 20u);
  tests::expect_noticed(mutants);
}

}  // namespace
}  // namespace kuafu
