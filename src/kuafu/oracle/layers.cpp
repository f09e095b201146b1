// SPDX-License-Identifier: Apache-2.0
#include "kuafu/oracle/layers.h"

#include <cmath>
#include <limits>
#include <numbers>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "kuafu/base/errors.h"
#include "kuafu/oracle/random.h"

namespace kuafu::oracle {
namespace {

/// x less the largest of its row, which changes no softmax and has no gradient.
Tensor below_largest(const Tensor& x) { return x - x.detach().amax(-1, true); }

Tensor rows(const Tensor& x) { return x.reshape({-1, x.size(-1)}); }

/// |x|^T |dy|: the absolute terms of x^T dy.
Tensor product_terms(const Tensor& x, const Tensor& dy) {
  return at::matmul(rows(widened(x).abs()).t(), rows(widened(dy).abs()));
}

/// Turns the pair (x_d, x_(d + D/2)) at position s by the angle s base^(-2 d / D). x (B, N, S, D).
///               [Su et al., arXiv 2104.09864, equation 34; pairs half a head apart, as GPT-NeoX]
Tensor rotate(const Tensor& x, double base) {
  const int64_t sequence = x.size(2), half = x.size(3) / 2;
  const Tensor place = at::arange(sequence, at::kDouble).unsqueeze(1);
  const Tensor rate = at::pow(base, at::arange(half, at::kDouble) / -half);
  const Tensor in = widened(x), angle = place * rate;  // (S, D/2)
  const Tensor c = angle.cos().to(in.options()), s = angle.sin().to(in.options());
  const Tensor a = in.narrow(3, 0, half), b = in.narrow(3, half, half);
  return at::cat({a * c - b * s, b * c + a * s}, 3).to(x.scalar_type());
}

/// Queries (B, N, S, D), keys and values (B, N, S, D), those of a group of query heads repeated.
///
/// The columns of one head lie together: column (3 n + i) D + d of "qkv" is element d of query (i =
/// 0), key (1) or value (2) of head n. With fewer key-value heads column n D + d of "q" is a query
/// and (2 n + i) D + d of "kv" a key or value; query head n reads key-value head n / (N / Nkv).
///                    [Shazeer, arXiv 1911.02150; Ainslie et al., arXiv 2305.13245, section 2.2]
std::array<Tensor, 3> heads(const Call& call, const Tensor& x, const std::string& name) {
  const int64_t b = x.size(0), s = x.size(1), n = call.plan.heads, d = call.plan.hidden / n;
  const int64_t groups = call.plan.num_kv_heads();
  if (groups == n) {
    const Tensor all =
        linear(call, x, name + ".qkv").view({b, s, n, 3, d}).permute({3, 0, 2, 1, 4});
    return {all[0], all[1], all[2]};
  }
  const Tensor q = linear(call, x, name + ".q").view({b, s, n, d}).transpose(1, 2);
  const Tensor kv =
      linear(call, x, name + ".kv").view({b, s, groups, 2, d}).permute({3, 0, 2, 1, 4});
  return {q, kv[0].repeat_interleave(n / groups, 1), kv[1].repeat_interleave(n / groups, 1)};
}

}  // namespace

const Tensor& Call::weight(const std::string& name) const {
  const auto found = weights.find(name);
  KUAFU_REQUIRE(found != weights.end(), "the oracle was not given the weight ", name);
  return found->second;
}

double Call::per_token() const {
  return 1.0 / static_cast<double>(samples.batch * samples.tokens.predictions);
}
double Call::per_sample() const { return 1.0 / static_cast<double>(samples.batch); }

Tensor ids(const Samples& samples, const std::vector<int64_t>& field) {
  return at::tensor(field, at::kLong).view({samples.tokens.samples, samples.tokens.sequence});
}

Tensor widened(const Tensor& x) {
  return x.to(x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
}

void note_terms(const Call& call, const Tensor& y, const std::string& name,
                const std::function<Tensor(const Tensor& dy)>& terms) {
  Tensors* absolute = call.extra.absolute;
  if (absolute == nullptr || !y.requires_grad()) return;
  y.register_hook([absolute, name, terms](const Tensor& dy) {
    const at::NoGradGuard no_grad;
    Tensor& sum = (*absolute)[name];
    const Tensor more = terms(dy);
    sum = sum.defined() ? sum + more : more;
  });
}

Tensor product(const Call& call, const Tensor& x, const std::string& name) {
  const Tensor y = at::matmul(x, call.weight(name + ".weight"));
  note_terms(call, y, name + ".weight",
             [x = x.detach()](const Tensor& dy) { return product_terms(x, dy); });
  return y;
}

Tensor linear(const Call& call, const Tensor& x, const std::string& name) {
  const Tensor y = product(call, x, name);
  return call.plan.bias ? add_bias(call, y, name + ".bias") : y;
}

Tensor tied_linear(const Call& call, const Tensor& x, const std::string& table) {
  const Tensor y = at::matmul(x, call.weight(table).t());
  note_terms(call, y, table, [x = x.detach()](const Tensor& dy) { return product_terms(dy, x); });
  return y;
}

Tensor add_bias(const Call& call, const Tensor& x, const std::string& name) {
  const Tensor y = x + call.weight(name);
  note_terms(call, y, name, [](const Tensor& dy) { return rows(widened(dy).abs()).sum(0); });
  return y;
}

Tensor lookup(const Call& call, const Tensor& rows_wanted, const std::string& table) {
  const Tensor& w = call.weight(table);
  const Tensor id = rows_wanted.to(w.device());
  // Widened, so that the gradients of a row met often are added before they are rounded.
  const Tensor y = at::embedding(widened(w), id).to(w.scalar_type());
  note_terms(call, y, table, [id, count = w.size(0)](const Tensor& dy) {
    const Tensor terms = rows(widened(dy).abs());
    return at::zeros({count, dy.size(-1)}, terms.options()).index_add(0, id.reshape(-1), terms);
  });
  return y;
}

Tensor add_positions(const Call& call, const Tensor& x, const std::string& table, int64_t first) {
  const Tensor y = x + call.weight(table).narrow(0, first, x.size(1));
  note_terms(call, y, table, [first](const Tensor& dy) {
    return at::constant_pad_nd(widened(dy).abs().sum(0), {0, 0, first, 0});
  });
  return y;
}

/// Layer norm: y = (x - mu) / sqrt(sigma^2 + eps) g + b    [Ba et al., arXiv 1607.06450, equation 4]
/// RMS norm:   y = x / sqrt(mean x^2 + eps) g       [Zhang & Sennrich, arXiv 1910.07467, equation 4]
Tensor norm(const Call& call, const Tensor& x, const std::string& name) {
  const bool is_rms = call.plan.norm == "rms";
  const Tensor in = widened(x);
  const Tensor centred = is_rms ? in : in - in.mean(-1, true);
  const Tensor variance = centred.square().mean(-1, true);
  const Tensor unit = centred / (variance + call.plan.norm_epsilon).sqrt();
  Tensor y = unit * widened(call.weight(name + ".weight"));
  note_terms(call, y, name + ".weight",
             [unit = unit.detach()](const Tensor& dy) { return rows((dy * unit).abs()).sum(0); });
  if (!is_rms && call.plan.bias) {
    y = y + widened(call.weight(name + ".bias"));
    note_terms(call, y, name + ".bias",
               [](const Tensor& dy) { return rows(widened(dy).abs()).sum(0); });
  }
  return y.to(x.scalar_type());
}

/// 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))).
///                                             [Hendrycks & Gimpel, arXiv 1606.08415, section 2]
Tensor gelu_tanh(const Tensor& x) {
  const Tensor in = widened(x);
  const Tensor inner = std::sqrt(2 / std::numbers::pi) * (in + 0.044715 * in * in * in);
  return (0.5 * in * (1 + inner.tanh())).to(x.scalar_type());
}

namespace {

/// max(x, 0). Whether x is above 0 is a comparison that rounding may turn: of a sum that cancels by
/// far more than u |x|. Draws of RandomRounding for f32 are in f64 and move x + r - r by u r: r is
/// several times as large as what x may be wrong by, and without draws it changes nothing.
Tensor rectified(const Tensor& x) {
  Tensor decided = x.detach();
  if (x.scalar_type() == at::kDouble) {
    const Tensor r = 64 * decided.square().mean(-1, true).sqrt();
    decided = (decided + r) - r;
  }
  return x.masked_fill(decided.le(0), 0);
}

/// 0.5 x (1 + erf(x / sqrt(2))).               [Hendrycks & Gimpel, arXiv 1606.08415, section 2]
Tensor gelu_exact(const Tensor& x) {
  const Tensor in = widened(x);
  return (0.5 * in * (1 + (in / std::numbers::sqrt2).erf())).to(x.scalar_type());
}

/// (Swish_1(x W) * x V), the two products' columns interleaved.
///                                                  [Shazeer, arXiv 2002.05202, equations 5 and 6]
Tensor swiglu(const Tensor& x) {
  std::vector<int64_t> pairs = x.sizes().vec();
  pairs.back() /= 2;
  pairs.push_back(2);
  const Tensor in = widened(x).view(pairs);
  const Tensor gate = in.select(-1, 0), value = in.select(-1, 1);
  return (gate * at::sigmoid(gate) * value).to(x.scalar_type());
}

}  // namespace

Tensor activation(const ModelPlan& plan, const Tensor& x) {
  if (plan.mlp == "relu") return rectified(x);
  if (plan.mlp == "gelu_exact") return gelu_exact(x);
  return plan.mlp == "swiglu" ? swiglu(x) : gelu_tanh(x);
}

/// e^x_i / sum_j e^x_j
Tensor softmax(const Tensor& x) {
  const Tensor e = below_largest(x).exp();
  return e / e.sum(-1, true);
}

/// x_i - log sum_j e^x_j
Tensor log_softmax(const Tensor& x) {
  const Tensor below = below_largest(x);
  return below - below.exp().sum(-1, true).log();
}

/// Which keys (dim 3) are hidden from which queries (dim 2): later ones, and where documents are kept
/// apart those with an end token from theirs on to before the query's. (1 or B, 1, S, S)
Tensor hidden_keys(const Tokens& tokens) {
  const int64_t s = tokens.sequence;
  if (!tokens.end_token) return at::ones({s, s}, at::kBool).triu(1).view({1, 1, s, s});
  const Tensor hidden = at::ones({tokens.samples, 1, s, s}, at::kBool);
  bool* of_query = hidden.mutable_data_ptr<bool>();
  for (int64_t b = 0; b < tokens.samples; ++b) {
    const int64_t* t = tokens.inputs.data() + b * s;
    for (int64_t i = 0; i < s; ++i, of_query += s) {
      int64_t j = i;
      of_query[j] = false;
      while (j > 0 && t[j - 1] != *tokens.end_token) of_query[--j] = false;
    }
  }
  return hidden;
}

/// Q K^T / sqrt(D); -infinity where a key is hidden, if any is. Widened.
Tensor attention_scores(const Tensor& q, const Tensor& k, const Tensor& hidden) {
  const auto d = static_cast<double>(q.size(3));
  const Tensor x = at::matmul(widened(q), widened(k).transpose(2, 3)) / std::sqrt(d);
  if (!hidden.defined()) return x;
  return x.masked_fill(hidden, -std::numeric_limits<double>::infinity());
}

/// log sum_j e^x_j, as a number that has no derivative.
Tensor log_sum(const Tensor& x) {
  const Tensor all = x.detach(), largest = all.amax(-1, true);
  return largest + (all - largest).exp().sum(-1, true).log();
}

/// P V, P the softmax of the scores x. ATen's own derivative of a softmax makes
///
///     dx = P (dP - rowsum(P dP)),  dP = dO V^T
///
/// of one dP, whose rounding mostly cancels. Fused kernels keep l = log sum_j e^x_j, not P, make the
/// scores once more and
///
///     P = e^(x - l),  dx = P (dP - rowsum(dO O))   [Dao et al., arXiv 2205.14135, appendix B.2]
///
/// of an O that was rounded after dP was taken: where a row is sure of its key the terms cancel and
/// u |dO| |O| is left of their rounding, more than all of dx; and P is wrong by what x differs from
/// the scores that made l, u |q| |k|, all of it once that passes 1. This is that form, by autograd:
/// O is divided by a 1 whose derivative is that of P's sums, so that theirs is -rowsum(dO O).
Tensor mixed_values(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& hidden) {
  const Tensor l = log_sum(attention_scores(q, k, hidden));
  const Tensor p = (attention_scores(q, k, hidden) - l).exp(), sums = p.sum(-1, true);
  const Tensor o = at::matmul(p.to(v.scalar_type()), v);
  return (widened(o) / (1 + (sums - sums.detach()))).to(v.scalar_type());
}

/// softmax(Q K^T / sqrt(D)) V. Scores and softmax are widened, the weights that multiply V are not.
///                                        [Vaswani et al., arXiv 1706.03762, equation 1, 3.2.2]
Tensor attention(const Call& call, const Tensor& x, const std::string& name, Sees sees) {
  auto [q, k, v] = heads(call, x, name);
  if (call.plan.positions == "rotary") {
    q = rotate(q, call.plan.rotary_base);
    k = rotate(k, call.plan.rotary_base);
  }
  const int64_t b = q.size(0), n = q.size(1), s = q.size(2), d = q.size(3);
  Tensor hidden;
  if (sees == Sees::kEarlier) hidden = hidden_keys(call.samples.tokens).to(q.device());
  const Tensor mixed = mixed_values(q, k, v, hidden);
  return linear(call, mixed.transpose(1, 2).reshape({b, s, n * d}), name + ".out");
}

Tensor mlp(const Call& call, const Tensor& x, const std::string& name) {
  const Tensor up = linear(call, x, name + ".up");
  return linear(call, activation(call.plan, up), name + ".down");
}

/// [Srivastava et al., JMLR 2014, section 4], scaled in training.
Tensor dropout(const Call& call, const Tensor& x, const std::string& site) {
  const double p = call.plan.dropout;
  if (!call.samples.is_training || p == 0) return x;
  const Tensor stays =
      dropout_mask({call.seed, site, call.samples.step}, p, call.samples.first, x.sizes().vec());
  const Tensor kept = widened(x) * (1 / (1 - p));
  return kept.masked_fill(stays.to(x.device()).logical_not(), 0).to(x.scalar_type());
}

Tensor cross_entropy(const Tensor& logits, const Tensor& targets, double scale) {
  const Tensor log_p = log_softmax(widened(logits));
  const Tensor where = targets.to(logits.device());
  const Tensor picked = log_p.gather(-1, where.clamp_min(0).unsqueeze(-1)).squeeze(-1);
  return picked.masked_fill(where.eq(-1), 0).sum() * -scale;
}

double residual_std(const ModelPlan& plan) {
  return kStd / std::sqrt(2.0 * static_cast<double>(plan.layers));
}

void add_linear(Weights& to, const ModelPlan& plan, const std::string& name,
                const std::vector<int64_t>& extents, double std, Fused of) {
  const Weight weight = {.shape = extents,
                         .std = std,
                         .is_stacked = extents.size() == 3,
                         .fused = of.fused,
                         .run = of.run};
  to[name + ".weight"] = weight;
  if (!plan.bias) return;
  Weight& bias = to[name + ".bias"] = weight;
  bias.shape.erase(bias.shape.end() - 2);
  bias.init = Weight::Init::kZeros;
}

void add_norm(Weights& to, const ModelPlan& plan, const std::string& name) {
  to[name + ".weight"] = {.shape = {plan.hidden}, .init = Weight::Init::kOnes};
  if (plan.norm == "rms" || !plan.bias) return;
  to[name + ".bias"] = {.shape = {plan.hidden}, .init = Weight::Init::kZeros};
}

void add_attention(Weights& to, const ModelPlan& plan, const std::string& name) {
  const int64_t h = plan.hidden, groups = plan.num_kv_heads(), d = h / plan.heads;
  if (groups == plan.heads) {
    add_linear(to, plan, name + ".qkv", {h, 3 * h}, kStd, {.fused = 3, .run = d});
  } else {
    add_linear(to, plan, name + ".q", {h, h});
    add_linear(to, plan, name + ".kv", {h, 2 * groups * d}, kStd, {.fused = 2, .run = d});
  }
  add_linear(to, plan, name + ".out", {h, h}, residual_std(plan));
}

void add_mlp(Weights& to, const ModelPlan& plan, const std::string& name, int64_t width) {
  const int64_t fused = plan.mlp == "swiglu" ? 2 : 1;
  add_linear(to, plan, name + ".up", {plan.hidden, fused * width}, kStd, {.fused = fused});
  add_linear(to, plan, name + ".down", {width, plan.hidden}, residual_std(plan));
}

}  // namespace kuafu::oracle
