// SPDX-License-Identifier: Apache-2.0
//
// Wrong attention, rotary positions and mixtures of experts.

#include <ATen/ATen.h>

#include <cmath>

#include "tests/mutants/mutant.h"
#include "tests/mutants/op_kit.h"
#include "tests/support/plans.h"

namespace kuafu::tests {
namespace {

using at::Tensor;
using torch::jit::Stack;

const Overrides kGpt = {};

void add_attention(Kit& kit) {
  const auto root_of_width = [](c10::IValue& v) {
    const Tensor q = v.toTensor();
    v = q * std::sqrt(static_cast<double>(q.size(3)));
  };
  kit.add("attention without 1 / sqrt(D)", kGpt, with_argument("attention", 0, root_of_width));
  kit.add("attention with scores times 1.001", kGpt,
          with_argument("attention", 0, [](c10::IValue& v) { v = v.toTensor() * 1.001; }));
  kit.add("attention that sees the future", kGpt, with_other_flag("attention", 3));
  kit.add("attention with one more in the denominator", kGpt,
          with_formula("attention", 0, [](const Arguments&, const Arguments& r) {
            return r[0] * r[1].sigmoid().unsqueeze(3);
          }));
  kit.add("attention's log of sums off by 0.001", kGpt,
          with_result("attention", 1, [](const Tensor& t) { return t + 0.001; }));
  for (const char* mode : {"ring", "ring-zigzag", "ulysses", "all-gather"}) {
    kit.add(text(mode, ": no mask"), keys::sequence(mode, "2"), AttentionFault::kNoMask);
  }
  for (const char* mode : {"ring", "ulysses", "all-gather"}) {
    kit.add(text(mode, ": the causal mask shifted by one"), keys::sequence(mode, "2"),
            AttentionFault::kShiftedMask);
  }
  kit.add("attention's gradient sees the future", kGpt, with_other_flag("attention_backward", 6));
  const char* const names[] = {"queries", "keys", "values"};
  for (size_t g = 0; g < 3; ++g) {
    kit.add(text("attention's gradient of ", names[g], " times 1.001"), kGpt,
            with_result_times("attention_backward", g, 1.001));
  }
  kit.add("attention's gradient without rowsum(dO O)", kGpt,
          with_argument("attention_backward", 4,
                        [](c10::IValue& v) { v = at::zeros_like(v.toTensor()); }));
  const Overrides ring = keys::sequence("ring", "2");
  const auto merge = [&](const std::string& what, std::function<void(Stack&)> change) {
    kit.add(
        "attention_merge " + what, ring,
        OpFault{.op = "attention_merge", .wrong = [change](Stack& s, const OpFault::Right& right) {
                  change(s);
                  right(s);
                }});
  };
  merge("with a part a tenth heavier", [](Stack& s) { s[3] = s[3].toTensor() + std::log(1.1); });
  merge("with the part's values times 1.001", [](Stack& s) { s[2] = s[2].toTensor() * 1.001; });
  kit.add("attention_merge keeps the old log of sums", ring,
          OpFault{.op = "attention_merge", .wrong = [](Stack& s, const OpFault::Right& right) {
                    const Tensor lse = s[1].toTensor(), before = lse.clone();
                    right(s);
                    lse.copy_(before);
                  }});
}

void add_rope(Kit& kit) {
  kit.add("rope with base 9,999", llama_overrides(),
          with_number("rope", 2, [](double b) { return b - 1; }));
  kit.add("rope backwards, gradient forwards", llama_overrides(), with_other_flag("rope", 3));
  kit.add("rope's gradient turned as the value", llama_overrides(),
          with_argument("rope", 3, [](c10::IValue& v) { v = false; }));
  kit.add("rope with pairs side by side", llama_overrides(),
          OpFault{.op = "rope", .wrong = [](Stack& s, const OpFault::Right& right) {
                    const Tensor x = s[0].toTensor();
                    const int64_t half = x.size(3) / 2;
                    const auto paired = [&](const Tensor& t) {
                      return at::cat({t.slice(3, 0, 2 * half, 2), t.slice(3, 1, 2 * half, 2)}, 3);
                    };
                    s[0] = paired(x);
                    right(s);
                    const Tensor y = s[0].toTensor();
                    const Tensor back = at::empty_like(y);
                    back.slice(3, 0, 2 * half, 2).copy_(y.narrow(3, 0, half));
                    back.slice(3, 1, 2 * half, 2).copy_(y.narrow(3, half, half));
                    s[0] = back;
                  }});
}

}  // namespace

void add_attention_kernels(Kit& kit) {
  add_attention(kit);
  add_rope(kit);
}

void add_expert_kernels(Kit& kit) {
  const Overrides o = keys::experts("1");
  const auto second = [](OpFault f) {
    f.at = 2;
    return f;
  };
  kit.add("gates times 1.001", o, with_result_times("route", 0, 1.001));
  kit.add("a router's losses times 1.001", o, with_result_times("route", 1, 1.001));
  kit.add("experts with a slot less", o, with_int("route", 3, -1));
  kit.add("tokens to one expert", o,
          with_argument("route", 2, [](c10::IValue& v) { v = int64_t{1}; }));
  kit.add("a router's gradient times 1.001", o, with_result_times("route_backward", 0, 1.001));
  kit.add("a router's gradient without the balance loss", o,
          with_number("route_backward", 8, [](double) { return 0; }));
  kit.add("a router's gradient with twice the z-loss", o,
          with_number("route_backward", 9, [](double z) { return 2 * z; }));
  kit.add("a combine without gates", o, second(with_argument("combine", 1, [](c10::IValue& v) {
            v = v.toTensor().ne(0).to(v.toTensor().scalar_type());
          })));
  kit.add("a combine's gradient of gates dropped", o, with_result_times("combine_backward", 1, 0));
  kit.add("a combine's gradient of slots times 1.001", o,
          with_result_times("combine_backward", 0, 1.001));
  kit.add("a sum of slots dropped", o, second(with_result_times("sum_slots", 0, 0)));
  const Overrides exchanged = keys::both(keys::experts("2"), {{"parallel.data", "2"}});
  kit.add("no gates in the second combine", exchanged, SlotFault::kNoGates);
  kit.add("no second combine", exchanged, SlotFault::kNoCombine);
  kit.believe("one rank weighs its balance loss twice", exchanged,
              [](Plan& p) { p.model.balance_loss *= 2; });
  kit.believe("one rank has no z-loss", exchanged, [](Plan& p) { p.model.z_loss = 0; });
}

}  // namespace kuafu::tests
