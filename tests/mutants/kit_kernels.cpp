// SPDX-License-Identifier: Apache-2.0
//
// Own ops with a wrong coefficient, epsilon, sign or term, forward and backward.

#include <ATen/ATen.h>

#include <cmath>
#include <numbers>

#include "tests/mutants/mutant.h"
#include "tests/mutants/op_kit.h"
#include "tests/support/plans.h"

namespace kuafu::tests {
namespace {

using at::Tensor;
using torch::jit::Stack;

const Overrides kPlain = {};
const Overrides kLlama = llama_overrides();

/// gelu's tanh form with coefficients of its own: its value and slope at x.
Tensor tanh_form(const Tensor& x, double root, double cubic) {
  return 0.5 * x * (1 + (root * (x + cubic * x.pow(3))).tanh());
}
Tensor tanh_slope(const Tensor& x, double root, double cubic, double inner) {
  const Tensor t = (root * (x + cubic * x.pow(3))).tanh();
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * root * (1 + inner * cubic * x * x);
}
const double kRoot = std::sqrt(2 / std::numbers::pi);
constexpr double kCubic = 0.044715;

void add_activations(Kit& kit) {
  const auto gelu = [&](const std::string& what, std::function<Tensor(const Tensor& x)> f) {
    kit.add("gelu " + what, kPlain,
            with_formula("gelu", 0, [f](const Arguments& a, const Arguments&) { return f(a[0]); }));
  };
  gelu("by the error function", [](const Tensor& x) { return at::gelu(x, "none"); });
  gelu("with 0.0447 for 0.044715", [](const Tensor& x) { return tanh_form(x, kRoot, 0.0447); });
  gelu("with 0.8 for sqrt(2 / pi)", [](const Tensor& x) { return tanh_form(x, 0.8, kCubic); });
  gelu("by the sigmoid of 1.702 x", [](const Tensor& x) { return x * (1.702 * x).sigmoid(); });
  const auto slope = [&](const std::string& what, std::function<Tensor(const Tensor& x)> f) {
    kit.add("gelu's gradient " + what, kPlain,
            with_formula("gelu_backward", 0,
                         [f](const Arguments& a, const Arguments&) { return a[0] * f(a[1]); }));
  };
  slope("by the error function",
        [](const Tensor& x) { return at::gelu_backward(at::ones_like(x), x, "none"); });
  slope("without the cube's 3", [](const Tensor& x) { return tanh_slope(x, kRoot, kCubic, 1); });
  slope("with 0.0447 for 0.044715",
        [](const Tensor& x) { return tanh_slope(x, kRoot, 0.0447, 3); });
  slope("without the inner slope",
        [](const Tensor& x) { return 0.5 * (1 + (kRoot * (x + kCubic * x.pow(3))).tanh()); });
  const auto of = [&](const std::string& mlp, const std::string& op, const std::string& what,
                      std::function<Tensor(const Arguments& a)> f) {
    kit.add(text(op, " ", what), {{"model.mlp", mlp}},
            with_formula(op, 0, [f](const Arguments& a, const Arguments&) { return f(a); }));
  };
  of("gelu_exact", "gelu_exact", "by its tanh form",
     [](const Arguments& a) { return at::gelu(a[0], "tanh"); });
  of("gelu_exact", "gelu_exact_backward", "by its tanh form",
     [](const Arguments& a) { return at::gelu_backward(a[0], a[1], "tanh"); });
  of("relu", "relu", "with a thousandth of what is below zero",
     [](const Arguments& a) { return at::leaky_relu(a[0], 1e-3); });
  of("relu", "relu_backward", "with a thousandth of what is below zero",
     [](const Arguments& a) { return at::leaky_relu_backward(a[0], a[1], 1e-3, true); });
  const auto gate = [](const Tensor& x) { return x.slice(-1, 0, x.size(-1), 2); };
  const auto up = [](const Tensor& x) { return x.slice(-1, 1, x.size(-1), 2); };
  kit.add("swiglu with gate and up the other way", kLlama,
          with_formula("swiglu", 0, [=](const Arguments& a, const Arguments&) {
            return at::silu(up(a[0])) * gate(a[0]);
          }));
  kit.add("swiglu by the sigmoid of 1.702 g", kLlama,
          with_formula("swiglu", 0, [=](const Arguments& a, const Arguments&) {
            return gate(a[0]) * (1.702 * gate(a[0])).sigmoid() * up(a[0]);
          }));
  const auto swiglu_slope = [&](const std::string& what, auto of_gate, auto of_up) {
    kit.add("swiglu's gradient " + what, kLlama,
            with_formula("swiglu_backward", 0, [=](const Arguments& a, const Arguments& r) {
              const Tensor g = gate(a[1]), s = g.sigmoid(), dx = r[0].clone();
              if (of_gate) gate(dx).copy_(a[0] * s * up(a[1]));
              if (of_up) up(dx).copy_(a[0] * g);
              return dx;
            }));
  };
  swiglu_slope("of the gate as if sigmoid were constant", true, false);
  swiglu_slope("of up without the sigmoid", false, true);
}

/// What all norms may do to their argument, result and gradient.
void add_norm(Kit& kit, const std::string& op, const Overrides& o, size_t epsilon) {
  kit.add(op + " with 1.1 times epsilon", o,
          with_number(op, epsilon, [](double e) { return 1.1 * e; }));
  kit.add(op + " with epsilon outside of the root", o,
          with_formula(op, 0, [](const Arguments& a, const Arguments& r) {
            const Tensor x = a[0].to(at::kDouble);
            const bool is_rms = r.size() == 2;
            const Tensor mean = is_rms ? at::zeros({}, x.options()) : x.mean(-1, true);
            const Tensor far = x - mean, root = far.square().mean(-1, true).sqrt() + 1e-5;
            return far / root * a[1].to(at::kDouble) + (is_rms ? mean : a[2].to(at::kDouble));
          }));
}

void add_norms(Kit& kit) {
  add_norm(kit, "layer_norm", kPlain, 3);
  add_norm(kit, "rms_norm", kLlama, 2);
  const auto scaled_by = [](double factor) {
    return [factor](const Tensor& t) { return t * factor; };
  };
  kit.add("layer_norm with the unbiased variance", kPlain,
          with_formula("layer_norm", 0, [](const Arguments& a, const Arguments& r) {
            const auto n = static_cast<double>(a[0].size(-1));
            return (r[0] - a[2]) * std::sqrt((n - 1) / n) + a[2];
          }));
  kit.add("layer_norm without its bias", keys::both(kPlain, {{"train.steps", "5"}}),
          with_formula("layer_norm", 0,
                       [](const Arguments& a, const Arguments& r) { return r[0] - a[2]; }));
  kit.add("rms_norm about the mean", kLlama,
          with_formula("rms_norm", 0, [](const Arguments& a, const Arguments&) {
            const Tensor far = a[0] - a[0].mean(-1, true);
            return far * (far.square().mean(-1, true) + 1e-5).rsqrt() * a[1];
          }));
  struct Backward {
    std::string op;
    Overrides overrides;
    size_t residual, results;
  };
  for (const Backward& b : {Backward{"layer_norm_backward", kPlain, 5, 3},
                            Backward{"rms_norm_backward", kLlama, 4, 2}}) {
    const std::string& op = b.op;
    const Overrides& o = b.overrides;
    kit.add(op + " without the residual gradient", o,
            with_argument(op, b.residual, [](c10::IValue& v) { v = c10::IValue(); }));
    kit.add(op + " twice in the weight", o, with_result(op, 1, scaled_by(2)));
    for (size_t g = 0; g < b.results; ++g) {
      kit.add(text(op, ": result ", g, " times 1.001"), o, with_result(op, g, scaled_by(1.001)));
    }
    kit.add(op + " with statistics held constant", o,
            with_formula(op, 0, [](const Arguments& a, const Arguments& r) {
              const bool is_rms = r.size() == 2;
              const Tensor& rstd = a[is_rms ? 2 : 3];
              const Tensor& weight = a[is_rms ? 3 : 4];
              const Tensor& residual = a[is_rms ? 4 : 5];
              auto shape = a[1].sizes().vec();
              shape.back() = 1;
              const Tensor dx = a[0] * weight * rstd.view(shape);
              return residual.defined() ? dx + residual : dx;
            }));
  }
  const Overrides grid = keys::tensor("2d", "4"), llama_grid = keys::both(grid, kLlama);
  const auto fewer = [](const char* op, size_t index) { return with_int(op, index, -1); };
  kit.add("norm_apply over an element less", grid, fewer("norm_apply", 4));
  kit.add("norm_apply with 1.1 times epsilon", grid,
          with_number("norm_apply", 5, [](double e) { return 1.1 * e; }));
  kit.add("norm_backward_apply over an element less", grid, fewer("norm_backward_apply", 6));
  kit.add("norm_moments of squares alone", grid,
          with_result("norm_moments", 0, [](const Tensor& m) {
            Tensor other = m.clone();
            other.select(1, 0).zero_();
            return other;
          }));
  kit.add("norm_backward_moments times 1.001", grid,
          with_result_times("norm_backward_moments", 0, 1.001));
  kit.add("rms_apply over an element less", llama_grid, fewer("rms_apply", 3));
  kit.add("rms_moments times 1.001", llama_grid, with_result_times("rms_moments", 0, 1.001));
  kit.add("rms_backward_moments dropped", llama_grid,
          with_result_times("rms_backward_moments", 0, 0));
  kit.add("rms_backward_apply without the residual gradient", llama_grid,
          with_argument("rms_backward_apply", 6, [](c10::IValue& v) { v = c10::IValue(); }));
}

void add_tables_and_loss(Kit& kit) {
  kit.add("the lookup of the id beside", kPlain, with_argument("embedding", 0, [](c10::IValue& v) {
            v = (v.toTensor() - 1).clamp_min(0);
          }));
  kit.add("the lookup times sqrt(H)", kPlain,
          with_formula("embedding", 0, [](const Arguments&, const Arguments& r) {
            return r[0] * std::sqrt(static_cast<double>(r[0].size(-1)));
          }));
  kit.add("the lookup's gradient times 1.001", kPlain,
          with_result_times("embedding_backward", 0, 1.001));
  kit.add("the lookup's gradient of the last id of a kind", kPlain,
          with_formula("embedding_backward", 0, [](const Arguments& a, const Arguments& r) {
            Tensor last = at::zeros_like(r[0]);
            const Tensor rows = a[0].reshape({-1, a[0].size(-1)}), ids = a[1].reshape(-1);
            for (int64_t i = 0; i < ids.numel(); ++i) {
              const int64_t id = ids[i].item<int64_t>();
              if (id < last.size(0)) last[id].copy_(rows[i]);
            }
            return last;
          }));
  kit.add("the loss of the target beside", kPlain,
          with_argument("cross_entropy_stats", 1,
                        [](c10::IValue& v) { v = (v.toTensor() - 1).clamp_min(0); }));
  kit.add("the loss with sums times 1.0001", kPlain,
          with_result_times("cross_entropy_stats", 1, 1.0001));
  kit.add("the loss with sums of base 2", kPlain,
          with_formula("cross_entropy_stats", 1, [](const Arguments& a, const Arguments& r) {
            return ((a[0] - r[0].unsqueeze(-1)) * std::numbers::ln2).exp().sum(-1);
          }));
  kit.add("the loss's gradient without the target", kPlain,
          with_formula("cross_entropy_backward", 0, [](const Arguments& a, const Arguments& r) {
            // softmax - onehot is at least -1 at the target and positive elsewhere.
            return r[0].clamp_min(0) + 0 * a[0];
          }));
  kit.add("the loss's gradient times 1.001", kPlain,
          with_number("cross_entropy_backward", 4, [](double s) { return 1.001 * s; }));
  kit.add("the loss's gradient at the target beside", kPlain,
          with_argument("cross_entropy_backward", 1,
                        [](c10::IValue& v) { v = (v.toTensor() - 1).clamp_min(0); }));
  kit.add("the loss's gradient without the largest taken off", kPlain,
          with_argument("cross_entropy_backward", 2,
                        [](c10::IValue& v) { v = at::zeros_like(v.toTensor()); }));
  const Overrides bert = {{"model.kind", "bert"}};
  kit.add("bert's loss with sums times 1.0001", bert,
          with_result_times("cross_entropy_stats", 1, 1.0001));
  kit.add("bert's gelu by the error function", bert,
          with_formula("gelu", 0, [](const Arguments& a, const Arguments&) {
            return at::gelu(a[0], "none");
          }));
  kit.add("bert attends causally", bert, with_other_flag("attention", 3));
}

void add_products(Kit& kit) {
  kit.add("a product times 1.001", kPlain, [] {
    OpFault f = with_result_times("matmul", 0, 1.001);
    f.at = 3;
    return f;
  }());
  kit.add("a bias' gradient without the first row", kPlain,
          with_formula("sum_rows", 0, [](const Arguments& a, const Arguments& r) {
            return r[0] - a[0].reshape({-1, a[0].size(-1)})[0];
          }));
  kit.add("a bias' gradient as a mean", kPlain,
          with_formula("sum_rows", 0, [](const Arguments& a, const Arguments& r) {
            return r[0] / (static_cast<double>(a[0].numel()) / static_cast<double>(a[0].size(-1)));
          }));
  using Product = SchemeFault::Product;
  for (const auto& [name, o] : std::vector<std::pair<std::string, Overrides>>{
           {"1D", keys::tensor("1d", "2")},
           {"2D", keys::tensor("2d", "4")},
           {"3D", keys::both(keys::tensor("3d", "8"), {{"train.micro_batch", "4"}})}}) {
    kit.add(name + " forward 3 times 1.001", o,
            SchemeFault{.product = Product::kForward, .at = 3, .factor = 1.001});
    kit.add(name + " input gradient 3 negated", o,
            SchemeFault{.product = Product::kInputGrad, .at = 3, .factor = -1});
    kit.add(name + " weight gradient 3 times 1.001", o,
            SchemeFault{.product = Product::kWeightGrad, .at = 3, .factor = 1.001});
  }
  const Overrides dropout = {{"model.dropout", "0.1"}};
  kit.add("dropout of another share", dropout,
          with_number("dropout", 1, [](double p) { return p + 0.01; }));
  kit.add("dropout without 1 / (1 - p)", dropout, with_result_times("dropout", 0, 0.9));
  kit.add("dropout of the step before", dropout, with_int("dropout", 4, -1));
  kit.add("dropout of another site", dropout, with_int("dropout", 3, 1));
}

}  // namespace

Kit kernel_kit() {
  Kit kit{.name = "kernels"};
  add_activations(kit);
  add_norms(kit);
  add_attention_kernels(kit);
  add_tables_and_loss(kit);
  add_products(kit);
  add_expert_kernels(kit);
  for (const Overrides& o : {kPlain, kLlama, keys::experts("1")}) {
    Mutant& none = kit.harmless.emplace_back(Mutant{.name = "nothing", .overrides = o});
    for (const char* op : {"matmul", "attention", "cross_entropy_backward", "adamw", "sgd"}) {
      set_fault(none, OpFault{.op = op,
                              .wrong = [](Stack& s, const OpFault::Right& right) { right(s); }});
    }
  }
  return kit;
}

}  // namespace kuafu::tests
