// SPDX-License-Identifier: Apache-2.0
//
// Right arithmetic on the wrong elements: shards, offsets, places, rows and samples of somebody
// else.

#include <ATen/ATen.h>

#include "tests/mutants/mutant.h"
#include "tests/mutants/op_kit.h"
#include "tests/support/plans.h"

namespace kuafu::tests {
namespace {

using keys::both;
using keys::sequence;
using keys::tensor;

const Overrides kFour = {{"train.micro_batch", "4"}};

void add_places(Kit& kit) {
  const auto swap = [&](const std::string& what, const Overrides& o, int a, int b) {
    kit.add(text(what, ": ranks ", a, " and ", b, " change places"), o, PlaceFault{a, b});
  };
  swap("1D-SP", tensor("1d-sp", "2"), 0, 1);
  swap("2D", tensor("2d", "4"), 1, 2);
  swap("2D", tensor("2d", "4"), 0, 3);
  swap("2.5D", both(tensor("2.5d", "8", "2"), kFour), 0, 4);
  swap("3D", both(tensor("3d", "8"), kFour), 1, 2);
  swap("3D", both(tensor("3d", "8"), kFour), 0, 7);
  swap("2 replicas of 1D", both(tensor("1d", "2"), {{"parallel.data", "2"}}), 1, 2);
  swap("ZeRO-1 and 1D", both(tensor("1d", "2"), {{"parallel.data", "2"}, {"parallel.zero", "1"}}),
       1, 2);
  swap("zig-zag", sequence("ring-zigzag", "3"), 0, 1);
  kit.mutants.back().causes = {"group 'sequence'"};  // parts differ in length
  swap("Ulysses", sequence("ulysses", "2"), 0, 1);
  swap("gathered keys", sequence("all-gather", "3"), 0, 1);
  swap("pipeline of replicas", {{"parallel.pipeline.size", "2"}, {"parallel.data", "2"}}, 1, 2);
}

void add_parts(Kit& kit) {
  const auto swap = [&](const std::string& what, const Overrides& o, const char* axis, Verb verb,
                        int64_t at) {
    kit.add(
        text(what, ": parts of ", to_string(verb), " ", at, " on ", axis, " change places"), o,
        CommFault{.action = CommFault::Action::kSwapParts, .axis = axis, .verb = verb, .at = at});
  };
  swap("1D-SP", tensor("1d-sp", "2"), "tensor", Verb::kAllGather, 1);
  swap("1D-SP", tensor("1d-sp", "2"), "tensor", Verb::kAllGather, 3);
  for (const char* axis : {"x", "y", "z"}) {
    swap("3D", both(tensor("3d", "8"), kFour), axis, Verb::kAllGather, 2);
  }
  swap("ZeRO-1", {{"parallel.data", "2"}, {"parallel.zero", "1"}}, "data", Verb::kAllGather, 3);
  swap("ZeRO-3", {{"parallel.data", "2"}, {"parallel.zero", "3"}}, "data", Verb::kAllGather, 3);
  swap("Ulysses", sequence("ulysses", "2"), "sequence", Verb::kAllToAll, 1);
  swap("Ulysses", sequence("ulysses", "2"), "sequence", Verb::kAllToAll, 4);
  swap("gathered keys", sequence("all-gather", "3"), "sequence", Verb::kAllGather, 2);
  swap("experts", both(keys::experts("2"), {{"parallel.data", "2"}}), "expert", Verb::kAllToAll, 1);
  swap("experts", both(keys::experts("2"), {{"parallel.data", "2"}}), "expert", Verb::kAllToAll, 2);
}

/// A shard that begins an element too late.
void add_offsets(Kit& kit) {
  const auto add = [&](const std::string& what, const Overrides& o, OpFault fault, int rank = -1) {
    fault.rank = rank;
    kit.add(what, o, fault);
  };
  const Overrides on_two = tensor("1d", "2"),
                  ring = both(sequence("ring", "2"), {{"model.positions", "rotary"}});
  add("the vocabulary shard of rank 1 begins an id late in the lookup", on_two,
      with_int("embedding", 2, 1), 1);
  add("the vocabulary shard of rank 1 begins an id late in the lookup's gradient", on_two,
      with_int("embedding_backward", 2, 1), 1);
  add("the vocabulary shard of rank 1 begins a column late in the loss", on_two,
      with_int("cross_entropy_stats", 2, 1), 1);
  add("the vocabulary shard of rank 1 begins a column late in the loss's gradient", on_two,
      with_int("cross_entropy_backward", 5, 1), 1);
  add("the last id counts as padding in the loss", on_two, with_int("cross_entropy_stats", 3, -1));
  kit.mutants.back().causes = {"a target is outside"};
  add("the last id counts as padding in the loss's gradient", on_two,
      with_int("cross_entropy_backward", 6, -1));
  add("rank 1 of a ring begins a position late", ring,
      with_argument("rope", 1, [](at::IValue& v) { v = v.toTensor() + 1; }), 1);
  const Overrides dropped = both(tensor("1d-sp", "2"), {{"model.dropout", "0.1"}});
  for (const size_t dim : {size_t{0}, size_t{1}, size_t{2}}) {
    add(text("the dropout mask of rank 1 is off by one in dim ", dim), dropped,
        with_argument("dropout", 6,
                      [dim](at::IValue& v) {
                        std::vector<int64_t> offset = v.toIntVector();
                        ++offset[dim];
                        v = offset;
                      }),
        1);
  }
  add("the dropout mask is that of another extent", dropped,
      with_argument("dropout", 5, [](at::IValue& v) {
        std::vector<int64_t> extents = v.toIntVector();
        ++extents[2];
        v = extents;
      }));
  const Overrides mixture = keys::experts("1");
  add("slots take the row beside", mixture,
      with_argument("take_slots", 1, [](at::IValue& v) { v = at::roll(v.toTensor(), {1}, {2}); }));
  add("slots give to the row beside", mixture,
      with_argument("combine", 2, [](at::IValue& v) { v = at::roll(v.toTensor(), {1}, {2}); }));
  add("slots' gradients go to the row beside", mixture,
      with_argument("sum_slots", 1, [](at::IValue& v) { v = at::roll(v.toTensor(), {1}, {2}); }));
}

void add_rest(Kit& kit) {
  using Product = SchemeFault::Product;
  using enum SchemeFault::Action;
  for (const auto& [name, o] : std::vector<std::pair<std::string, Overrides>>{
           {"1D", tensor("1d", "2")}, {"3D", both(tensor("3d", "8"), kFour)}}) {
    kit.add(name + " multiplies one layer in the other role", o,
            SchemeFault{.product = Product::kForward, .action = kOtherRole, .at = 2});
  }
  kit.add("1D multiplies a gradient in the other role", tensor("1d", "2"),
          SchemeFault{.product = Product::kInputGrad, .action = kOtherRole, .at = 2});
  kit.add("zig-zag forgets its order", sequence("ring-zigzag", "2"), AttentionFault::kNoOrder);
  kit.add("a query head reads the keys beside", tensor("1d", "2"), AttentionFault::kNextHead);
  kit.add("Ulysses with the keys of the head beside", sequence("ulysses", "2"),
          AttentionFault::kNextHead);
  for (const char* mode : {"ring", "ring-zigzag", "all-gather"}) {
    kit.add(text(mode, ": a rank attends to its own block"), sequence(mode, "2"),
            AttentionFault::kOwnBlockOnly);
  }
  const Overrides experts = both(keys::experts("2"), {{"parallel.data", "2"}});
  kit.add("slots with the row of the slot before", experts, SlotFault::kNextRow);
  kit.add("rows to the expert beside", experts, SlotFault::kNextExpert);
  const Overrides replicas = {{"parallel.data", "2"}};
  kit.add("rank 1 reads one sample further", replicas, DataFault::kNextSample);
  kit.add("rank 1 reads the first samples", replicas, DataFault::kFirstSamples);
  kit.add("rank 1 of a ring reads one sample further", sequence("ring", "2"),
          DataFault::kNextSample);
  kit.add("rank 1 of a tensor group reads one sample further", both(tensor("1d", "2"), replicas),
          DataFault::kNextSample);
  kit.add("rank 1 reads the ids beside", tensor("1d", "2"), DataFault::kInputIds);
  kit.add("rank 1 reads the targets beside", tensor("1d", "2"), DataFault::kTargetIds);
  kit.add("rank 1 of a ring reads the targets beside", sequence("ring", "2"),
          DataFault::kTargetIds);
  kit.believe("replica 1 draws other weights", replicas, [](Plan& p) { ++p.train.seed; });
  kit.believe("rank 1 of a tensor group draws other weights", tensor("1d", "2"),
              [](Plan& p) { ++p.train.seed; });
}

}  // namespace

Kit layout_kit() {
  Kit kit{.name = "layouts"};
  add_places(kit);
  add_parts(kit);
  add_offsets(kit);
  add_rest(kit);
  for (const Overrides& o : {tensor("1d", "2"), tensor("2d", "4"), sequence("ring-zigzag", "2"),
                             Overrides{{"parallel.data", "2"}, {"parallel.zero", "3"}}}) {
    Mutant& none = kit.harmless.emplace_back(Mutant{.name = "nothing", .overrides = o});
    set_fault(none, PlaceFault{0, 0});
    set_fault(none, with_int("embedding", 2, 0));
  }
  return kit;
}

}  // namespace kuafu::tests
