// SPDX-License-Identifier: Apache-2.0
//
// The mutants, by family. Calls are counted from the first of a run: all faults but those of the
// second step strike in the first one, before the certificate gathers anything itself.

#include <set>

#include "tests/engine/mutants.h"
#include "tests/support/plans.h"

namespace kuafu::tests {
namespace {

using Action = CommFault::Action;
using SchemeAction = SchemeFault::Action;
using Product = SchemeFault::Product;

class Kit {
 public:
  template <class Fault>
  void add(const std::string& family_name, const std::string& what, const Fault& fault) {
    set_fault(make(family_name, what), fault);
  }
  Mutant& make(const std::string& family_name, const std::string& what) {
    mutants_.push_back({.name = family_name + ": " + what,
                        .plan = mutated_plan(family_name),
                        .fired = std::make_shared<std::atomic<int64_t>>(0)});
    return mutants_.back();
  }
  std::vector<Mutant> take() { return std::move(mutants_); }

 private:
  std::vector<Mutant> mutants_;
};

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

/// A dataset whose samples or ids are off.
class WrongData : public Dataset {
 public:
  enum class Fault { kNextSample, kFirstSamples, kInputIds, kTargetIds };
  WrongData(std::unique_ptr<Dataset> inner, Fault fault, int64_t count,
            std::shared_ptr<std::atomic<int64_t>> fired)
      : inner_(std::move(inner)), fault_(fault), count_(count), fired_(std::move(fired)) {}
  int64_t vocab() const override { return inner_->vocab(); }
  int64_t num_train_samples() const override { return inner_->num_train_samples(); }
  int64_t num_validation_samples() const override { return inner_->num_validation_samples(); }
  Tokens train(int64_t first, int64_t count) const override {
    ++*fired_;
    if (fault_ == Fault::kNextSample) return inner_->train(first + 1, count);
    if (fault_ == Fault::kFirstSamples) return inner_->train(first / count_ * count_, count);
    Tokens tokens = inner_->train(first, count);
    auto& ids = fault_ == Fault::kInputIds ? tokens.inputs : tokens.targets;
    for (int64_t& id : ids) id = (id + 1) % inner_->vocab();
    return tokens;
  }
  Tokens validation(int64_t first, int64_t count) const override {
    return inner_->validation(first, count);
  }
  std::string describe() const override { return inner_->describe(); }

 private:
  std::unique_ptr<Dataset> inner_;
  Fault fault_;
  int64_t count_;
  std::shared_ptr<std::atomic<int64_t>> fired_;
};

void read_wrongly(Kit& kit, const std::string& family_name, const std::string& what,
                  WrongData::Fault fault) {
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

void add_data(Kit& kit) {
  const std::string f = "data_2";
  drop(kit, f, "data", Verb::kAllReduce, {1, 2, 3, 7, 14});
  on_one_rank(kit, f, "data", Verb::kAllReduce, 4);
  for (const double factor : {0.5, 2.0, 1.001}) scale(kit, f, "data", Verb::kAllReduce, 0, factor);
  scale(kit, f, "data", Verb::kAllReduce, 5, -1);
  stale(kit, f, "data", Verb::kAllReduce, 4);
  stale(kit, f, "data", Verb::kAllReduce, 33);  // the same bucket in the second step
  kit.add(f, "takes the maximum in all_reduce 3 on data",
          CommFault{.action = Action::kMaximum, .axis = "data", .at = 3});
  read_wrongly(kit, f, "replica 1 reads one sample further", WrongData::Fault::kNextSample);
  read_wrongly(kit, f, "replica 1 reads the samples of replica 0", WrongData::Fault::kFirstSamples);
  believe_wrongly(kit, f, "replica 1 has other weights", [](Plan& p) { ++p.train.seed; });
  believe_wrongly(kit, f, "replica 1 has another learning rate",
                  [](Plan& p) { p.optimizer.lr *= 1.01; });
  believe_wrongly(kit, f, "replica 1 does not clip", [](Plan& p) { p.optimizer.clip = 0; });
  believe_wrongly(kit, f, "replica 1 has no momentum", [](Plan& p) { p.optimizer.momentum = 0; });
  believe_wrongly(kit, f, "replica 1 weighs its loss by its own batch",
                  [](Plan& p) { p.train.batch += p.parallel.data.size * p.train.micro_batch; });
  kit.add(f, "sees the future", MaskFault::kNone);
  kit.add(f, "shifts the causal mask by one", MaskFault::kShifted);
}

void add_1d(Kit& kit) {
  const std::string f = "t1d_2";
  // 1 embedding, 2 to 5 attention and mlp outputs, 6 to 8 cross entropy, 9 the head's input
  // gradient, 10 to 13 expanding layers' input gradients
  drop(kit, f, "tensor", Verb::kAllReduce, {1, 2, 3, 6, 7, 8, 9, 10, 13});
  on_one_rank(kit, f, "tensor", Verb::kAllReduce, 4);
  scale(kit, f, "tensor", Verb::kAllReduce, 4, 1.001);
  scale(kit, f, "tensor", Verb::kAllReduce, 9, 2);
  scale(kit, f, "tensor", Verb::kAllReduce, 10, -1);
  stale(kit, f, "tensor", Verb::kAllReduce, 3);
  stale(kit, f, "tensor", Verb::kAllReduce, 11);
  read_wrongly(kit, f, "rank 1's vocabulary begins one id too early", WrongData::Fault::kInputIds);
  read_wrongly(kit, f, "rank 1 looks for its targets one id too late",
               WrongData::Fault::kTargetIds);
  believe_wrongly(kit, f, "rank 1 does not clip", [](Plan& p) { p.optimizer.clip = 0; });
  multiply_wrongly(kit, f);
  kit.add(f, "multiplies one layer in the other role",
          SchemeFault{.product = Product::kForward, .action = SchemeAction::kOtherRole, .at = 2});
  kit.add(f, "shifts the causal mask by one", MaskFault::kShifted);
}

void add_1d_sp(Kit& kit) {
  const std::string f = "t1d_sp_2";
  drop(kit, f, "tensor", Verb::kReduceScatter, {1, 2, 3, 6});
  drop(kit, f, "tensor", Verb::kAllGather, {1, 2, 5, 9});
  scale(kit, f, "tensor", Verb::kReduceScatter, 2, 1.001);
  stale(kit, f, "tensor", Verb::kReduceScatter, 3);
  stale(kit, f, "tensor", Verb::kAllGather, 3);
  on_one_rank(kit, f, "tensor", Verb::kAllGather, 1);
  // Four micro-batches of 3 cross-entropy sums each; then the gradients of norms, biases and
  // positions, one by one.
  drop(kit, f, "tensor", Verb::kAllReduce, {13, 14, 15, 16, 18, 20, 25});
  kit.add(f, "swaps the two ranks of the tensor group", PlaceFault{0, 1, ""});
}

void add_2d(Kit& kit) {
  const std::string f = "t2d_4";
  for (const char* axis : {"row", "col"}) {
    drop(kit, f, axis, Verb::kBroadcast, {1, 2, 6});
    drop(kit, f, axis, Verb::kReduce, {1, 4});
    scale(kit, f, axis, Verb::kReduce, 3, 1.001);
  }
  stale(kit, f, "col", Verb::kBroadcast, 4);
  stale(kit, f, "row", Verb::kReduce, 2);
  drop(kit, f, "col", Verb::kAllReduce, {1, 2});        // moments of sharded norms
  drop(kit, f, "row", Verb::kReduceScatter, {1});       // embedding
  drop(kit, f, "row", Verb::kAllGather, {1});           // its gradient
  drop(kit, f, "row", Verb::kAllReduce, {1, 2, 5, 9});  // gradients of norms and biases
  kit.add(f, "swaps ranks 1 and 2 of the grid", PlaceFault{1, 2, ""});
  kit.add(f, "swaps ranks 0 and 3 of the grid", PlaceFault{0, 3, ""});
  multiply_wrongly(kit, f);
}

void add_2p5d(Kit& kit) {
  const std::string f = "t2p5d_8";
  for (const char* axis : {"row", "col"}) {
    drop(kit, f, axis, Verb::kBroadcast, {2, 5});
    drop(kit, f, axis, Verb::kReduce, {3});
  }
  drop(kit, f, "dep", Verb::kAllReduce, {1, 2, 5, 9});  // the layers' shares of every gradient
  scale(kit, f, "dep", Verb::kAllReduce, 3, 0.5);
  on_one_rank(kit, f, "dep", Verb::kAllReduce, 4);
  kit.add(f, "swaps ranks 0 and 4 of two layers", PlaceFault{0, 4, ""});
  multiply_wrongly(kit, f);
}

void add_3d(Kit& kit) {
  const std::string f = "t3d_8";
  for (const char* axis : {"x", "y", "z"}) {
    drop(kit, f, axis, Verb::kAllGather, {1, 2, 5});
    drop(kit, f, axis, Verb::kReduceScatter, {1, 2, 4});
    scale(kit, f, axis, Verb::kReduceScatter, 3, 1.001);
    on_one_rank(kit, f, axis, Verb::kAllGather, 2);
  }
  stale(kit, f, "x", Verb::kAllGather, 4);  // the weight of mlp.up for that of mlp.down
  stale(kit, f, "y", Verb::kAllGather, 3);
  stale(kit, f, "z", Verb::kAllGather, 3);
  drop(kit, f, "z", Verb::kAllReduce, {1, 2});     // moments of sharded norms
  drop(kit, f, "y", Verb::kAllReduce, {1, 2, 3});  // cross entropy over the vocabulary
  drop(kit, f, "x", Verb::kAllReduce, {1, 3, 6});  // gradients of norms and biases
  kit.add(f, "swaps ranks 1 and 2: y for z", PlaceFault{1, 2, ""});
  kit.add(f, "swaps ranks 0 and 7 of the cube", PlaceFault{0, 7, ""});
  multiply_wrongly(kit, f);
  kit.add(f, "multiplies one layer in the other role",
          SchemeFault{.product = Product::kForward, .action = SchemeAction::kOtherRole, .at = 2});
}

void add_composed(Kit& kit) {
  const std::string f = "data_2_t1d_2";
  drop(kit, f, "data", Verb::kAllReduce, {1, 6});
  drop(kit, f, "tensor", Verb::kAllReduce, {2, 9});
  scale(kit, f, "data", Verb::kAllReduce, 0, 0.5);
  on_one_rank(kit, f, "data", Verb::kAllReduce, 8);
  kit.add(f, "swaps ranks 1 and 2: data for tensor", PlaceFault{1, 2, ""});
  read_wrongly(kit, f, "rank 1 of a tensor group reads one sample further",
               WrongData::Fault::kNextSample);
}

}  // namespace

/// SGD with a clip that bites, so that neither the scale nor the norm of gradients may be off; two
/// micro-batches; a bucket a tensor, so that every gradient has a sum of its own.
Plan mutated_plan(const std::string& family_name) {
  // Depth and cubes deal a micro-batch out to four; one rank takes what they take.
  const bool takes_four = std::set<std::string>{"one_rank", "t2p5d_8", "t3d_8"}.count(family_name);
  return plan_of(family(family_name), {{"optimizer.kind", "sgd"},
                                       {"optimizer.lr", "0.1"},
                                       {"optimizer.clip", "0.1"},
                                       {"model.sequence", "8"},
                                       {"model.hidden", "16"},
                                       {"train.micro_batch", takes_four ? "4" : "2"},
                                       {"parallel.data.bucket", "1"}});
}

std::vector<Mutant> all_mutants() {
  Kit kit;
  add_data(kit);
  add_1d(kit);
  add_1d_sp(kit);
  add_2d(kit);
  add_2p5d(kit);
  add_3d(kit);
  add_composed(kit);
  return kit.take();
}

Mutant harmless_mutant(const std::string& family_name) {
  constexpr int64_t kNever = int64_t{1} << 40;
  Kit kit;
  Mutant& m = kit.make(family_name, "changes nothing");
  set_fault(m, CommFault{.axis = "data", .at = kNever});
  set_fault(m, SchemeFault{.at = kNever});
  m.read = [](std::unique_ptr<Dataset> data, int) { return data; };
  return kit.take()[0];
}

}  // namespace kuafu::tests
