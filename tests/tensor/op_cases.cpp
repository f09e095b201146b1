// SPDX-License-Identifier: Apache-2.0
#include "tests/tensor/op_cases.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include "tests/tensor/support.h"

namespace kuafu::testing {
namespace {

using at::Tensor;

Tensor ids() { return (at::arange(12, at::kLong) * 5).remainder(11).view({2, 6}); }

/// Heads as a model cuts them: (B, N, S, D) over memory (B, S, N, D).
Tensor heads(int64_t salt, at::ScalarType t, int64_t n = 3, int64_t s = 6) {
  return closed_form({2, s, n, 8}, salt, t).transpose(1, 2);
}

std::vector<Case> matrix_cases() {
  using T = at::ScalarType;
  const auto out = [](T t) { return closed_form({2, 6, 3, 8}, 5, t).transpose(1, 2); };
  const auto lse = [](T t) { return closed_form({2, 6, 3}, 6, stats_type(t)).transpose(1, 2) + 3; };
  return {
      {"matmul",
       [](T t) {
         return Stack{closed_form({5, 7}, 1, t), closed_form({3, 7}, 2, t).t()};
       }},
      {"matmul_bias",
       [](T t) {
         return Stack{closed_form({5, 7}, 1, t), closed_form({7, 3}, 2, t), closed_form({3}, 3, t)};
       }},
      {"matmul_add",
       [](T t) {
         return Stack{closed_form({5, 3}, 3, t), closed_form({7, 5}, 1, t).t(),
                      closed_form({7, 3}, 2, t)};
       }},
      {"attention",
       [](T t) {
         return Stack{heads(1, t), heads(2, t), heads(3, t), true, IValue()};
       }},
      {"attention_backward",
       [=](T t) {
         return Stack{heads(4, t), heads(1, t), heads(2, t), heads(3, t),
                      out(t),      lse(t),      true,        IValue()};
       }},
  };
}

/// Grouped heads, keys of another length, none at all, and what goes with attention.
std::vector<Case> head_cases() {
  using T = at::ScalarType;
  const auto wide = [](int64_t salt, T t) { return heads(salt, stats_type(t), 4, 5); };
  const auto lse = [](int64_t salt, T t) {
    return closed_form({2, 5, 4}, salt, stats_type(t)).transpose(1, 2) + 3;
  };
  const auto positions = [](int64_t step) { return at::arange(6, at::kLong) * step; };
  std::vector<Case> cases = {
      {"attention_merge",
       [=](T t) {
         return Stack{wide(1, t), lse(2, t), heads(3, t, 4, 5), lse(4, t)};
       }},
      {"rope",
       [=](T t) {
         return Stack{heads(1, t), positions(37), 10000.0, false};
       }},
      {"rope",
       [=](T t) {
         return Stack{heads(1, t).contiguous(), positions(3), 100.0, true};
       }},
      {"rope",  // a slice of wider rows: the result is dense in the order of x
       [=](T t) {
         return Stack{closed_form({2, 6, 3, 20}, 1, t).narrow(3, 4, 8).transpose(1, 2),
                      positions(1), 10000.0, false};
       }},
  };
  for (const auto& [kv, keys] : {std::pair{2, 9}, {1, 3}, {4, 7}, {2, 0}}) {
    cases.push_back(
        {"attention", [=, n = kv, s = keys](T t) {
           return Stack{heads(1, t, 4, 5), heads(2, t, n, s), heads(3, t, n, s), false, IValue()};
         }});
    cases.push_back({"attention_backward", [=, n = kv, s = keys](T t) {
                       return Stack{heads(4, t, 4, 5),
                                    heads(1, t, 4, 5),
                                    heads(2, t, n, s),
                                    heads(3, t, n, s),
                                    heads(5, t, 4, 5),
                                    lse(6, t),
                                    false,
                                    IValue()};
                     }});
  }
  return cases;
}

/// (2, 1, 5, 9): a row without keys, and keys that some queries see.
Tensor mask(at::ScalarType t) {
  const Tensor hidden = (at::arange(90, at::kLong) * 7).remainder(3).eq(0).view({2, 1, 5, 9});
  hidden.select(2, 3).fill_(true);
  return at::zeros({2, 1, 5, 9}, t).masked_fill_(hidden, -INFINITY);
}

std::vector<Case> document_cases() {
  using T = at::ScalarType;
  const auto lse = [](T t) {
    const Tensor all = closed_form({2, 5, 4}, 6, stats_type(t)).transpose(1, 2) + 3;
    all.select(2, 3).fill_(-INFINITY);
    return all;
  };
  const Tensor first = at::tensor({0, 0, 2, 2, 4, 0, 1, 1, 1, 1}, at::kLong).view({2, 5});
  return {
      {"document_mask",
       [=](T t) {
         return Stack{first, std::vector<int64_t>{4, 0, 2}, std::vector<int64_t>{0, 1, 2, 4}, t};
       }},
      {"attention",
       [=](T t) {
         return Stack{heads(1, t, 4, 5), heads(2, t, 2, 9), heads(3, t, 2, 9), false, mask(t)};
       }},
      {"attention_backward", [=](T t) {
         return Stack{heads(4, t, 4, 5),
                      heads(1, t, 4, 5),
                      heads(2, t, 2, 9),
                      heads(3, t, 2, 9),
                      heads(5, t, 4, 5),
                      lse(t),
                      false,
                      mask(t)};
       }}};
}

std::vector<Case> norm_cases() {
  using T = at::ScalarType;
  const auto x = [](T t) { return closed_form({2, 6, 16}, 1, t); };
  const auto dy = [](T t) { return closed_form({2, 6, 16}, 2, t); };
  const auto w = [](T t) { return closed_form({16}, 3, t); };
  const auto mean = [](T t) { return closed_form({12}, 4, stats_type(t)) * 0.1; };
  const auto rstd = [](T t) { return closed_form({12}, 5, stats_type(t)) + 2; };
  const auto moments = [] {
    return (closed_form({12, 2}, 6) + at::tensor({0.0, 30.0}, at::kDouble)).contiguous();
  };
  const auto squares = [] { return closed_form({12}, 6) + 30; };
  const auto residual = [](T t) { return closed_form({2, 6, 16}, 7, t); };
  const IValue none;
  return {
      {"layer_norm",
       [=](T t) {
         return Stack{x(t), w(t), w(t), 1e-5};
       }},
      {"layer_norm_backward",
       [=](T t) { return Stack{dy(t), x(t), mean(t), rstd(t), w(t), none}; }},
      {"layer_norm_backward",
       [=](T t) { return Stack{dy(t), x(t), mean(t), rstd(t), w(t), residual(t)}; }},
      {"norm_moments", [=](T t) { return Stack{x(t)}; }},
      {"norm_apply", [=](T t) { return Stack{x(t), moments(), w(t), w(t), 32, 1e-5}; }},
      {"norm_backward_moments",
       [=](T t) {
         return Stack{dy(t), x(t), mean(t), rstd(t), w(t)};
       }},
      {"norm_backward_apply",
       [=](T t) { return Stack{dy(t), x(t), mean(t), rstd(t), w(t), moments(), 32, none}; }},
      {"norm_backward_apply",
       [=](T t) { return Stack{dy(t), x(t), mean(t), rstd(t), w(t), moments(), 32, residual(t)}; }},
      {"rms_norm",
       [=](T t) {
         return Stack{x(t), w(t), 1e-5};
       }},
      {"rms_norm_backward",
       [=](T t) {
         return Stack{dy(t), x(t), rstd(t), w(t), none};
       }},
      {"rms_norm_backward",
       [=](T t) {
         return Stack{dy(t), x(t), rstd(t), w(t), residual(t)};
       }},
      {"rms_moments", [=](T t) { return Stack{x(t)}; }},
      {"rms_apply",
       [=](T t) {
         return Stack{x(t), squares(), w(t), 32, 1e-5};
       }},
      {"rms_backward_moments",
       [=](T t) {
         return Stack{dy(t), x(t), rstd(t), w(t)};
       }},
      {"rms_backward_apply",
       [=](T t) { return Stack{dy(t), x(t), rstd(t), w(t), squares(), 32, none}; }},
      {"rms_backward_apply",
       [=](T t) { return Stack{dy(t), x(t), rstd(t), w(t), squares(), 32, residual(t)}; }},
      {"split_heads",
       [](T t) {
         return Stack{closed_form({2, 6, 48}, 1, t), 8, 3};
       }},
      {"join_heads",
       [](T t) {
         return Stack{c10::List<Tensor>({heads(1, t), heads(2, t), heads(3, t)})};
       }},
      {"add_bias",
       [=](T t) {
         return Stack{x(t), closed_form({x(t).size(-1)}, 4, t)};
       }},
      {"sum_rows", [=](T t) { return Stack{x(t)}; }},
      {"sum_rows",
       [=](T t) {
         return Stack{closed_form({16, 12}, 1, t).t()};
       }},
      {"gelu", [=](T t) { return Stack{x(t)}; }},
      {"swiglu", [=](T t) { return Stack{x(t)}; }},
      {"swiglu_backward",
       [=](T t) {
         return Stack{closed_form({2, 6, 8}, 2, t), x(t)};
       }},
      {"gelu_backward",
       [=](T t) {
         return Stack{dy(t), x(t)};
       }},
      {"gelu_exact", [=](T t) { return Stack{x(t)}; }},
      {"gelu_exact_backward",
       [=](T t) {
         return Stack{dy(t), x(t)};
       }},
      {"relu", [=](T t) { return Stack{x(t)}; }},
      {"relu_backward",
       [=](T t) {
         return Stack{dy(t), x(t).relu()};
       }},
  };
}

std::vector<Case> token_cases() {
  using T = at::ScalarType;
  const auto key = [](Stack s) {
    for (const int64_t v : {7, 3, 2}) s.emplace_back(v);
    s.emplace_back(std::vector<int64_t>{4, 6, 40});
    s.emplace_back(std::vector<int64_t>{1, 0, 17});
    return s;
  };
  const auto stat = [](int64_t salt, T t) { return closed_form({2, 6}, salt, stats_type(t)) + 2; };
  return {
      {"embedding",
       [](T t) {
         return Stack{ids(), closed_form({5, 16}, 1, t), 4};
       }},
      {"embedding_backward",
       [](T t) {
         return Stack{closed_form({2, 6, 16}, 1, t), ids(), 4, 5};
       }},
      {"cross_entropy_stats",
       [](T t) {
         return Stack{closed_form({2, 6, 8}, 1, t), ids(), 5, 11};
       }},
      {"cross_entropy_backward",
       [=](T t) {
         return Stack{closed_form({2, 6, 8}, 1, t), ids(), stat(2, t), stat(3, t), 0.5, 5, 11};
       }},
      {"dropout",
       [=](T t) {
         return key(Stack{closed_form({2, 6, 16}, 1, t), 0.4});
       }},
      {"sum_of_squares",
       [](T t) {
         return Stack{closed_form({9, 4}, 1, t).t()};
       }},
  };
}

/// a, b and c of five iterations.
std::vector<double> coefficients() {
  std::vector<double> all;
  for (int i = 0; i < 5; ++i) all.insert(all.end(), {3.4445, -4.775, 2.0315});
  return all;
}

std::vector<Case> update_cases() {
  using T = at::ScalarType;
  const auto wide = [](int64_t salt, T t) { return closed_form({33}, salt, stats_type(t)); };
  return {
      {"adamw",
       [=](T t) {
         return Stack{wide(1, t), closed_form({33}, 2, t),
                      wide(3, t), wide(4, t).square(),
                      0.1,        0.9,
                      0.99,       1e-8,
                      0.01,       3,
                      0.5};
       }},
      {"sgd",
       [=](T t) {
         return Stack{wide(1, t), closed_form({33}, 2, t), wide(3, t), 0.1, 0.9, 0.01, 0.5};
       }},
      {"adam",
       [=](T t) {
         return Stack{wide(1, t), closed_form({33}, 2, t),
                      wide(3, t), wide(4, t).square(),
                      0.1,        0.9,
                      0.99,       1e-8,
                      0.01,       3,
                      0.5};
       }},
      {"nesterov",
       [=](T t) {
         return Stack{wide(1, t), closed_form({33}, 2, t), wide(3, t), 0.1, 0.9, 0.01, 0.5};
       }},
      // Elements 5 to 37 of a shard (2, 3, 8) with two tensors in turns of two columns, from 6 on.
      {"lamb_norms",
       [=](T t) {
         return Stack{wide(1, t),
                      closed_form({33}, 2, t),
                      wide(3, t),
                      wide(4, t).square(),
                      0.9,
                      0.99,
                      1e-8,
                      0.01,
                      3,
                      0.5,
                      std::vector<int64_t>{5, 8, 24, 2, 2, 6},
                      4,
                      t == at::kFloat || t == at::kDouble};
       }},
      {"layer_step",
       [=](T t) {
         return Stack{wide(1, t), wide(3, t), closed_form({4}, 5).abs(),
                      std::vector<int64_t>{5, 8, 24, 2, 2, 6}};
       }},
      {"lamb",
       [=](T t) {
         return Stack{wide(1, t),
                      wide(3, t),
                      wide(4, t).square(),
                      closed_form({4}, 5).abs(),
                      0.9,
                      0.99,
                      1e-8,
                      0.01,
                      3,
                      std::vector<int64_t>{5, 8, 24, 2, 2, 6}};
       }},
      {"lars_norms",
       [=](T t) {
         return Stack{wide(1, t),
                      closed_form({33}, 2, t),
                      0.5,
                      0.01,
                      std::vector<int64_t>{5, 8, 24, 2, 2, 6},
                      4};
       }},
      {"lars",
       [=](T t) {
         return Stack{wide(1, t), closed_form({33}, 2, t),
                      wide(3, t), closed_form({4}, 5).abs(),
                      0.9,        0.01,
                      0.5,        0.3,
                      0.2,        std::vector<int64_t>{5, 8, 24, 2, 2, 6}};
       }},
      {"lars",
       [=](T t) {
         return Stack{wide(1, t), closed_form({33}, 2, t),
                      wide(3, t), closed_form({4, 2}, 5).abs(),
                      0.9,        0.01,
                      0.5,        0.3,
                      0.2,        std::vector<int64_t>{5, 8, 24, 2, 2, 6}};
       }},
      {"momentum",
       [=](T t) {
         return Stack{wide(3, t), closed_form({33}, 2, t), 0.9, 0.5};
       }},
      {"momentum_ahead",
       [=](T t) {
         return Stack{wide(3, t), closed_form({33}, 2, t), 0.9, 0.5};
       }},
      {"decayed_step",
       [=](T t) {
         return Stack{wide(1, t), wide(2, t), 0.1, 0.01};
       }},
      {"newton_schulz",  // two wide matrices in turns of three columns
       [=](T t) {
         return Stack{closed_form({4, 12}, 1, stats_type(t)), coefficients(), 1e-7, 2, 3, 1.5};
       }},
      {"newton_schulz",
       [=](T t) {
         return Stack{closed_form({9, 4}, 1, stats_type(t)), coefficients(), 1e-7, 1, 4, 1.0};
       }},
  };
}

/// 2 samples of 6 tokens, 3 experts with 3 slots each.
std::vector<Case> expert_cases() {
  using T = at::ScalarType;
  const auto token = [] {
    return at::tensor({0, 2, -1, 1, 4, 5, 3, -1, -1, 5, 1, -1, 0, 2, 3, 4, -1, -1}, at::kLong)
        .view({2, 3, 3});
  };
  const auto logits = [](int64_t salt, T t) { return closed_form({2, 6, 3}, salt, stats_type(t)); };
  const auto slots = [](T t) { return closed_form({3, 2, 3, 16}, 4, t); };
  const auto gates = [](int64_t salt, T t) { return closed_form({2, 3, 3}, salt, stats_type(t)); };
  const auto x = [](T t) { return closed_form({2, 6, 16}, 1, t); };
  const auto norm = [](T t) { return closed_form({2, 6}, 3, stats_type(t)) + 4; };
  const auto chosen = [] {
    return at::stack({at::arange(12, at::kLong).remainder(3),
                      (at::arange(12, at::kLong) + 1).remainder(3)},
                     -1)
        .view({2, 6, 2});
  };
  const auto coin = [] { return at::arange(12, at::kDouble).view({2, 6}) / 12; };
  return {
      {"route",
       [=](T t) {
         return Stack{logits(2, t), coin(), 2, 3, 4};
       }},
      {"route_backward",
       [=](T t) {
         return Stack{gates(1, t), gates(2, t), token(),  at::softmax(logits(3, t), -1),
                      norm(t),     norm(t),     chosen(), closed_form({2, 3}, 5, stats_type(t)),
                      0.5,         0.25};
       }},
      {"local_rows",
       [=](T) {
         return Stack{token(), (at::arange(6, at::kLong) * 5).remainder(7) - 1};
       }},
      {"take_slots",
       [=](T t) {
         return Stack{x(t), token()};
       }},
      {"sum_slots",
       [=](T t) {
         return Stack{slots(t), token(), 6};
       }},
      {"combine",
       [=](T t) {
         return Stack{slots(t), gates(2, t), token(), 6};
       }},
      {"combine_backward",
       [=](T t) {
         return Stack{x(t), slots(t), gates(2, t), token()};
       }},
  };
}

}  // namespace

std::vector<Case> all_cases() {
  std::vector<Case> all;
  for (const auto& some : {matrix_cases(), head_cases(), document_cases(), norm_cases(),
                           token_cases(), update_cases(), expert_cases()}) {
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

std::vector<Tensor> tensors_of(const Stack& stack) {
  std::vector<Tensor> tensors;
  for (const IValue& v : stack) {
    if (v.isTensor()) tensors.push_back(v.toTensor());
    if (v.isTensorList()) {
      for (const Tensor& t : v.toTensorVector()) tensors.push_back(t);
    }
  }
  return tensors;
}

std::vector<Tensor> call(const std::string& name, const Stack& arguments) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), "");
  Stack stack = arguments;
  op.callBoxed(&stack);
  stack.insert(stack.end(), arguments.begin(), arguments.end());
  return tensors_of(stack);
}

}  // namespace kuafu::testing
