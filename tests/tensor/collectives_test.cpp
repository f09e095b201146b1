// SPDX-License-Identifier: Apache-2.0
//
// Each differentiable collective on n thread ranks against one global function of all ranks'
// tensors, differentiated by LibTorch on one thread. Values are whole numbers, so equality is
// exact.
#include "kuafu/tensor/collectives.h"

#include <gtest/gtest.h>

#include <functional>

#include "kuafu/base/errors.h"
#include "kuafu/comm/simulated.h"
#include "kuafu/comm/worlds.h"
#include "kuafu/meter/allocator.h"
#include "tests/tensor/support.h"

namespace kuafu {
namespace {

using testing::whole_numbers;

enum class Input : uint8_t { kPerRank, kReplicated };
enum class Output : uint8_t { kPerRank, kReplicated };

struct Collective {
  std::string name;
  Input input;
  Output output;  ///< a replicated output is used identically: its gradient counts once
  std::function<Tensor(const Tensor& x, Communicator& c)> run;
  std::function<Tensor(const Tensors& x, int64_t rank)> global;  ///< y of a rank from all x
};

Tensor chunk(const Tensor& x, int64_t n, int64_t dim, int64_t i) {
  return x.chunk(n, dim)[static_cast<size_t>(i)];
}

Tensor total(const Tensors& x) { return at::stack(x).sum(0); }

std::vector<Collective> collectives(int64_t n) {
  std::vector<Collective> all = {
      {"fork", Input::kReplicated, Output::kPerRank,
       [](const Tensor& x, Communicator& c) { return fork(x, c); },
       [](const Tensors& x, int64_t) { return x[0]; }},
      {"join", Input::kPerRank, Output::kReplicated,
       [](const Tensor& x, Communicator& c) { return join(x, c); },
       [](const Tensors& x, int64_t) { return total(x); }},
  };
  for (const int64_t dim : {0, 1, 2, -1}) {
    const auto name = [dim](const char* verb) { return text(verb, " dim ", dim); };
    all.push_back({name("gather"), Input::kPerRank, Output::kPerRank,
                   [dim](const Tensor& x, Communicator& c) { return gather(x, c, dim); },
                   [dim](const Tensors& x, int64_t) { return at::cat(x, dim); }});
    all.push_back({name("collect"), Input::kPerRank, Output::kReplicated,
                   [dim](const Tensor& x, Communicator& c) { return collect(x, c, dim); },
                   [dim](const Tensors& x, int64_t) { return at::cat(x, dim); }});
    all.push_back({name("scatter_sum"), Input::kPerRank, Output::kPerRank,
                   [dim](const Tensor& x, Communicator& c) { return scatter_sum(x, c, dim); },
                   [dim, n](const Tensors& x, int64_t r) { return chunk(total(x), n, dim, r); }});
    all.push_back({name("slice"), Input::kReplicated, Output::kPerRank,
                   [dim](const Tensor& x, Communicator& c) { return slice(x, c, dim); },
                   [dim, n](const Tensors& x, int64_t r) { return chunk(x[0], n, dim, r); }});
  }
  for (const auto& [from, to] :
       std::vector<std::pair<int64_t, int64_t>>{{0, 1}, {1, 2}, {2, 0}, {2, 1}, {-1, 0}}) {
    all.push_back(
        {text("exchange ", from, " to ", to), Input::kPerRank, Output::kPerRank,
         [from, to](const Tensor& x, Communicator& c) { return exchange(x, c, from, to); },
         [from, to, n](const Tensors& x, int64_t r) {
           Tensors parts;
           for (const Tensor& t : x) parts.push_back(chunk(t, n, from, r));
           return at::cat(parts, to);
         }});
  }
  for (const int64_t by : {int64_t{1}, int64_t{-1}, int64_t{2}, n}) {
    all.push_back({text("shift by ", by), Input::kPerRank, Output::kPerRank,
                   [by](const Tensor& x, Communicator& c) { return shift(x, c, by); },
                   [by, n](const Tensors& x, int64_t r) {
                     return x[static_cast<size_t>(((r - by) % n + n) % n)];
                   }});
  }
  return all;
}

struct Reference {
  Tensors inputs, outputs, output_grads, input_grads;  // by rank
};

Reference reference(const Collective& f, int64_t n, at::IntArrayRef shape) {
  Reference ref;
  for (int64_t r = 0; r < n; ++r) {
    const bool again = f.input == Input::kReplicated && r > 0;
    ref.inputs.push_back(again ? ref.inputs[0] : whole_numbers(shape, r + 1).requires_grad_(true));
  }
  Tensor loss;
  for (int64_t r = 0; r < n; ++r) {
    const Tensor y = f.global(ref.inputs, r);
    const bool is_counted = f.output == Output::kPerRank || r == 0;
    ref.output_grads.push_back(is_counted ? whole_numbers(y.sizes(), 50 + r) : ref.output_grads[0]);
    ref.outputs.push_back(y.detach());
    if (!is_counted) continue;
    const Tensor term = (y * ref.output_grads.back()).sum();
    loss = loss.defined() ? loss + term : term;
  }
  loss.backward();
  for (Tensor& x : ref.inputs) {
    ref.input_grads.push_back(x.grad().clone());
  }
  for (Tensor& x : ref.inputs) x = x.detach();
  return ref;
}

class Collectives : public ::testing::TestWithParam<int> {};

TEST_P(Collectives, HaveTheirMathematicalValueAndDerivative) {
  const int n = GetParam();
  for (const Collective& f : collectives(n)) {
    const Reference ref = reference(f, n, {n, 3 * n, 2 * n});
    Tensors outputs(static_cast<size_t>(n)), grads(static_cast<size_t>(n));
    run_on_threads(n, [&](Communicator& world) {
      const auto r = static_cast<size_t>(world.rank());
      const Tensor x = ref.inputs[r].clone().requires_grad_(true);
      const Tensor y = f.run(x, world);
      outputs[r] = y.detach().clone();
      y.backward(ref.output_grads[r].clone());
      grads[r] = x.grad();
    });
    for (size_t r = 0; r < outputs.size(); ++r) {
      EXPECT_TRUE(at::equal(outputs[r], ref.outputs[r]))
          << f.name << " on rank " << r << " of " << n;
      EXPECT_TRUE(at::equal(grads[r], ref.input_grads[r]))
          << "gradient of " << f.name << " on rank " << r << " of " << n;
    }
  }
}

TEST_P(Collectives, TakeAnyStridesInAndBack) {
  const int n = GetParam();
  for (const Collective& f : collectives(n)) {
    const Reference ref = reference(f, n, {n, 3 * n, 2 * n});
    run_on_threads(n, [&](Communicator& world) {
      const auto r = static_cast<size_t>(world.rank());
      const auto strided = [](const Tensor& t) {
        return t.transpose(0, 2).contiguous().transpose(0, 2);
      };
      const Tensor x = strided(ref.inputs[r]).requires_grad_(true);
      const Tensor y = f.run(x, world);
      const Tensor before = x.detach().clone();
      y.backward(strided(ref.output_grads[r]));
      EXPECT_TRUE(at::equal(y.detach(), ref.outputs[r])) << f.name;
      EXPECT_TRUE(at::equal(x.grad(), ref.input_grads[r])) << f.name;
      EXPECT_TRUE(at::equal(x.detach(), before)) << f.name << " wrote its input";
    });
  }
}

TEST_P(Collectives, LeaveTheIncomingGradientAlone) {
  const int n = GetParam();
  for (const Collective& f : collectives(n)) {
    const Reference ref = reference(f, n, {n, 3 * n, 2 * n});
    run_on_threads(n, [&](Communicator& world) {
      const auto r = static_cast<size_t>(world.rank());
      const Tensor x = ref.inputs[r].clone().requires_grad_(true);
      const Tensor dy = ref.output_grads[r].clone();
      f.run(x, world).backward(dy);
      EXPECT_TRUE(at::equal(dy, ref.output_grads[r])) << f.name;
    });
  }
}

TEST_P(Collectives, OnMetaHaveTheSameShapesBooksAndTraffic) {
  const int n = GetParam();
  SimulatedWorld simulated(n);
  for (const Collective& f : collectives(n)) {
    const Shape shape = {n, 3 * n, 2 * n};
    const auto run = [&](Communicator& world, at::Device device, Ledger& ledger, RankBook& book) {
      const BookScope scope(&book);
      const CategoryScope category(Category::kActivation);
      world.meter(&ledger, "all");
      const Tensor x =
          at::zeros(shape, at::TensorOptions(at::kFloat).device(device)).requires_grad_(true);
      const Tensor y = f.run(x, world);
      y.backward(at::zeros(y.sizes(), y.options()));
      world.meter(nullptr, "");
      return shape_of(y);
    };
    run_on_threads(n, [&](Communicator& world) {
      Ledger real, recorded;
      RankBook book(world.rank()), meta_book(world.rank());
      const Shape on_cpu = run(world, at::kCPU, real, book);
      world.barrier();
      for (int turn = 0; turn < n;
           ++turn) {  // ranks of the simulated world are recorded one at a time
        if (turn == world.rank()) {
          const auto communicator = simulated.communicator(turn);
          EXPECT_EQ(run(*communicator, at::kMeta, recorded, meta_book), on_cpu) << f.name;
        }
        world.barrier();
      }
      EXPECT_EQ(recorded.axis("all"), real.axis("all")) << f.name;
      EXPECT_EQ(meta_book.peak(), book.peak()) << f.name;
      EXPECT_EQ(meta_book.peak_by_category(), book.peak_by_category()) << f.name;
    });
  }
}

TEST_P(Collectives, RawOnesBroadcastAndReduce) {
  const int n = GetParam();
  run_on_threads(n, [&](Communicator& world) {
    for (int64_t root = 0; root < n; ++root) {
      const Tensor mine = whole_numbers({3, 5}, world.rank() + 1);
      EXPECT_TRUE(at::equal(raw::broadcast(mine, world, root), whole_numbers({3, 5}, root + 1)));
      EXPECT_TRUE(at::equal(mine, whole_numbers({3, 5}, world.rank() + 1)));
      Tensor sum = at::zeros({3, 5}, at::kDouble);
      for (int r = 0; r < n; ++r) sum += whole_numbers({3, 5}, r + 1);
      raw::reduce(mine, world, root);
      if (world.rank() == root) {
        EXPECT_TRUE(at::equal(mine, sum));
      }
      const Tensor strided = whole_numbers({3, 5}, world.rank() + 1).t().contiguous().t();
      raw::all_reduce(strided, world);
      EXPECT_TRUE(at::equal(strided, sum));
    }
    const Tensor top = at::full({2}, world.rank(), at::kDouble);
    EXPECT_EQ(raw::all_reduce(top, world, ReduceOp::kMax)[1].item<double>(), n - 1);
  });
}

TEST_P(Collectives, RefuseWhatTheGroupDoesNotDivide) {
  const int n = GetParam();
  run_on_threads(n, [&](Communicator& world) {
    const Tensor x = at::zeros({n + 1, 2}, at::kDouble);
    EXPECT_THROW(scatter_sum(x, world, 0), NotDivisible);
    EXPECT_THROW(slice(x, world, 0), NotDivisible);
    EXPECT_THROW(exchange(x, world, 0, 1), NotDivisible);
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Collectives, ::testing::Values(2, 3, 5));

TEST(Collectives, OnAGroupOfOneAreTheIdentity) {
  const auto self = make_self();
  const Tensor x = whole_numbers({2, 3, 4}, 1);
  for (const Collective& f : collectives(1)) EXPECT_TRUE(f.run(x, *self).is_same(x)) << f.name;
}

}  // namespace
}  // namespace kuafu
