// SPDX-License-Identifier: Apache-2.0
//
// The formulas that stand in the files of rules beside the loops that are these in one pass over
// memory, and which of both a rule runs.
#include "kuafu/optim/formulas.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <functional>

#include "kuafu/base/kernel_choice.h"
#include "kuafu/meter/book.h"
#include "kuafu/optim/rule.h"
#include "tests/tensor/support.h"

namespace kuafu {
namespace {

using testing::closed_form;

/// What an update reads and changes: value, gradient, two slots.
using Tensors = std::vector<Tensor>;
Tensors given(at::ScalarType value, at::ScalarType grad) {
  return {closed_form({33}, 1, value), closed_form({33}, 2, grad), closed_form({33}, 3, value),
          closed_form({33}, 4, value).square()};
}

struct Case {
  std::string name;
  std::function<void(Tensors&t)> loop, formula;
};

/// One layer; three beside each other in rows of 6, from the middle of a row on; of experts, each with
/// two.
std::vector<ops::LayerRun> runs() {
  return {{.columns = 33},
          {.first = 2, .columns = 6, .parts = 3, .width = 2, .layers = 3},
          {.columns = 4, .stacked = 12, .parts = 2, .width = 2, .layers = 6}};
}

/// Numbers of layers, (layers[, columns]) f64.
Tensor of_layers(const ops::LayerRun& run, int64_t columns = 0) {
  const Shape shape = columns == 0 ? Shape{run.layers} : Shape{run.layers, columns};
  return closed_form(shape, 5, at::kDouble).abs() + 0.1;
}

void add_lars(std::vector<Case>& all, const ops::LayerRun& run) {
  for (const double most : {0.0, 0.3}) {
    const ops::SgdArgs a{0.1, 0.9, 0.01, 0.5, most};
    for (const int64_t columns : {0, 2}) {
      const Tensor rates = of_layers(run, columns);
      all.push_back({text("lars of ", run.layers, ", rates ", columns, ", at most ", most),
                     [=](Tensors& t) { ops::lars(t[0], t[1], t[2], rates, a, run); },
                     [=](Tensors& t) { formulas::lars(t[0], t[1], t[2], rates, a, run); }});
    }
  }
  all.push_back(
      {text("lars' norms of ", run.layers),
       [=](Tensors& t) { t.push_back(ops::lars_norms(t[0], t[1], 0.5, run, 0.01)); },
       [=](Tensors& t) { t.push_back(formulas::lars_norms(t[0], t[1], 0.5, run, 0.01)); }});
}

/// Both passes, r kept between them or made again.
void add_lamb(std::vector<Case>& all, const ops::LayerRun& run) {
  const auto rates = of_layers(run);
  for (const int64_t step : {0, 3}) {
    const ops::LambArgs a{0.9, 0.99, 1.0, 0.01, step, 0.5};
    all.push_back({text("lamb of ", run.layers, ", step ", step),
                   [=](Tensors& t) {
                     t.push_back(
                         ops::lamb_norms(t[0], t[1], t[2], t[3], a, run, formulas::lamb_norms));
                     ops::lamb(t[0], t[2], t[3], rates, a, run, formulas::lamb);
                   },
                   [=](Tensors& t) {
                     t.push_back(formulas::lamb_norms(t[0], t[1], t[2], t[3], a, run));
                     formulas::lamb(t[0], t[2], t[3], rates, a, run);
                   }});
    ops::LambArgs keeping = a;
    keeping.keeps_direction = true;
    const auto spare = [](Tensors& t) { t[1] = t[1].to(t[0].scalar_type()); };
    all.push_back(
        {text("lamb of ", run.layers, ", step ", step, ", r kept"),
         [=](Tensors& t) {
           spare(t);
           t.push_back(ops::lamb_norms(t[0], t[1], t[2], t[3], keeping, run, formulas::lamb_norms));
           ops::layer_step(t[0], t[1], rates, run, formulas::layer_step);
         },
         [=](Tensors& t) {
           spare(t);
           t.push_back(formulas::lamb_norms(t[0], t[1], t[2], t[3], keeping, run));
           formulas::layer_step(t[0], t[1], rates, run);
         }});
  }
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const double beta1 : {0.9, 0.1, 0.0}) {
    const ops::AdamWArgs a{0.1, beta1, 0.99, 1e-3, 0.01, 3, 0.5};
    all.push_back({text("adam, beta1 ", beta1),
                   [a](Tensors& t) { ops::adam(t[0], t[1], t[2], t[3], a); },
                   [a](Tensors& t) { formulas::adam(t[0], t[1], t[2], t[3], a); }});
    all.push_back({text("adamw, beta1 ", beta1),
                   [a](Tensors& t) { ops::adamw(t[0], t[1], t[2], t[3], a); },
                   [a](Tensors& t) { formulas::adamw(t[0], t[1], t[2], t[3], a); }});
  }
  const ops::SgdArgs s{0.1, 0.9, 0.01, 0.5};
  all.push_back({"sgd", [s](Tensors& t) { ops::sgd(t[0], t[1], t[2], s); },
                 [s](Tensors& t) { formulas::heavy_ball(t[0], t[1], t[2], s); }});
  all.push_back({"nesterov", [s](Tensors& t) { ops::nesterov(t[0], t[1], t[2], s); },
                 [s](Tensors& t) { formulas::nesterov(t[0], t[1], t[2], s); }});
  for (const ops::LayerRun& run : runs()) {
    add_lars(all, run);
    add_lamb(all, run);
  }
  return all;
}

struct Types {
  at::ScalarType value, grad;
};
const std::vector<Types> kTypes = {{at::kDouble, at::kDouble},
                                   {at::kFloat, at::kFloat},
                                   {at::kFloat, at::kBFloat16},
                                   {at::kFloat, at::kHalf}};

// Some thirty roundings of numbers of at most 8, before a quotient and its product (as OpWalk has it).
TEST(Formulas, AreWhatTheLoopsMake) {
  const at::NoGradGuard no_grad;
  for (const Case& c : cases()) {
    for (const auto& [value, grad] : kTypes) {
      Tensors loop = given(value, grad), formula = given(value, grad);
      c.loop(loop);
      c.formula(formula);
      const double eps = value == at::kDouble ? 0x1.0p-52 : 0x1.0p-23;
      for (size_t i = 0; i < loop.size(); ++i) {
        testing::expect_close(loop[i], formula[i], 36 * 8 * 4 * eps, text(c.name, " tensor ", i));
      }
    }
  }
}

// A small beta1, for which ATen's own kernel is not asked: the formula itself runs, or the loop, whose
// bits are others somewhere; booked alike.
TEST(Formulas, RunWhereTheEnvironmentAsksForThem) {
  const at::NoGradGuard no_grad;
  int64_t of_loop = 0, of_formula = 0;
  for (const char* kind : {"adam", "adamw", "sgd"}) {
    OptimizerPlan plan{.kind = kind};
    plan.momentum = 0.9, plan.beta1 = 0.1, plan.beta2 = 0.99, plan.epsilon = 1e-3;
    const Rule rule = make_rule(plan);
    const Tensors t = given(at::kFloat, at::kFloat);
    RulePiece piece{.value = t[0].clone(), .grad = t[1], .slots = {t[2].clone(), t[3].clone()}};
    piece.grad_factor = 0.5, piece.weight_decay = 0.01;
    RankBook book(0);
    {
      const BookScope scope(&book);
      rule.update(piece, {.lr = 0.1, .step = 3}, {});
    }
    const bool has_two = rule.slots.size() == 2;
    EXPECT_EQ(book.bytes_moved(), 33 * (has_two ? 28 : 20)) << kind;
    for (const Case& c : cases()) {
      if (c.name != (has_two ? text(kind, ", beta1 0.1") : kind)) continue;
      Tensors loop = given(at::kFloat, at::kFloat), formula = given(at::kFloat, at::kFloat);
      c.loop(loop);
      c.formula(formula);
      of_loop += piece.value.equal(loop[0]) ? 0 : 1;
      of_formula += piece.value.equal(formula[0]) ? 0 : 1;
    }
  }
  EXPECT_EQ(of_formula == 0, kernel_choice() == KernelChoice::kAten) << of_formula;
  EXPECT_EQ(of_loop == 0, kernel_choice() == KernelChoice::kOwn) << of_loop;
}

// At a usual beta1: ATen's fused kernel where KUAFU_KERNELS asks for ATen's, else the loop.
TEST(Formulas, RulesMakeWhatTheLoopsMake) {
  const at::NoGradGuard no_grad;
  for (const char* name : {"adam, beta1 0.9", "adamw, beta1 0.9", "sgd", "nesterov"}) {
    const std::string words = name,
                      kind = words == "nesterov" ? "sgd" : words.substr(0, words.find(','));
    OptimizerPlan plan{.kind = kind};
    plan.nesterov = words == "nesterov";
    plan.momentum = plan.beta1 = 0.9, plan.beta2 = 0.99, plan.epsilon = 1e-3;
    const Rule rule = make_rule(plan);
    for (const auto& [value, grad] : kTypes) {
      Tensors mine = given(value, grad), loop = given(value, grad);
      RulePiece piece{.value = mine[0], .grad = mine[1], .slots = {mine[2], mine[3]}};
      piece.slots.resize(rule.slots.size());
      piece.grad_factor = 0.5, piece.weight_decay = 0.01;
      rule.update(piece, {.lr = 0.1, .step = 3}, {});
      for (const Case& c : cases()) {
        if (c.name == words) c.loop(loop);
      }
      const double eps = value == at::kDouble ? 0x1.0p-52 : 0x1.0p-23;
      for (size_t i = 0; i < loop.size(); ++i) {
        testing::expect_close(mine[i], loop[i], 36 * 8 * 4 * eps, text(words, " tensor ", i));
      }
    }
  }
}

}  // namespace
}  // namespace kuafu
