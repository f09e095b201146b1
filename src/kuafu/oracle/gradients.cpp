// SPDX-License-Identifier: Apache-2.0
//
// Forward through all blocks, backward by ATen's autograd, sums over micro-batches.

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>

#include "kuafu/base/errors.h"
#include "kuafu/oracle/oracle.h"

namespace kuafu::oracle {
namespace {

using at::Tensor;

void add_to(Tensors& sums, const std::string& name, const Tensor& more) {
  Tensor& sum = sums[name];
  sum = sum.defined() ? sum + more : more;
}

/// One micro-batch. Its loss is a part of the mean over the global batch, so parts add up.
void add_micro_batch(const Model& model, const Tensors& leaves, const Samples& samples,
                     const Routes* routes, double scale, Gradients& out) {
  Tensors scores;
  Extra extra{
      .routes = routes, .regret = &out.regret, .scores = &scores, .absolute = &out.absolute};
  Flow flow;
  Tensor auxiliary;
  for (size_t b = 0; b < model.blocks().size(); ++b) {
    extra.loss = Tensor();
    flow = model.forward(b, flow, leaves, samples, extra);
    if (!extra.loss.defined()) continue;
    auxiliary = auxiliary.defined() ? auxiliary + extra.loss : extra.loss;
  }
  for (const auto& [name, s] : scores) {
    Tensor& all = out.scores[name];
    all = all.defined() ? at::cat({all, s}) : s;
  }
  const Tensor& loss = flow.at(0);
  out.loss += loss.item<double>();
  const Tensor root = auxiliary.defined() ? loss + auxiliary : loss;
  std::vector<Tensor> inputs;
  for (const auto& [name, leaf] : leaves) inputs.push_back(leaf);
  const auto grads = torch::autograd::grad({root * scale}, inputs, {}, false, false, true);
  size_t i = 0;
  for (const auto& [name, leaf] : leaves) {
    const Tensor& g = grads[i++];
    if (g.defined()) add_to(out.gradients, name, g);
  }
}

/// What was kept of a block. A plug-in's may have names, or hand on what, nobody keeps.
const BlockFlow& flow_of(const std::string& name, size_t index, size_t count,
                         const BlockFlows& given) {
  const auto found = given.find(name);
  const bool is_known = found != given.end() && (index == 0 || found->second.input.defined()) &&
                        (index + 1 == count || found->second.output_gradient.defined());
  KUAFU_REQUIRE(is_known, "what passes the boundaries of block \"", name,
                "\" was not kept, so that it cannot be compared by itself; allowed: blocks named "
                "\"embedding\", \"blocks.0\", \"blocks.1\", ... and \"head\", in the model and in "
                "its oracle, that hand on one (B, S, H)");
  return found->second;
}

}  // namespace

void Regret::add(const Regret& other) {
  if (where.empty() || other.most > most) where = other.where;
  most = std::max(most, other.most);
}

Gradients gradients(const Model& model, const Tensors& weights, const std::vector<Samples>& micro,
                    const std::vector<Routes>& routes, double scale) {
  KUAFU_REQUIRE(routes.empty() || routes.size() == micro.size(), "routes of ", routes.size(),
                " micro-batches for ", micro.size());
  const at::AutoGradMode recording(true);
  Tensors leaves;
  for (const auto& [name, weight] : weights) {
    leaves[name] = weight.detach().clone().requires_grad_();
  }
  Gradients out;
  for (size_t i = 0; i < micro.size(); ++i) {
    add_micro_batch(model, leaves, micro[i], routes.empty() ? nullptr : &routes[i], scale, out);
  }
  return out;
}

double loss_of(const Model& model, const Tensors& weights, const std::vector<Samples>& micro) {
  const at::NoGradGuard no_grad;
  double loss = 0;
  for (const Samples& samples : micro) {
    Extra extra;
    Flow flow;
    for (size_t b = 0; b < model.blocks().size(); ++b) {
      flow = model.forward(b, flow, weights, samples, extra);
    }
    loss += flow.at(0).item<double>();
  }
  return loss;
}

Tensor logits_of(const Model& model, const Tensors& weights, const Samples& samples) {
  const at::NoGradGuard no_grad;
  Tensor logits;
  Extra extra{.logits = &logits};
  Flow flow;
  for (size_t b = 0; b < model.blocks().size(); ++b) {
    flow = model.forward(b, flow, weights, samples, extra);
  }
  KUAFU_REQUIRE(logits.defined(), "the model hands out no logits");
  return logits;
}

BlockGradients block_gradients(const Model& model, const Tensors& weights, const Samples& batch,
                               const BlockFlows& given, const Routes* routes, double scale,
                               const std::vector<size_t>& which) {
  const at::AutoGradMode recording(true);
  BlockGradients out;
  Extra extra{.routes = routes, .regret = &out.sums.regret, .absolute = &out.sums.absolute};
  const auto names = model.blocks();
  for (size_t b = 0; b < names.size(); ++b) {
    if (!which.empty() && std::find(which.begin(), which.end(), b) == which.end()) continue;
    const BlockFlow& told = flow_of(names[b], b, names.size(), given);
    const auto type = weights.begin()->second.options();
    Tensors leaves;
    std::vector<Tensor> wanted;
    for (const std::string& name : model.params_of(b)) {
      leaves[name] = weights.at(name).detach().clone().requires_grad_();
      wanted.push_back(leaves[name]);
    }
    Flow in;
    if (b > 0) in = {told.input.to(type).detach().clone().requires_grad_()};
    wanted.insert(wanted.end(), in.begin(), in.end());
    extra.loss = Tensor();
    const Tensor y = model.forward(b, in, leaves, batch, extra).at(0);
    const bool is_last = b + 1 == names.size();
    std::vector<Tensor> roots = {y};
    std::vector<Tensor> gradients = {is_last ? at::full_like(y, scale)
                                             : told.output_gradient.to(y.options())};
    if (extra.loss.defined()) {
      roots.push_back(extra.loss);
      gradients.push_back(at::full_like(extra.loss, scale));
    }
    const auto grads = torch::autograd::grad(roots, wanted, gradients, false, false, true);
    size_t i = 0;
    for (const std::string& name : model.params_of(b)) {
      if (grads[i].defined()) add_to(out.sums.gradients, name, grads[i]);
      ++i;
    }
    BlockFlow& mine = out.flows[names[b]];
    if (is_last) out.sums.loss = y.item<double>();
    if (!is_last) mine.output = y.detach();
    if (b > 0) mine.input_gradient = grads[i];
  }
  return out;
}

}  // namespace kuafu::oracle
