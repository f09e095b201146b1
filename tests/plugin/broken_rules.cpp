// SPDX-License-Identifier: Apache-2.0
//
// A plug-in that does what none may. Optimizers, each SGD but for what its name says; a tensor
// scheme, a model, a sequence mode, a schedule and a memory policy that throw what is no std::exception ("throws_int");
// the first three that make nothing ("makes_nothing").
// With KUAFU_TEST_KIND and KUAFU_TEST_NAME it adds only one thing, sound but for its name.

#include <torch/version.h>

#include <atomic>
#include <cstdlib>
#include <stdexcept>
#include <string>

#include <ATen/ATen.h>

#include "kuafu/engine/plugin.h"
#include "kuafu/parallel/tensor/products.h"

namespace {

using namespace kuafu;

Tensor sgd_formula(const oracle::Step& s, const Tensor& g, const Tensor& theta) {
  return theta - s.alpha * (g + s.lambda * theta);
}

void sgd(RulePiece& p, const Rates& rates) {
  const Tensor g = p.grad.to(p.value.scalar_type()) * p.grad_factor;
  p.value.sub_((g + p.weight_decay * p.value) * rates.lr);
}

Rule plain(const OptimizerPlan&) {
  return {.update = [](RulePiece& p, const Rates& rates, const Tensor&) { sgd(p, rates); }};
}

/// With a slot that it does `f` to, and says that it does `use` with.
OptimizerRule doing(void (*f)(RulePiece& p), SlotUse use = SlotUse::kChange) {
  return {.make = [f, use](const OptimizerPlan&) -> Rule {
    return {.slots = {"u"},
            .slot_uses = [use](const RulePiece&) { return SlotUses{.update = use}; },
            .update =
                [f](RulePiece& p, const Rates& rates, const Tensor&) {
                  sgd(p, rates);
                  f(p);
                }};
  }};
}

/// With sums and ratios that it takes from these.
OptimizerRule measuring(Tensor (*sums)(const RulePiece& p), Tensor (*ratios)(const Tensor& norms)) {
  return {.make = [sums, ratios](const OptimizerPlan&) -> Rule {
    return {.measure = [sums](RulePiece& p, const Rates&) { return sums(p); },
            .ratios = [ratios](const Tensor& norms, const Rates&) { return ratios(norms); },
            .update = [](RulePiece& p, const Rates& rates, const Tensor&) { sgd(p, rates); }};
  }};
}

Tensor two_sums(const RulePiece& p) {
  return at::zeros({p.layers.layers, 2}, p.value.options().dtype(at::kDouble));
}
Tensor one_each(const Tensor& norms) { return norms.select(1, 0) + 1.0; }

class Throwing : public TensorParallel {
 public:
  explicit Throwing(const Mesh& mesh) : TensorParallel(mesh), sound_(make_megatron_1d(mesh)) {}
  Layout activation(Stream s) const override { return sound_->activation(s); }
  Layout weight(Role r) const override { return sound_->weight(r); }
  Tensor forward(const Tensor& x, const Tensor& w, Role r) const override {
    if (!x.is_meta() && r == Role::kContract && mesh().coord("tensor") == 1) throw 42;
    return sound_->forward(x, w, r);
  }
  Tensor input_grad(const Tensor& dy, const Tensor& w, Role r) const override {
    return sound_->input_grad(dy, w, r);
  }
  Tensor weight_grad(const Tensor& x, const Tensor& dy, Role r) const override {
    return sound_->weight_grad(x, dy, r);
  }
  Cost cost(const LinearShape& s, Role r) const override { return sound_->cost(s, r); }

 private:
  std::unique_ptr<TensorParallel> sound_;
};

void add_others(Registries& registries, const std::string& kind, const std::string& name) {
  const bool is_all = kind.empty();
  if (is_all || kind == "tensor") {
    TensorScheme scheme = registries.tensor.find("1d");
    scheme.mode.name = name;
    scheme.make = [](const Mesh& mesh) { return std::make_unique<Throwing>(mesh); };
    registries.tensor.add(name, "of a test", scheme);
  }
  if (is_all || kind == "model") {
    registries.models.add(name, "of a test", [](const auto&...) -> Model { throw 42; });
  }
  if (is_all || kind == "sequence") {
    registries.sequence.add(
        name, "of a test",
        [](const AttentionSetup&) -> std::unique_ptr<AttentionParallel> { throw 42; });
  }
  if (is_all || kind == "schedule") {
    registries.schedules.add(
        name, "of a test", {.make = [](pipeline::PipeShape) -> pipeline::Timetable { throw 42; }});
  }
  if (is_all || kind == "policy") {
    registries.policies.add(name, "of a test",
                            {.choose = [](const memory::Known&) -> memory::Choice { throw 42; }});
  }
}

void add_rules(Registries& registries) {
  const auto add = [&](const char* name, OptimizerRule rule, bool is_by_layers = false) {
    registries.optimizers.add(name, "of a test", std::move(rule));
    registries.updates.add(name, "of a test", {sgd_formula, is_by_layers});
  };
  add("no_sums", measuring([](const RulePiece&) { return Tensor(); }, one_each), true);
  add("few_sums",
      measuring([](const RulePiece& p) { return two_sums(p).narrow(1, 0, 1); }, one_each), true);
  add("no_ratios", measuring(two_sums, [](const Tensor&) { return Tensor(); }), true);
  add("wide_ratios", measuring(two_sums, [](const Tensor& norms) { return norms + 1.0; }), true);
  add("replaces", doing([](RulePiece& p) { p.slots[0] = p.grad * 2; }));
  add("resizes", doing([](RulePiece& p) { p.slots[0].resize_({7}); }));
  add("changes_what_it_reads",
      doing([](RulePiece& p) { p.slots[0].add_(p.grad); }, SlotUse::kRead));
  add("uses_what_it_has_not", doing([](RulePiece& p) { p.slots[0].add_(p.grad); }, SlotUse::kNone));
  add("throws_int", doing([](RulePiece&) { throw 42; }));
  add("throws_error", doing([](RulePiece&) { throw std::runtime_error("no luck today"); }));
  add("wrong_shapes", doing([](RulePiece& p) { p.slots[0].add_(at::ones({5, 5, 5})); }));
  add("refuses", {.make = [](const OptimizerPlan& o) {
        KUAFU_REQUIRE(o.lr < 0.5, "optimizer.lr = ", o.lr, " is too large; allowed: below 0.5");
        return plain(o);
      }});
  // Only while it is certified: the timed run is f32.
  add("throws_in_f64", doing([](RulePiece& p) {
        if (p.value.scalar_type() == at::kDouble) throw std::runtime_error("no doubles");
      }));
  // Right, with work that is in no count.
  add("works_aside", {.make = [](const OptimizerPlan&) -> Rule {
        return {.update = [](RulePiece& p, const Rates& rates, const Tensor&) {
          sgd(p, rates);
          p.value.clone().addcmul_(p.value, p.value);
        }};
      }});
  add("unbooked", doing([](RulePiece& p) { p.slots[0].addcmul_(p.grad, p.grad); }));
  const OptimizerRule with_slot = doing([](RulePiece&) {});
  registries.optimizers.add("empty_slot", "of a test", with_slot);
  registries.updates.add("empty_slot", "of a test",
                         {[](const oracle::Step& s, const Tensor& g, const Tensor& theta) {
                           s.slot("u", theta) = Tensor();
                           return sgd_formula(s, g, theta);
                         }});
  registries.optimizers.add("no_formula", "of a test", {.make = plain});
  registries.updates.add("no_formula", "of a test",
                         {[](const oracle::Step&, const Tensor&, const Tensor&) -> Tensor {
                           throw std::runtime_error("no such formula");
                         }});
}

/// Whose slots are others each time.
void add_other_slots(Registries& registries) {
  const auto make = [](const OptimizerPlan& o) {
    static std::atomic<int> made = 0;
    Rule rule = plain(o);
    rule.slots = {"u" + std::to_string(made++)};
    return rule;
  };
  registries.optimizers.add("other_slots", "of a test", {.make = make});
  registries.updates.add("other_slots", "of a test", {sgd_formula});
}

void add_nothings(Registries& registries) {
  TensorScheme scheme = registries.tensor.find("1d");
  scheme.mode.name = "makes_nothing";
  scheme.make = [](const Mesh&) { return nullptr; };
  registries.tensor.add("makes_nothing", "of a test", scheme);
  registries.models.add("makes_nothing", "of a test", [](const auto&...) { return Model{}; });
  registries.sequence.add("makes_nothing", "of a test", [](const auto&...) { return nullptr; });
}

void add(Registries& registries) {
  const char *kind = std::getenv("KUAFU_TEST_KIND"), *name = std::getenv("KUAFU_TEST_NAME");
  if (kind == nullptr) {
    add_rules(registries);
    add_nothings(registries);
    return add_others(registries, "", "throws_int");
  }
  const std::string of = kind, given = name == nullptr ? "" : name;
  if (of == "throw") throw 42;
  if (of == "other_slots") return add_other_slots(registries);
  if (of != "optimizer") return add_others(registries, of, given);
  registries.optimizers.add(given, "of a test", {.make = plain});
  registries.updates.add(given, "of a test", {sgd_formula});
}

}  // namespace

extern "C" const kuafu::PluginInfo* kuafu_plugin() {
  static const kuafu::PluginInfo kInfo = {.abi = KUAFU_PLUGIN_ABI,
                                          .torch = TORCH_VERSION,
                                          .name = "broken_rules",
                                          .version = "1",
                                          .add = add};
  return &kInfo;
}
