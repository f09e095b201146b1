// SPDX-License-Identifier: Apache-2.0
//
// Every row of the table of states, and every way to sum, behind one store.

#include "kuafu/states/store.h"

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <mutex>

#include "kuafu/optim/optimizer.h"
#include "kuafu/parallel/reduce/reduce.h"
#include "tests/support/ranks.h"

namespace kuafu {
namespace {

struct Row {
  std::string name;
  int64_t stage;
  std::string mode;
  int64_t servers;
};

std::vector<Row> rows(int64_t replicas) {
  std::vector<Row> all;
  for (const int64_t stage : {0, 1, 2, 3}) all.push_back({text("stage ", stage), stage, "auto", 1});
  for (const char* mode : {"ring", "tree"}) all.push_back({mode, 0, mode, 1});
  for (int64_t s = 1; s <= replicas; ++s) {
    all.push_back({text(s, " servers"), 0, "parameter_server", s});
  }
  return all;
}

/// Two parameters of awkward sizes in a group of one rank's store.
struct OneRank {
  OneRank(const Row& row, Communicator& world, DType dtype)
      : mesh({{"data", world.size()}}, world.rank()) {
    mesh.connect(world, nullptr);
    const ParamFactory factory{.mesh = &mesh, .dtype = dtype, .is_deferred = row.stage == 3};
    weight = factory.make("weight", {3, 5}, Layout::replicated(2), {}, {});
    bias = factory.make("bias", {7}, Layout::replicated(1), {}, {});
    for (const Param* p : {&weight, &bias}) first.push_back(factory.initial_value(*p).clone());
    Plan plan;
    plan.parallel.zero = row.stage;
    plan.parallel.data.mode = row.mode;
    plan.parallel.data.servers = row.servers;
    store = make_store(plan, mesh, factory);
    store->attach({{"block", {&weight, &bias}}});
  }

  /// A step of rate 1 with gradients rank + 1, by hand. What finish() handed out.
  std::vector<ParamShard> step() {
    store->expect({{0}});
    store->acquire({0});
    const auto mine = static_cast<double>(mesh.rank() + 1);
    for (Param* p : {&weight, &bias}) {
      p->value.mutable_grad() = at::full_like(p->value, mine).detach();
    }
    store->release({0});
    store->ready(0, true);
    std::vector<ParamShard> ready = store->finish();
    for (const ParamShard& piece : ready) {
      const at::NoGradGuard no_grad;
      piece.value.sub_(piece.grad);
    }
    return ready;
  }

  Mesh mesh;
  Param weight, bias;
  std::vector<Tensor> first;
  std::unique_ptr<Store> store;
};

TEST(Store, SumsAndUpdatesEveryElementOnceUnderEveryRow) {
  for (const int n : {1, 2, 3, 5}) {
    for (const Row& row : rows(n)) {
      int64_t held = 0;
      std::mutex guard;
      tests::run_ranks(n, [&](Communicator& world) {
        OneRank rank(row, world, DType::kF64);
        const std::vector<ParamShard> ready = rank.step();
        EXPECT_EQ(ready.size(), 2u);
        EXPECT_EQ(rank.store->pieces().size(), 2u);
        const double sum = n * (n + 1) / 2.0;
        EXPECT_TRUE(at::all(rank.store->gradient(rank.weight) == sum).item<bool>());
        rank.store->publish();
        EXPECT_TRUE(at::equal(rank.store->value(rank.weight), rank.first[0] - sum)) << row.name;
        EXPECT_TRUE(at::equal(rank.store->value(rank.bias), rank.first[1] - sum)) << row.name;
        const std::lock_guard lock(guard);
        for (const ParamShard& piece : ready) held += piece.value.numel();
      });
      const bool is_whole = row.stage == 0 && row.mode != "parameter_server";
      EXPECT_EQ(held, 22 * (is_whole ? n : 1)) << row.name << ", " << n;
    }
  }
}

TEST(Store, HasTheSlotsThatARuleDeclaresBeforeAnyStep) {
  for (const Row& row : rows(3)) {
    std::map<std::string, int64_t> elements;
    std::mutex guard;
    tests::run_ranks(3, [&](Communicator& world) {
      OneRank rank(row, world, DType::kBF16);
      EXPECT_TRUE(rank.store->slots().tensors().empty());
      const auto adamw = make_optimizer({}, builtin_optimizers(), &rank.store->slots());
      adamw->begin(rank.store->pieces());
      const std::lock_guard lock(guard);
      for (const SlotTensor& t : rank.store->slots().tensors()) {
        elements[t.slot] += t.tensor.numel();
        EXPECT_EQ(t.tensor.scalar_type(), at::kFloat);
      }
    });
    const bool is_whole = row.stage == 0 && row.mode != "parameter_server";
    const int64_t expected = is_whole ? 66 : 22;
    EXPECT_EQ(elements, (std::map<std::string, int64_t>{
                            {"m", expected}, {"v", expected}, {"master", expected}}))
        << row.name;
  }
}

/// What the row of every parameter says is held against the elements that ranks have of it.
TEST(Store, RowsSayWhatEveryRankKeeps) {
  constexpr int kReplicas = 3;
  for (const Row& row : rows(kReplicas)) {
    std::map<std::string, int64_t> kept;  // by parameter and slot
    std::vector<StateRow> said;
    std::mutex guard;
    tests::run_ranks(kReplicas, [&](Communicator& world) {
      OneRank rank(row, world, DType::kBF16);
      const auto adamw = make_optimizer({}, builtin_optimizers(), &rank.store->slots());
      adamw->begin(rank.store->pieces());
      const std::lock_guard lock(guard);
      said = rank.store->rows();
      for (const SlotTensor& t : rank.store->slots().tensors()) {
        kept[t.param + " " + t.slot] += t.tensor.numel();
      }
      for (const Param* p : {&rank.weight, &rank.bias}) {  // between two uses
        if (p->value.storage().nbytes() > 0) kept[p->name] += p->value.numel();
      }
    });
    ASSERT_EQ(said.size(), 2u);
    EXPECT_EQ(said[0].name, "weight");
    EXPECT_EQ(said[0].shape, (Shape{3, 5}));
    EXPECT_EQ(said[1].shape, Shape{7});
    for (const StateRow& r : said) {
      const int64_t elements = r.shape.size() == 2 ? 15 : 7;
      EXPECT_EQ(r.dtype, DType::kBF16);
      EXPECT_EQ(r.replicas, Axes{"data"});
      EXPECT_EQ(r.parameter_types[0],
                std::pair(std::string("data"),
                          row.stage == 3 ? AxisType::kSharded : AxisType::kReplicated));
      EXPECT_EQ(r.gradient_types[0], std::pair(std::string("data"), AxisType::kPartial));
      EXPECT_EQ(r.parameter.portion == Portion::kPart, row.stage == 3) << row.name;
      EXPECT_EQ(kept[r.name], r.parameter.portion == Portion::kPart ? 0 : kReplicas * elements)
          << row.name;
      ASSERT_EQ(r.slots.size(), 3u) << row.name;
      for (const StateRow::Slot& s : r.slots) {
        EXPECT_EQ(s.dtype, DType::kF32);
        const int64_t copies = s.residence.portion == Portion::kPart ? 1 : kReplicas;
        EXPECT_EQ(kept[r.name + " " + s.name], copies * elements) << row.name << " " << s.name;
      }
    }
  }
}

TEST(Store, ALoneReplicaKeepsTheWholeUnderEveryRow) {
  for (const Row& row : rows(1)) {
    tests::run_ranks(1, [&](Communicator& world) {
      OneRank rank(row, world, DType::kF32);
      for (const StateRow& r : rank.store->rows()) {
        EXPECT_EQ(r.parameter.portion, Portion::kWhole) << row.name;
        EXPECT_EQ(r.gradient.portion, Portion::kWhole) << row.name;
      }
    });
  }
}

TEST(Store, RefusesAReleaseOfWhatIsNotUsed) {
  tests::run_ranks(2, [](Communicator& world) {
    OneRank rank({"stage 3", 3, "auto", 1}, world, DType::kF32);
    EXPECT_THROW(rank.store->release({0}), InternalError);
  });
}

TEST(Residency, HasFourStagesEachWithMoreInPartsThanTheOneBefore) {
  const auto parts = [](const Residency& r) {
    return (r.slots.portion == Portion::kPart) + (r.gradients.portion == Portion::kPart) +
           (r.parameters.portion == Portion::kPart);
  };
  for (int64_t stage = 0; stage <= kLastZeroStage; ++stage)
    EXPECT_EQ(parts(residency_of_stage(stage)), stage);
  EXPECT_THROW(residency_of_stage(kLastZeroStage + 1), InternalError);
}

}  // namespace
}  // namespace kuafu
