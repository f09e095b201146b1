// SPDX-License-Identifier: Apache-2.0
//
// Decorators of what a placement makes: tensor schemes, attention, experts, stages, data.

#include <ATen/ATen.h>

#include "kuafu/parallel/expert/interface.h"
#include "tests/mutants/mutant.h"

namespace kuafu::tests {
namespace {

using Fired = std::shared_ptr<std::atomic<int64_t>>;
using Product = SchemeFault::Product;

Role other(Role r) { return r == Role::kExpand ? Role::kContract : Role::kExpand; }

class SpoilingScheme : public TensorParallel {
 public:
  SpoilingScheme(std::unique_ptr<TensorParallel> inner, SchemeFault fault, Fired fired)
      : TensorParallel(inner->mesh()),
        inner_(std::move(inner)),
        fault_(fault),
        fired_(std::move(fired)) {}

  Layout activation(Stream s) const override { return inner_->activation(s); }
  Layout weight(Role r) const override { return inner_->weight(r); }
  Tensor forward(const Tensor& x, const Tensor& w, Role r) const override {
    return spoil(Product::kForward, r, [&](Role role) { return inner_->forward(x, w, role); });
  }
  Tensor input_grad(const Tensor& dy, const Tensor& w, Role r) const override {
    return spoil(Product::kInputGrad, r,
                 [&](Role role) { return inner_->input_grad(dy, w, role); });
  }
  Tensor weight_grad(const Tensor& x, const Tensor& dy, Role r) const override {
    return spoil(Product::kWeightGrad, r,
                 [&](Role role) { return inner_->weight_grad(x, dy, role); });
  }
  Cost cost(const LinearShape& local, Role r) const override { return inner_->cost(local, r); }

 private:
  Tensor spoil(Product product, Role r, const std::function<Tensor(Role)>& make) const {
    if (product != fault_.product) return make(r);
    const bool is_hit = ++calls_ == fault_.at;
    *fired_ += is_hit;
    if (is_hit && fault_.action == SchemeFault::Action::kOtherRole) return make(other(r));
    Tensor result = make(r);
    if (is_hit && fault_.action == SchemeFault::Action::kScale) result = result * fault_.factor;
    if (is_hit && fault_.action == SchemeFault::Action::kStale) {
      for (const Tensor& before : results_) {
        if (before.sizes() == result.sizes()) return before.clone();
      }
    }
    if (fault_.action == SchemeFault::Action::kStale) results_.push_back(result.clone());
    return result;
  }

  std::unique_ptr<TensorParallel> inner_;
  SchemeFault fault_;
  Fired fired_;
  mutable int64_t calls_ = 0;
  mutable Tensors results_;
};

/// Attention to something else.
class WrongAttention : public AttentionParallel {
 public:
  WrongAttention(std::unique_ptr<AttentionParallel> inner, AttentionFault fault, Fired fired)
      : inner_(std::move(inner)), fault_(fault), fired_(std::move(fired)) {}
  Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v, Mask mask) const override {
    ++*fired_;
    const auto rolled = [&](int64_t dim) {
      return inner_->attend(q, at::roll(k, {-1}, {dim}), at::roll(v, {-1}, {dim}), mask);
    };
    switch (fault_) {
      case AttentionFault::kNoMask:
        return inner_->attend(q, k, v, Mask::kNone);
      case AttentionFault::kShiftedMask:
        return rolled(2);
      case AttentionFault::kNextHead:
        return rolled(1);
      case AttentionFault::kOwnBlockOnly:
        return make_local_attention(Recompute::kNone)->attend(q, k, v, mask);
      case AttentionFault::kNoOrder:
        break;
    }
    return inner_->attend(q, k, v, mask);
  }
  std::vector<int64_t> order() const override {
    if (fault_ == AttentionFault::kNoOrder) return {};
    return inner_->order();
  }
  void check(int64_t heads, int64_t kv_heads) const override { inner_->check(heads, kv_heads); }

 private:
  std::unique_ptr<AttentionParallel> inner_;
  AttentionFault fault_;
  Fired fired_;
};

/// Dispatches or combines wrongly in one call of the first step.
class WrongSlots : public ExpertParallel {
 public:
  WrongSlots(std::unique_ptr<ExpertParallel> inner, SlotFault fault, Fired fired)
      : inner_(std::move(inner)), fault_(fault), fired_(std::move(fired)) {}

  Tensor dispatch(const Tensor& x, const Slots& slots) const override {
    Slots wrong = slots;
    const bool is_hit = ++dispatched_ == 2;
    if (is_hit && fault_ == SlotFault::kNextRow) wrong.rows = at::roll(slots.rows, {1}, {2});
    if (is_hit && fault_ == SlotFault::kNextExpert) wrong.rows = at::roll(slots.rows, {1}, {1});
    *fired_ += !at::equal(wrong.rows, slots.rows);
    return inner_->dispatch(x, wrong);
  }

  Tensor combine(const Tensor& rows, const Tensor& gates, const Slots& slots) const override {
    const bool is_hit = ++combined_ == 2;
    if (is_hit && fault_ == SlotFault::kNoGates) {
      ++*fired_;
      return inner_->combine(rows, gates * 0 + gates.detach().ge(0).to(gates.scalar_type()), slots);
    }
    const Tensor y = inner_->combine(rows, gates, slots);
    if (!is_hit || fault_ != SlotFault::kNoCombine) return y;
    ++*fired_;
    return y * 0;
  }

 private:
  std::unique_ptr<ExpertParallel> inner_;
  SlotFault fault_;
  Fired fired_;
  mutable int64_t dispatched_ = 0, combined_ = 0;
};

class SpoilingStage : public StageWork {
 public:
  SpoilingStage(StageWork& inner, int stage, StageFault fault, Fired fired)
      : inner_(inner), is_here_(stage == fault.stage), fault_(fault), fired_(std::move(fired)) {}

  Tensors forward(int m, Tensors in) override {
    Tensors given = in;
    if (is_hit(StageFault::Action::kStaleInput, m)) given = last_input_;
    if (is_hit(StageFault::Action::kScaleInput, m)) scale(given);
    last_input_ = copy(in);
    return inner_.forward(sample(m), std::move(given));
  }
  Tensors backward(int m, Tensors grads) override {
    return sent(m, inner_.backward(sample(m), taken(m, std::move(grads))));
  }
  Tensors input_grad(int m, Tensors grads) override {
    return sent(m, inner_.input_grad(sample(m), taken(m, std::move(grads))));
  }
  void weight_grad(int m) override { inner_.weight_grad(sample(m)); }
  const FlowTensors& inputs() const override { return inner_.inputs(); }
  const FlowTensors& outputs() const override { return inner_.outputs(); }

 private:
  /// Once, in the first step.
  bool is_hit(StageFault::Action action, int m) {
    if (!is_here_ || action != fault_.action || m != fault_.micro_batch || is_done_) return false;
    is_done_ = true;
    ++*fired_;
    return true;
  }
  int sample(int m) {
    if (!is_here_ || fault_.action != StageFault::Action::kSwapSamples || m > 1) return m;
    ++*fired_;
    return 1 - m;
  }
  Tensors taken(int m, Tensors grads) {
    Tensors given = grads;
    if (is_hit(StageFault::Action::kStaleGrad, m)) given = last_grad_;
    if (is_hit(StageFault::Action::kScaleGrad, m)) scale(given);
    last_grad_ = copy(grads);
    return given;
  }
  Tensors sent(int m, Tensors grads) {
    if (is_hit(StageFault::Action::kScaleSent, m)) scale(grads);
    return grads;
  }
  void scale(Tensors& tensors) const {
    for (Tensor& t : tensors) t = t * fault_.factor;
  }
  static Tensors copy(const Tensors& tensors) {
    Tensors copies;
    for (const Tensor& t : tensors) copies.push_back(t.detach().clone());
    return copies;
  }

  StageWork& inner_;
  bool is_here_;
  StageFault fault_;
  Fired fired_;
  bool is_done_ = false;
  Tensors last_input_, last_grad_;
};

/// A dataset whose samples or ids are off.
class WrongData : public Dataset {
 public:
  WrongData(std::unique_ptr<Dataset> inner, DataFault fault, Fired fired)
      : inner_(std::move(inner)), fault_(fault), fired_(std::move(fired)) {}
  int64_t vocab() const override { return inner_->vocab(); }
  int64_t num_train_samples() const override { return inner_->num_train_samples(); }
  int64_t num_validation_samples() const override { return inner_->num_validation_samples(); }
  Tokens train(int64_t first, int64_t count) const override {
    ++*fired_;
    if (fault_ == DataFault::kNextSample) return inner_->train(first + 1, count);
    if (fault_ == DataFault::kFirstSamples) return inner_->train(first - first % kBatch, count);
    Tokens tokens = inner_->train(first, count);
    auto& ids = fault_ == DataFault::kInputIds ? tokens.inputs : tokens.targets;
    for (int64_t& id : ids) id = (id + 1) % inner_->vocab();
    return tokens;
  }
  Tokens validation(int64_t first, int64_t count) const override {
    return inner_->validation(first, count);
  }
  std::string describe() const override { return inner_->describe(); }

 private:
  std::unique_ptr<Dataset> inner_;
  DataFault fault_;
  static constexpr int64_t kBatch = 8;  // reading "the first samples": those of the whole batch
  Fired fired_;
};

}  // namespace

void set_fault(Mutant& m, const SchemeFault& fault) {
  m.options.wraps.scheme = [fault, fired = m.fired](std::unique_ptr<TensorParallel> inner) {
    return std::make_unique<SpoilingScheme>(std::move(inner), fault, fired);
  };
}

void set_fault(Mutant& m, AttentionFault fault) {
  m.options.wraps.attention = [fault, fired = m.fired](std::unique_ptr<AttentionParallel> inner) {
    return std::make_unique<WrongAttention>(std::move(inner), fault, fired);
  };
}

void set_fault(Mutant& m, SlotFault fault) {
  m.options.wraps.experts = [fault, fired = m.fired](std::unique_ptr<ExpertParallel> inner) {
    return std::make_unique<WrongSlots>(std::move(inner), fault, fired);
  };
}

void set_fault(Mutant& m, const StageFault& fault) {
  m.options.wraps.stage = [fault, fired = m.fired](StageWork& inner, int stage) {
    return std::make_unique<SpoilingStage>(inner, stage, fault, fired);
  };
}

void set_fault(Mutant& m, DataFault fault) {
  m.read = [fault, fired = m.fired](std::unique_ptr<Dataset> data,
                                    int rank) -> std::unique_ptr<Dataset> {
    if (rank != 1) return data;  // rank 0's also feeds the reference
    return std::make_unique<WrongData>(std::move(data), fault, fired);
  };
}

}  // namespace kuafu::tests
