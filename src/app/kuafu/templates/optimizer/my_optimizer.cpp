// An optimizer: a rule that changes a weight by its gradient. This one divides each gradient by the
// root of a running mean of its squares (RMSProp) and decays the weight itself:
//
//   1  v = b2 v + (1 - b2) g^2
//   2  w = w - lr (g / (sqrt(v) + eps) + wd w)
//
// It is written once, for the elements of a piece: shards, ZeRO, pipelines, half precision, loss
// scales, clipping, checkpoints and resuming follow. A rule sees no rank and no whole tensor.
//
// And it is written a second time, as a formula over whole tensors in plain ATen: what certificates
// and conformance hold it against.
//
// What to change first: `update`, and `formula` with it. Change one of them alone, and conformance
// says what differs.

#include <ATen/ATen.h>
#include <torch/version.h>

#include "kuafu/engine/plugin.h"

namespace {

using namespace kuafu;

// `plan` has the numbers of [optimizer]. A rule may read keys that all optimizers have (lr and
// weight_decay come as rates and piece), and those it names below, in add().
Rule make(const OptimizerPlan& plan) {
  const auto update = [b2 = plan.beta2, eps = plan.epsilon](RulePiece& p, const Rates& rates,
                                                            const Tensor& /*ratios*/) {
    // Ops that Kuafu counts: conformance names any other.
    // The gradient may be of a narrower type than the value, and waits for its factor: what clipping
    // and the loss scale make of it.
    const Tensor g = p.grad.to(p.value.scalar_type()) * p.grad_factor;
    Tensor& v = p.slots[0];
    v.mul_(b2).add_(g * g, 1 - b2);                                              // 1
    p.value.sub_((g / (v.sqrt() + eps) + p.weight_decay * p.value) * rates.lr);  // 2
  };
  // State of the rule, like the value, zero at first; a checkpoint has it by this name. A rule whose
  // step depends on norms of layers gives .measure and .ratios too: kuafu/optim/rule.h.
  return {.slots = {"v"}, .update = update};
}

/// The weight after the step. Nothing is changed in place: certificates round each result at random.
Tensor formula(const oracle::Step& s, const Tensor& g, const Tensor& theta) {
  Tensor& v = s.slot("v", theta);
  v = s.plan.beta2 * v + (1 - s.plan.beta2) * g * g;
  return theta - s.alpha * (g / (v.sqrt() + s.plan.epsilon) + s.lambda * theta);
}

void add(Registries& registries) {
  registries.optimizers.add("my_optimizer", "RMSProp: an optimizer of my own",
                            {.keys = {"beta2", "epsilon"}, .make = make});
  registries.updates.add("my_optimizer", "in plain ATen", {.update = formula});
}

}  // namespace

extern "C" const kuafu::PluginInfo* kuafu_plugin() {
  static const kuafu::PluginInfo kInfo = {.abi = KUAFU_PLUGIN_ABI,
                                          .torch = TORCH_VERSION,
                                          .name = "my_optimizer",
                                          .version = "1",
                                          .add = add};
  return &kInfo;
}
