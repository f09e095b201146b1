// SPDX-License-Identifier: Apache-2.0
#include "tests/engine/mutant_kit.h"

namespace kuafu::tests {
namespace {

using Action = CommFault::Action;
using SchemeAction = SchemeFault::Action;
using Product = SchemeFault::Product;

/// A dataset whose samples or ids are off.
class WrongData : public Dataset {
 public:
  WrongData(std::unique_ptr<Dataset> inner, DataFault fault, int64_t count,
            std::shared_ptr<std::atomic<int64_t>> fired)
      : inner_(std::move(inner)), fault_(fault), count_(count), fired_(std::move(fired)) {}
  int64_t vocab() const override { return inner_->vocab(); }
  int64_t num_train_samples() const override { return inner_->num_train_samples(); }
  int64_t num_validation_samples() const override { return inner_->num_validation_samples(); }
  Tokens train(int64_t first, int64_t count) const override {
    ++*fired_;
    if (fault_ == DataFault::kNextSample) return inner_->train(first + 1, count);
    if (fault_ == DataFault::kFirstSamples) return inner_->train(first / count_ * count_, count);
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
  int64_t count_;
  std::shared_ptr<std::atomic<int64_t>> fired_;
};

}  // namespace

void drop(Kit& kit, const std::string& family_name, const std::string& axis, Verb verb,
          const std::vector<int64_t>& calls) {
  for (const int64_t at : calls) {
    kit.add(family_name, text("drops ", to_string(verb), " ", at, " on ", axis),
            CommFault{.action = Action::kDrop, .axis = axis, .verb = verb, .at = at});
  }
}

void scale(Kit& kit, const std::string& family_name, const std::string& axis, Verb verb, int64_t at,
           double factor) {
  kit.add(
      family_name,
      text("scales ", at == 0 ? text("every ", to_string(verb)) : text(to_string(verb), " ", at),
           " on ", axis, " by ", factor),
      CommFault{.action = Action::kScale, .axis = axis, .verb = verb, .at = at, .factor = factor});
}

void stale(Kit& kit, const std::string& family_name, const std::string& axis, Verb verb,
           int64_t at) {
  kit.add(family_name,
          text("reuses the previous result in ", to_string(verb), " ", at, " on ", axis),
          CommFault{.action = Action::kStale, .axis = axis, .verb = verb, .at = at});
}

void on_one_rank(Kit& kit, const std::string& family_name, const std::string& axis, Verb verb,
                 int64_t at) {
  kit.add(family_name,
          text("keeps local data on rank 1 in ", to_string(verb), " ", at, " on ", axis),
          CommFault{.action = Action::kDrop, .axis = axis, .verb = verb, .at = at, .rank = 1});
}

void read_wrongly(Kit& kit, const std::string& family_name, const std::string& what,
                  DataFault fault) {
  Mutant& m = kit.make(family_name, what);
  // Reading "the first samples" takes the whole batch from its start, whoever asks.
  m.read = [fault, fired = m.fired, batch = m.plan.train.batch](
               std::unique_ptr<Dataset> data, int rank) -> std::unique_ptr<Dataset> {
    if (rank != 1) return data;  // rank 0's also feeds the reference
    return std::make_unique<WrongData>(std::move(data), fault, batch, fired);
  };
}

void believe_wrongly(Kit& kit, const std::string& family_name, const std::string& what,
                     const std::function<void(Plan&)>& change) {
  Mutant& m = kit.make(family_name, what);
  m.believe = [change, fired = m.fired](Plan plan, int rank) {
    if (rank == 1) {
      change(plan);
      ++*fired;
    }
    return plan;
  };
}

void multiply_wrongly(Kit& kit, const std::string& family_name) {
  struct Named {
    Product product;
    const char* name;
  };
  for (const Named& p : {Named{Product::kForward, "forward"},
                         {Product::kInputGrad, "input gradient"},
                         {Product::kWeightGrad, "weight gradient"}}) {
    for (const double factor : {1.001, 2.0, -1.0}) {
      kit.add(family_name, text("scales ", p.name, " 3 by ", factor),
              SchemeFault{.product = p.product, .at = 3, .factor = factor});
    }
  }
  kit.add(family_name, "loses a weight gradient of the first micro-batch",
          SchemeFault{.product = Product::kWeightGrad, .at = 2, .factor = 0});
  kit.add(family_name, "reuses the weight gradient of the micro-batch before",
          SchemeFault{.product = Product::kWeightGrad, .action = SchemeAction::kStale, .at = 11});
}

}  // namespace kuafu::tests
