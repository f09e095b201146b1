// SPDX-License-Identifier: Apache-2.0
//
// Tensor schemes and attention that compute something slightly else.

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <iostream>

#include "tests/engine/mutants.h"
#include "tests/support/plans.h"
#include "tests/support/ranks.h"

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

/// Position i sees keys 1 .. i + 1 instead of 0 .. i.
class ShiftedMask : public AttentionParallel {
 public:
  ShiftedMask(std::unique_ptr<AttentionParallel> inner, Fired fired)
      : inner_(std::move(inner)), fired_(std::move(fired)) {}
  Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v, Mask mask) const override {
    ++*fired_;
    return inner_->attend(q, at::roll(k, {-1}, {2}), at::roll(v, {-1}, {2}), mask);
  }
  std::vector<int64_t> order() const override { return inner_->order(); }

 private:
  std::unique_ptr<AttentionParallel> inner_;
  Fired fired_;
};

/// Every position sees all others.
class NoMask : public AttentionParallel {
 public:
  NoMask(std::unique_ptr<AttentionParallel> inner, Fired fired)
      : inner_(std::move(inner)), fired_(std::move(fired)) {}
  Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v, Mask) const override {
    ++*fired_;
    return inner_->attend(q, k, v, Mask::kNone);
  }
  std::vector<int64_t> order() const override { return inner_->order(); }

 private:
  std::unique_ptr<AttentionParallel> inner_;
  Fired fired_;
};

}  // namespace

void set_fault(Mutant& m, const SchemeFault& fault) {
  m.options.wraps.scheme = [fault, fired = m.fired](std::unique_ptr<TensorParallel> inner) {
    return std::make_unique<SpoilingScheme>(std::move(inner), fault, fired);
  };
}

void set_fault(Mutant& m, MaskFault fault) {
  m.options.wraps.attention =
      [fault, fired = m.fired](
          std::unique_ptr<AttentionParallel> inner) -> std::unique_ptr<AttentionParallel> {
    if (fault == MaskFault::kNone) return std::make_unique<NoMask>(std::move(inner), fired);
    return std::make_unique<ShiftedMask>(std::move(inner), fired);
  };
}

std::string fate_of(const Mutant& m) {
  const Registries registries = builtin_registries();
  std::string fate;
  try {
    run_ranks(static_cast<int>(num_ranks(m.plan)), [&](Communicator& world) {
      const int rank = world.rank();
      const auto wrapped = m.wrap_world ? m.wrap_world(world) : nullptr;
      const auto make_data = [&m, rank](const Plan& plan) {
        auto data = data_of(plan);
        return m.read ? m.read(std::move(data), rank) : std::move(data);
      };
      const Plan plan = m.believe ? m.believe(m.plan, rank) : m.plan;
      const Certificate c = certify(plan, registries, wrapped ? *wrapped : world, make_data,
                                    m.options, int64_t{1} << 40);
      if (rank == 0) fate = c.verdict;
    });
  } catch (const Error& e) {
    fate = text("threw: ", e.what());
  }
  return fate;
}

size_t expect_noticed(const std::vector<Mutant>& mutants) {
  size_t survivors = 0;
  for (const Mutant& m : mutants) {
    const std::string fate = fate_of(m);
    EXPECT_GT(*m.fired, 0) << m.name << ": the fault never came true";
    if (fate != "equal") continue;
    ++survivors;
    std::cout << "survived  " << m.name << std::endl;
  }
  std::cout << mutants.size() - survivors << " of " << mutants.size() << " mutants noticed\n";
  EXPECT_LE(20 * survivors, mutants.size()) << "more than 5 % survive";
  return survivors;
}

}  // namespace kuafu::tests
