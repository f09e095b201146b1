// SPDX-License-Identifier: Apache-2.0
//
// The mutants, by family. Calls are counted from the first of a run: all faults but those of the
// second step strike in the first one, before the certificate gathers anything itself.

#include <set>

#include "tests/engine/mutant_kit.h"
#include "tests/support/plans.h"

namespace kuafu::tests {
namespace {

using Action = CommFault::Action;
using SchemeAction = SchemeFault::Action;
using Product = SchemeFault::Product;

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
  read_wrongly(kit, f, "replica 1 reads one sample further", DataFault::kNextSample);
  read_wrongly(kit, f, "replica 1 reads the samples of replica 0", DataFault::kFirstSamples);
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
  read_wrongly(kit, f, "rank 1's vocabulary begins one id too early", DataFault::kInputIds);
  read_wrongly(kit, f, "rank 1 looks for its targets one id too late", DataFault::kTargetIds);
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
  stale(kit, f, "x", Verb::kAllGather, 5);  // after the table: the weight of mlp.up for mlp.down's
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
  read_wrongly(kit, f, "rank 1 of a tensor group reads one sample further", DataFault::kNextSample);
}

/// Faults in what a sequence mode sends, in masks and in who holds which tokens.
void add_sequence(Kit& kit, const std::string& f, const std::vector<Verb>& verbs,
                  const std::vector<int64_t>& calls) {
  for (const Verb verb : verbs) {
    drop(kit, f, "sequence", verb, calls);
    on_one_rank(kit, f, "sequence", verb, 1);
    for (const double factor : {1.001, 2.0, -1.0}) scale(kit, f, "sequence", verb, 2, factor);
    scale(kit, f, "sequence", verb, 0, 1.001);
    // A call whose buffer an earlier one filled with something else; no two receives are as long.
    if (verb != Verb::kRecv) stale(kit, f, "sequence", verb, verb == Verb::kAllGather ? 2 : 3);
  }
  // Sums over ranks that hold other tokens: the first gradients of a step.
  drop(kit, f, "sequence", Verb::kAllReduce, {1, 2, 3, 7});
  scale(kit, f, "sequence", Verb::kAllReduce, 1, 0.5);
  // A ring of two has the same neighbour either way: swapped, it does what it did.
  if (f != "ring_2") kit.add(f, "swaps ranks 0 and 1 of the sequence", PlaceFault{0, 1, ""});
  kit.add(f, "shifts the causal mask by one", MaskFault::kShifted);
  kit.add(f, "sees the future", MaskFault::kNone);
  read_wrongly(kit, f, "rank 1 reads one sample further", DataFault::kNextSample);
  read_wrongly(kit, f, "rank 1 looks for its targets one id too late", DataFault::kTargetIds);
  believe_wrongly(kit, f, "rank 1 does not clip", [](Plan& p) { p.optimizer.clip = 0; });
  believe_wrongly(kit, f, "rank 1 weighs its loss by another batch",
                  [](Plan& p) { p.train.batch += p.train.micro_batch; });
}

/// Families that only the kit has.
Overrides own_family(const std::string& name) {
  const auto sequence = [](const char* mode, const char* size) {
    return Overrides{{"parallel.sequence.mode", mode}, {"parallel.sequence.size", size}};
  };
  if (name == "ring_2") return sequence("ring", "2");
  if (name == "zigzag_3") return sequence("ring-zigzag", "3");
  if (name == "ulysses_2") return sequence("ulysses", "2");
  if (name == "all_gather_3") return sequence("all-gather", "3");
  return {};
}

using AddKit = std::function<void(Kit&)>;
const std::vector<std::pair<std::string, AddKit>>& kits() {
  static const std::vector<std::pair<std::string, AddKit>> all = {
      {"data_2", add_data},
      {"t1d_2", add_1d},
      {"t1d_sp_2", add_1d_sp},
      {"t2d_4", add_2d},
      {"t2p5d_8", add_2p5d},
      {"t3d_8", add_3d},
      {"data_2_t1d_2", add_composed},
      {"ring_2",
       [](Kit& kit) {
         add_sequence(kit, "ring_2", {Verb::kSendRecv, Verb::kRecv}, {1, 2, 3, 4});
       }},
      {"zigzag_3",
       [](Kit& kit) {
         add_sequence(kit, "zigzag_3", {Verb::kSendRecv}, {1, 2, 3, 4, 5, 8});
       }},
      {"ulysses_2",
       [](Kit& kit) {
         add_sequence(kit, "ulysses_2", {Verb::kAllToAll}, {1, 2, 3, 4, 5, 8});
       }},
      {"all_gather_3", [](Kit& kit) {
         add_sequence(kit, "all_gather_3", {Verb::kAllGather, Verb::kReduceScatter}, {1, 2, 3});
       }}};
  return all;
}

}  // namespace

/// SGD with a clip that bites, so that neither the scale nor the norm of gradients may be off; two
/// micro-batches; a bucket a tensor, so that every gradient has a sum of its own.
Plan mutated_plan(const std::string& family_name) {
  // Depth and cubes deal a micro-batch out to four; one rank takes what they take.
  const bool takes_four = std::set<std::string>{"one_rank", "t2p5d_8", "t3d_8"}.count(family_name);
  const Overrides own = own_family(family_name);
  const Family base = own.empty() ? family(family_name) : Family{family_name, own};
  return plan_of(base, {{"optimizer.kind", "sgd"},
                        {"optimizer.lr", "0.1"},
                        {"optimizer.clip", "0.1"},
                        {"model.sequence", "8"},
                        {"model.hidden", "16"},
                        {"train.micro_batch", takes_four ? "4" : "2"},
                        {"parallel.data.bucket", "1"}});
}

const std::vector<std::string>& mutated_families() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> out;
    for (const auto& [name, add] : kits()) out.push_back(name);
    return out;
  }();
  return names;
}

std::vector<Mutant> mutants_of(const std::string& family_name) {
  Kit kit;
  for (const auto& [name, add] : kits()) {
    if (name == family_name) add(kit);
  }
  return kit.take();
}

Mutant harmless_mutant(const std::string& family_name) {
  constexpr int64_t kNever = int64_t{1} << 40;
  Kit kit;
  Mutant& m = kit.make(family_name, "changes nothing");
  const bool is_sequence = m.plan.parallel.sequence.size > 1;
  set_fault(m, CommFault{.axis = is_sequence ? "sequence" : "data", .at = kNever});
  set_fault(m, SchemeFault{.at = kNever});
  m.read = [](std::unique_ptr<Dataset> data, int) { return data; };
  return kit.take()[0];
}

}  // namespace kuafu::tests
