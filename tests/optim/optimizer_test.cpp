// SPDX-License-Identifier: Apache-2.0
#include "kuafu/optim/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kuafu/base/errors.h"
#include "kuafu/meter/book.h"
#include "tests/tensor/support.h"

namespace kuafu {
namespace {

using testing::closed_form;

constexpr int kSteps = 3;

Tensor gradient(at::IntArrayRef sizes, int step) { return closed_form(sizes, 100 + step); }

Param param_of(const std::string& name, const Tensor& value) {
  Param p;
  p.name = name;
  p.global = p.padded = shape_of(value);
  p.layout = Layout::replicated(p.global.size());
  p.value = value;
  return p;
}

/// kSteps steps over one parameter starting at closed_form(sizes, 1); its value after them.
Tensor train(const OptimizerPlan& plan, at::ScalarType type) {
  const Param p = param_of("w", closed_form({5, 4}, 1, type).requires_grad_(true));
  const auto optimizer = make_optimizer(plan);
  for (int t = 0; t < kSteps; ++t) {
    std::vector<ParamShard> shards = {{p.value, gradient({5, 4}, t).to(type), &p, {}}};
    optimizer->step(shards, plan.lr);
  }
  return p.value.detach();
}

double adamw_oracle(const OptimizerPlan& o, double w, const std::vector<double>& grads) {
  double m = 0, v = 0;
  for (size_t t = 1; t <= grads.size(); ++t) {
    const double g = grads[t - 1];
    w -= o.lr * o.weight_decay * w;
    m = o.beta1 * m + (1 - o.beta1) * g;
    v = o.beta2 * v + (1 - o.beta2) * g * g;
    const double mhat = m / (1 - std::pow(o.beta1, t)), vhat = v / (1 - std::pow(o.beta2, t));
    w -= o.lr * mhat / (std::sqrt(vhat) + o.epsilon);
  }
  return w;
}

double sgd_oracle(const OptimizerPlan& o, double w, const std::vector<double>& grads) {
  double u = 0;
  for (const double g : grads) {
    u = o.momentum * u + g + o.weight_decay * w;
    w -= o.lr * u;
  }
  return w;
}

void expect_equals_oracle(const OptimizerPlan& plan, at::ScalarType type, double tolerance) {
  const Tensor start = closed_form({5, 4}, 1, type).to(at::kDouble),
               end = train(plan, type).to(at::kDouble);
  for (int64_t i = 0; i < 20; ++i) {
    std::vector<double> grads;
    for (int t = 0; t < kSteps; ++t) {
      grads.push_back(gradient({5, 4}, t).to(type).view(-1)[i].item<double>());
    }
    const double w = start.view(-1)[i].item<double>();
    const double expected =
        plan.kind == "sgd" ? sgd_oracle(plan, w, grads) : adamw_oracle(plan, w, grads);
    EXPECT_NEAR(end.view(-1)[i].item<double>(), expected, tolerance)
        << plan.kind << " element " << i;
  }
}

OptimizerPlan plan_of(const std::string& kind) {
  OptimizerPlan plan;
  plan.kind = kind;
  plan.lr = 0.05;
  plan.weight_decay = 0.1;
  return plan;
}

// About ten roundings a step of values near one; in half precision the last rounding of the result
// is all that the master copy leaves.
TEST(Optimizer, ThreeStepsEqualTheDefinition) {
  for (const char* kind : {"adamw", "sgd"}) {
    expect_equals_oracle(plan_of(kind), at::kDouble, 10 * kSteps * 0x1.0p-52);
    expect_equals_oracle(plan_of(kind), at::kFloat, 10 * kSteps * 0x1.0p-23);
    expect_equals_oracle(plan_of(kind), at::kBFloat16, 0x1.0p-8);
  }
}

TEST(Optimizer, KeepsSmallStepsOfHalfPrecisionInItsMasterCopy) {
  OptimizerPlan plan = plan_of("sgd");
  plan.momentum = plan.weight_decay = 0;
  const Param p = param_of("w", at::ones({4}, at::kBFloat16));
  const auto optimizer = make_optimizer(plan);
  for (int t = 0; t < 100; ++t) {
    std::vector<ParamShard> shards = {{p.value, at::ones({4}, at::kBFloat16), &p, {}}};
    optimizer->step(shards, 1e-3);  // a bf16 near one cannot hold 0.999
  }
  EXPECT_NEAR(p.value[0].item<double>(), 0.9, 0x1.0p-8);
}

TEST(Optimizer, StateIsNamedTypedAndBookedAsOptimizer) {
  RankBook book(0);
  const BookScope scope(&book);
  for (const auto& [kind, type, names] :
       std::vector<std::tuple<std::string, at::ScalarType, std::vector<std::string>>>{
           {"adamw", at::kFloat, {"m", "v"}},
           {"adamw", at::kBFloat16, {"m", "v", "master"}},
           {"sgd", at::kDouble, {"velocity"}},
           {"sgd", at::kBFloat16, {"velocity", "master"}},
           {"adam", at::kDouble, {"m", "v"}},
           {"lars", at::kBFloat16, {"velocity", "master"}},
           {"lamb", at::kFloat, {"m", "v"}}}) {
    const Param p = param_of("w", at::ones({16}, type));
    const auto optimizer = make_optimizer(plan_of(kind));
    EXPECT_TRUE(optimizer->state().tensors.empty());
    std::vector<ParamShard> shards = {{p.value, at::ones({16}, type), &p, {}}};
    optimizer->begin(shards);
    for (int64_t step = 0; step < 2; ++step) {
      std::vector<std::string> found;
      int64_t bytes = 0;
      EXPECT_EQ(optimizer->state().num_steps, step);
      for (const SlotTensor& s : optimizer->state().tensors) {
        EXPECT_EQ(s.param, "w");
        found.push_back(s.slot);
        bytes += static_cast<int64_t>(s.tensor.nbytes());
        EXPECT_EQ(s.tensor.scalar_type(), type == at::kBFloat16 ? at::kFloat : type);
      }
      EXPECT_EQ(found, names);
      EXPECT_EQ(book.live_by_category()[static_cast<size_t>(Category::kOptimizer)], bytes);
      optimizer->step(shards, 0.1);
    }
  }
}

TEST(Optimizer, RestoredGoesOnToTheBit) {
  for (const char* kind : {"adamw", "sgd", "adam", "lars", "lamb"}) {
    for (const at::ScalarType type : {at::kDouble, at::kBFloat16}) {
      const Tensor uninterrupted = train(plan_of(kind), type);
      const Param p = param_of("w", closed_form({5, 4}, 1, type));
      auto optimizer = make_optimizer(plan_of(kind));
      for (int t = 0; t < kSteps; ++t) {
        std::vector<ParamShard> shards = {{p.value, gradient({5, 4}, t).to(type), &p, {}}};
        auto resumed = make_optimizer(plan_of(kind));
        if (t > 0) resumed->restore(shards, optimizer->state());
        optimizer = std::move(resumed);
        optimizer->step(shards, plan_of(kind).lr);
        EXPECT_EQ(optimizer->state().num_steps, t + 1);
      }
      EXPECT_TRUE(at::equal(p.value, uninterrupted)) << kind << " " << type;
    }
  }
}

TEST(Optimizer, RefusesTheStateOfOtherParameters) {
  const Param w = param_of("w", at::ones({4})), longer = param_of("w", at::ones({5})),
              other = param_of("x", at::ones({4}));
  const auto optimizer = make_optimizer(plan_of("adamw"));
  std::vector<ParamShard> shards = {{w.value, at::ones({4}), &w, {}}};
  optimizer->step(shards, 0.1);
  for (const Param* p : {&longer, &other}) {
    const std::vector<ParamShard> theirs = {{p->value, at::ones_like(p->value), p, {}}};
    EXPECT_THROW(make_optimizer(plan_of("adamw"))->restore(theirs, optimizer->state()),
                 ConfigError);
  }
  EXPECT_THROW(make_optimizer(plan_of("sgd"))->restore(shards, optimizer->state()), ConfigError);
}

TEST(Optimizer, HasTheSameBooksOnMeta) {
  for (const char* kind : {"adamw", "sgd", "adam", "lars", "lamb"}) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      std::vector<RankBook> books;
      books.reserve(2);
      for (const at::Device device : {at::Device(at::kCPU), at::Device(at::kMeta)}) {
        const BookScope scope(&books.emplace_back(0));
        const auto options = at::TensorOptions(type).device(device);
        const Param p = param_of("w", at::ones({16}, options));
        const auto optimizer = make_optimizer(plan_of(kind));
        for (int t = 0; t < 2; ++t) {
          std::vector<ParamShard> shards = {{p.value, at::ones({16}, options), &p, {}}};
          optimizer->step(shards, 0.1);
        }
      }
      EXPECT_EQ(books[0].peak(), books[1].peak()) << kind;
      EXPECT_EQ(books[0].at_peak(), books[1].at_peak()) << kind;
      EXPECT_EQ(books[0].bytes_moved(), books[1].bytes_moved()) << kind;
    }
  }
}

TEST(Optimizer, RefusesUnknownKindsIllegalBetasAndChangedShards) {
  OptimizerPlan plan;
  plan.kind = "lion";
  EXPECT_THROW(make_optimizer(plan), ConfigError);
  plan.kind = "adamw";
  plan.beta2 = 1;
  EXPECT_THROW(make_optimizer(plan), ConfigError);
  plan.kind = "sgd";
  plan.momentum = -0.1;
  EXPECT_THROW(make_optimizer(plan), ConfigError);

  const Param p = param_of("w", at::ones({2}));
  const auto optimizer = make_optimizer(plan_of("sgd"));
  std::vector<ParamShard> shards = {{p.value, at::ones({2}), &p, {}}};
  optimizer->step(shards, 0.1);
  shards.push_back(shards[0]);
  EXPECT_THROW(optimizer->step(shards, 0.1), InternalError);
}

TEST(Optimizer, KeepsTheStateOfWhatAStepDoesNotUse) {
  const Param a = param_of("a", at::ones({2}, at::kDouble)), b = param_of("b", a.value.clone()),
              c = param_of("c", a.value.clone());
  const auto shard = [](const Param& p) {
    return ParamShard{p.value, at::ones({2}, at::kDouble), &p, {}};
  };
  const auto optimizer = make_optimizer(plan_of("sgd"));
  std::vector<ParamShard> all = {shard(a), shard(b), shard(c)}, some = {shard(a), shard(c)};
  optimizer->begin(all);
  optimizer->step(some, 0.1);
  std::vector<double> velocities;
  for (const SlotTensor& t : optimizer->state().tensors) {
    velocities.push_back(t.tensor[0].item<double>());
  }
  EXPECT_EQ(velocities[1], 0);
  EXPECT_NE(velocities[0], 0);
  EXPECT_EQ(velocities[0], velocities[2]);
  EXPECT_EQ(b.value[0].item<double>(), 1);
  std::vector<ParamShard> turned = {shard(c), shard(a)};
  EXPECT_THROW(optimizer->step(turned, 0.1), InternalError);
}

}  // namespace
}  // namespace kuafu
