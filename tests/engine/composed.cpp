// SPDX-License-Identifier: Apache-2.0
#include "tests/engine/composed.h"

namespace kuafu::tests {
namespace {

/// Layer 1 under another scheme than its neighbours.
Overrides mixed(const std::string& outer, const std::string& inner) {
  return keys::both(keys::tensor(outer, "4"),
                    {{"model.heads", "4"},
                     {"parallel.layers", text("[{ from = 1, to = 1, mode = \"", inner, "\" }]")}});
}

}  // namespace

const std::vector<Composed>& composed() {
  static const std::vector<Composed> all = {
      {"data_2", {}, 2},
      {"data_3", {}, 3},
      {"t1d_2", keys::tensor("1d", "2")},
      {"t1d_sp_2", keys::tensor("1d-sp", "2")},
      {"t2d_4", keys::tensor("2d", "4")},
      {"t2p5d_4", keys::tensor("2.5d", "4")},
      {"t2p5d_8", keys::tensor("2.5d", "8", "2"), 1, 4},
      {"t3d_8", keys::tensor("3d", "8"), 1, 4},
      {"ring_2", keys::sequence("ring", "2")},
      {"zigzag_3", keys::sequence("ring-zigzag", "3")},
      {"ulysses_2", keys::sequence("ulysses", "2")},
      {"all_gather_2", keys::sequence("all-gather", "2")},
      {"t1d_with_2d_layer_4", mixed("1d", "2d"), 1, 2, 3},
      {"t2d_with_1d_sp_layer_4", mixed("2d", "1d-sp"), 1, 2, 3},
      {"data_2_expert_2", keys::experts("2"), 2},
      {"data_2_t1d_2", keys::tensor("1d", "2"), 2},
      {"data_2_t2p5d_4", keys::tensor("2.5d", "4"), 2},
      {"data_2_ulysses_2", keys::sequence("ulysses", "2"), 2},
      {"data_2_t1d_2_expert_2", keys::both(keys::tensor("1d", "2"), keys::experts("2")), 2},
      {"data_2_t1d_sp_2_ring_2",
       keys::both(keys::tensor("1d-sp", "2"), keys::sequence("ring", "2")), 2},
  };
  return all;
}

const std::vector<Pipe>& two_rank_pipes() {
  static const std::vector<Pipe> all = {
      {"1f1b", 2, 1}, {"interleaved", 2, 2}, {"zero_bubble", 2, 1}, {"zbv", 2, 2}, {"gpipe", 2, 1}};
  return all;
}

Plan composed_plan(const Composed& kind, const Pipe& pipe, int64_t micro_batches,
                   const Overrides& more) {
  Overrides o = {
      {"parallel.data", text(kind.replicas)},
      {"model.layers", text(std::max<int64_t>(kind.layers, pipe.ranks * pipe.chunks - 1))},
      {"train.batch", text(kind.replicas * kind.samples * micro_batches)},
      {"train.micro_batch", text(kind.samples)}};
  o = keys::both(keys::both(o, kind.overrides), more);
  return pipelined(pipe, micro_batches, o);
}

}  // namespace kuafu::tests
