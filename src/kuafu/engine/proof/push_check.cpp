// SPDX-License-Identifier: Apache-2.0
#include "kuafu/engine/proof/push_check.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "kuafu/base/philox.h"
#include "kuafu/engine/proof/certificate_compare.h"

namespace kuafu {
namespace {

/// One worker's share of every step.
class ShareReference : public CertificateReference {
 public:
  ShareReference(CertificateReference& whole, Share share) : whole_(whole), share_(share) {}

  std::string name() const override { return whole_.name(); }
  oracle::Weights weights() override { return whole_.weights(); }
  oracle::Tensors initial_weights() override { return whole_.initial_weights(); }
  oracle::Gradients gradients(int64_t step, const oracle::Tensors& weights,
                              const oracle::Routes&) override {
    return share(step, share_, weights);
  }
  /// Nothing scales the loss of such a plan.
  oracle::Gradients rounded_gradients(int64_t step, const oracle::Tensors& weights,
                                      const oracle::Routes&, double) override {
    return share(step, share_, weights);
  }
  oracle::BlockGradients blocks(int64_t, const oracle::Tensors&, const oracle::BlockFlows&,
                                const oracle::Routes&, double,
                                const std::vector<size_t>&) override {
    return {};
  }
  /// With the mean loss of the worker's samples.
  oracle::Gradients share(int64_t step, Share share, const oracle::Tensors& weights) override {
    oracle::Gradients out = whole_.share(step, share, weights);
    out.loss *= static_cast<double>(share.count);
    return out;
  }

 private:
  CertificateReference& whole_;
  Share share_;
};

bool has_same_bits(const Tensor& a, const Tensor& b) { return at::equal(a.cpu(), b.cpu()); }

class PushCheck {
 public:
  PushCheck(const Plan& plan, const FlatBucket& layout, const PushedRun& run,
            CertificateReference& reference, Proof& proof, const oracle::UpdateRules& rules)
      : plan_(plan),
        layout_(layout),
        run_(run),
        reference_(reference),
        proof_(proof),
        rules_(rules),
        layers_(reference.weights()) {}

  void run() {
    for (const MadePush& push : run_.seen.made) {
      if (proof_.verdict == "not_run") return;
      check(push);
      proof_.steps.push_back(push.step);
    }
    check_end();
    auto& steps = proof_.steps;
    std::sort(steps.begin(), steps.end());
    steps.erase(std::unique(steps.begin(), steps.end()), steps.end());
    proof_.judge();
  }

 private:
  /// What of a flat part of the model belongs to each parameter, flat.
  oracle::Tensors pieces(const Tensor& flat, const FlatPart& part) const {
    oracle::Tensors out;
    for (const FlatSlot& slot : layout_.slots) {
      const FlatPart piece = overlap(part, slot);
      if (piece.size() == 0) continue;
      out[slot.param->name] = flat.narrow(0, piece.begin - part.begin, piece.size());
    }
    return out;
  }
  oracle::Tensors whole(const Tensor& flat) const {
    oracle::Tensors out = pieces(flat, {0, layout_.elements()});
    for (const FlatSlot& slot : layout_.slots) {
      Tensor& t = out.at(slot.param->name);
      t = t.view(slot.param->value.sizes());
    }
    return out;
  }

  Evidence evidence_of(const MadePush& push) const {
    Evidence e;
    e.step = push.step;
    e.worker = push.worker;
    e.report.loss = run_.losses.at(static_cast<size_t>(push.worker))
                        .at(static_cast<size_t>(push.step - run_.begun));
    e.report.grad_norm = push.norm / static_cast<double>(plan_.parallel.data.size);
    return e;
  }

  void check(const MadePush& push) {
    Evidence e = evidence_of(push);
    e.before.values = whole(push.values);
    e.gradients = whole(push.gradient);
    ShareReference share(reference_, {push.worker, plan_.parallel.data.size});
    check_gradients(plan_, e, share, own_rounding, proof_);
    for (size_t s = 0; s < run_.seen.updates.size(); ++s) {
      if (proof_.verdict != "not_run") check_served(push, static_cast<int64_t>(s));
    }
  }

  const ServedUpdate* update_of(const MadePush& push, int64_t server) const {
    for (const ServedUpdate& u : run_.seen.updates[static_cast<size_t>(server)]) {
      if (u.push.worker == push.worker && u.push.step == push.step) return &u;
    }
    return nullptr;
  }

  void check_served(const MadePush& push, int64_t server) {
    Evidence e = evidence_of(push);
    const FlatPart part = layout_.part(server);
    const ServedUpdate* update = update_of(push, server);
    const auto refute = [&](const std::string& why) {
      proof_.refute(at_step(e, text("server ", server, " ", why)));
    };
    if (update == nullptr) return refute("made no update");
    if (!has_same_bits(update->gradient, in_part(push.gradient, part))) {
      refute("got another gradient than was pushed");
    }
    const PushOrder& order = run_.orders[static_cast<size_t>(server)];
    const int64_t version = update->before.optimizer.num_steps;
    const int64_t i = version - first_version(order);
    const bool is_recorded =
        i >= 0 && i < std::ssize(order) && order[static_cast<size_t>(i)] == update->push;
    if (!is_recorded) refute(text("has it not as update ", i + 1, " in its order"));
    const Tensor* read = version_of(server, update->push.version);
    if (read != nullptr && !has_same_bits(*read, in_part(push.values, part))) {
      refute(text("had another version ", update->push.version, " than was read"));
    }
    e.gradients = pieces(update->gradient, part);
    e.before = state_of(update->before, part);
    e.after = state_of(update->after, part);
    check_update(plan_, layers_, e, proof_, rules_);
  }

  /// That a server began with: somebody made its first update with it.
  static int64_t first_version(const PushOrder& order) {
    return order.empty() ? 0 : order[0].version;
  }

  /// The values of a server's version, where they were kept.
  const Tensor* version_of(int64_t server, int64_t version) const {
    for (const ServedUpdate& u : run_.seen.updates[static_cast<size_t>(server)]) {
      for (const ServerState* state : {&u.before, &u.after}) {
        if (state->optimizer.num_steps == version) return &state->values;
      }
    }
    return nullptr;
  }

  WholeState state_of(const ServerState& server, const FlatPart& part) const {
    WholeState state;
    state.values = in_type(pieces(server.values, part), scalar_type(plan_.model.dtype));
    state.num_steps = server.optimizer.num_steps;
    for (const SlotTensor& slot : server.optimizer.tensors) {
      state.slots[slot.slot][slot.param] = slot.tensor;
    }
    return state;
  }

  /// What the run ended with is what the last update left.
  void check_end() {
    for (size_t s = 0; s < run_.seen.updates.size(); ++s) {
      const FlatPart part = layout_.part(static_cast<int64_t>(s));
      const PushOrder& order = run_.orders[s];
      const Tensor* last =
          version_of(static_cast<int64_t>(s), first_version(order) + std::ssize(order));
      if (last == nullptr) continue;
      for (const auto& [name, mine] : pieces(*last, part)) {
        const auto end = run_.values.find(name);
        const FlatSlot& slot = slot_of(name);
        const int64_t begin = overlap(part, slot).begin - slot.offset;
        const bool is_same =
            end != run_.values.end() &&
            has_same_bits(end->second.flatten().narrow(0, begin, mine.numel()).to(at::kDouble),
                          mine);
        if (!is_same) proof_.refute(text("in the end ", name, " is not what server ", s, " left"));
      }
    }
  }
  const FlatSlot& slot_of(const std::string& name) const {
    return *std::find_if(layout_.slots.begin(), layout_.slots.end(),
                         [&](const FlatSlot& slot) { return slot.param->name == name; });
  }

  const Plan& plan_;
  const FlatBucket& layout_;
  const PushedRun& run_;
  CertificateReference& reference_;
  Proof& proof_;
  const oracle::UpdateRules& rules_;
  const oracle::Weights layers_;
};

}  // namespace

WantedPushes wanted_pushes(const Plan& plan, int64_t elements, int64_t memory, int64_t begun) {
  const int64_t workers = plan.parallel.data.size, steps = plan.train.steps;
  // In f64: values and gradient of the worker; gradient, and values, m, v before and after; masters.
  const int64_t bytes_of_step = workers * elements * 8 * (2 + 1 + 2 * 4);
  const int64_t room = std::clamp<int64_t>(memory / bytes_of_step, 1, kLastSteps);
  WantedPushes wanted{.from = std::max(steps - room, begun)};
  if (wanted.from == begun) return wanted;
  const CounterRandom random(plan.train.seed, 0x70757368);
  wanted.worker = static_cast<int64_t>(random.bits(0) % static_cast<uint64_t>(workers));
  const auto others = static_cast<uint64_t>(wanted.from - begun);
  wanted.step = begun + static_cast<int64_t>(random.bits(1) % others);
  return wanted;
}

void check_pushes(const Plan& plan, const FlatBucket& layout, const PushedRun& run,
                  CertificateReference& reference, Proof& proof, const oracle::UpdateRules& rules) {
  const at::NoGradGuard no_grad;
  PushCheck(plan, layout, run, reference, proof, rules).run();
}

}  // namespace kuafu
