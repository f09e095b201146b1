// SPDX-License-Identifier: Apache-2.0
#include "tests/engine/composed.h"

namespace kuafu::tests {
namespace {

Overrides tensor(const std::string& mode, const std::string& size, const std::string& depth = "1") {
  Overrides o = {{"parallel.tensor.mode", mode}, {"parallel.tensor.size", size}};
  if (depth != "1") o.emplace_back("parallel.tensor.depth", depth);
  return o;
}

Overrides sequence(const std::string& mode, const std::string& size) {
  return {{"parallel.sequence.mode", mode}, {"parallel.sequence.size", size}};
}

Overrides experts(const std::string& size) {
  return {{"model.kind", "moe_gpt"}, {"model.experts", "4"}, {"parallel.expert.size", size}};
}

Overrides both(Overrides a, const Overrides& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// Layer 1 under another scheme than its neighbours.
Overrides mixed(const std::string& outer, const std::string& inner) {
  return both(tensor(outer, "4"),
              {{"model.heads", "4"},
               {"parallel.layers", text("[{ from = 1, to = 1, mode = \"", inner, "\" }]")}});
}

}  // namespace

const std::vector<Composed>& composed() {
  static const std::vector<Composed> all = {
      {"data_2", {}, 2},
      {"data_3", {}, 3},
      {"t1d_2", tensor("1d", "2")},
      {"t1d_sp_2", tensor("1d-sp", "2")},
      {"t2d_4", tensor("2d", "4")},
      {"t2p5d_4", tensor("2.5d", "4")},
      {"t2p5d_8", tensor("2.5d", "8", "2"), 1, 4},
      {"t3d_8", tensor("3d", "8"), 1, 4},
      {"ring_2", sequence("ring", "2")},
      {"zigzag_3", sequence("ring-zigzag", "3")},
      {"ulysses_2", sequence("ulysses", "2")},
      {"all_gather_2", sequence("all-gather", "2")},
      {"t1d_with_2d_layer_4", mixed("1d", "2d"), 1, 2, 3},
      {"t2d_with_1d_sp_layer_4", mixed("2d", "1d-sp"), 1, 2, 3},
      {"data_2_expert_2", experts("2"), 2},
      {"data_2_t1d_2", tensor("1d", "2"), 2},
      {"data_2_t2p5d_4", tensor("2.5d", "4"), 2},
      {"data_2_ulysses_2", sequence("ulysses", "2"), 2},
      {"data_2_t1d_2_expert_2", both(tensor("1d", "2"), experts("2")), 2},
      {"data_2_t1d_sp_2_ring_2", both(tensor("1d-sp", "2"), sequence("ring", "2")), 2},
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
  o = both(both(o, kind.overrides), more);
  return pipelined(pipe, micro_batches, o);
}

}  // namespace kuafu::tests
