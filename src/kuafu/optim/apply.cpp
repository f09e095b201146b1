// SPDX-License-Identifier: Apache-2.0
//
// What all rules have in common: slots and master copies by shard, norms of layers over a mesh,
// matrices that come together (matrices.cpp).
//
// A layer's sums of squares are rows of a table in f64, one table for each set of axes that splits
// parameters. A rank fills the rows of what it holds; then each axis carries one all-reduce with all
// tables whose layers it splits. Replicas fill the same rows and meet nobody, stages of a pipeline
// have tables of their own; a copy of a tied parameter has the elements of its owner, and so its
// norms, to the bit.

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <map>

#include "kuafu/base/errors.h"
#include "kuafu/base/suggest.h"
#include "kuafu/meter/allocator.h"
#include "kuafu/optim/layer_watch.h"
#include "kuafu/optim/matrices.h"
#include "kuafu/optim/norm.h"

namespace kuafu {
namespace {

/// f32 and f64 values are updated in place. Half-precision ones have an f32 master copy, which is
/// optimizer state: a step of lr 1e-4 is lost in a bf16's 8 bits.
bool needs_master(const Tensor& value) {
  return value.scalar_type() == at::kBFloat16 || value.scalar_type() == at::kHalf;
}

/// A slot like value, in the type it is updated in.
Tensor new_slot(const Tensor& value) {
  const CategoryScope scope(Category::kOptimizer);
  const auto type = needs_master(value) ? at::kFloat : value.scalar_type();
  return at::zeros(value.sizes(), value.options().dtype(type).requires_grad(false));
}

/// The master copy of a half-precision value; undefined for others.
Tensor new_master(const Tensor& value) {
  if (!needs_master(value)) return {};
  const Tensor master = new_slot(value);
  master.copy_(value.detach());
  return master;
}

/// Copies the tensors of one state into those of another. Throws ConfigError where names or shapes
/// differ.
void copy_state(const std::vector<SlotTensor>& from, const std::vector<SlotTensor>& to) {
  KUAFU_REQUIRE(from.size() == to.size(), "an optimizer state of ", from.size(),
                " tensors cannot be restored into one of ", to.size(),
                ": kind, dtype and parameters must be those of the saved run");
  const auto describe = [](const SlotTensor& t) {
    return text(t.slot, " of ", t.param, " ", to_string(shape_of(t.tensor)));
  };
  for (size_t i = 0; i < to.size(); ++i) {
    KUAFU_REQUIRE(describe(from[i]) == describe(to[i]), "optimizer state ", describe(from[i]),
                  " was given where ", describe(to[i]), " is expected");
  }
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < to.size(); ++i) to[i].tensor.copy_(from[i].tensor);
}

}  // namespace

Optimizer::Optimizer(const OptimizerPlan& plan, const OptimizerRules& rules)
    : plan_(plan), rule_(make_rule(plan, rules)) {}

bool Optimizer::is_scaled(const Param& p) const { return plan_.scales(is_left_out(p)); }

bool Optimizer::is_left_out(const Param& p) const {
  return plan_.leaves_vectors_out(rule_.is_by_layers()) && holds_vectors(p);
}

const std::vector<std::string>& Optimizer::slots_of(const Param& p) const {
  return updates_whole(p) ? rule_.matrix_slots : rule_.slots;
}

bool Optimizer::updates_whole(const Param& p) const {
  return rule_.has_matrices() && holds_hidden_matrices(p);
}

void Optimizer::step(std::span<ParamShard> shards, double lr) { step(shards, lr, Mesh({}, 0)); }

void Optimizer::step(std::span<ParamShard> shards, double lr, const Mesh& mesh) {
  const at::NoGradGuard no_grad;
  const std::vector<State*> states = states_of(shards);
  const Rates rates{.lr = lr, .step = ++num_steps_};
  std::vector<RulePiece> pieces;
  for (size_t i = 0; i < shards.size(); ++i) {
    const State& state = *states[i];
    pieces.push_back({.value = state.master.defined() ? state.master : shards[i].value,
                      .grad = shards[i].grad,
                      .slots = state.slots,
                      .grad_factor = shards[i].grad_factor,
                      .weight_decay = is_left_out(*shards[i].param) ? 0 : plan_.weight_decay});
    if (updates_whole(*shards[i].param)) pieces.back().matrix = shards[i].param;
  }
  std::vector<Tensor> ratios(shards.size());
  if (rule_.has_ratios()) ratios = ratios_of(shards, pieces, rates, mesh);
  std::vector<Tensor> steps = steps_of(shards, pieces, rates, mesh);
  for (size_t i = 0; i < shards.size(); ++i) {
    RulePiece& piece = pieces[i];
    piece.step = std::move(steps[i]);
    if (updates_whole(*shards[i].param) && !piece.step.defined()) {
      const DirectionPiece whole{&shards[i], rule_.direction(piece, rates)};
      piece.step = steps_of_matrices({whole}, mesh, rule_.whole)[0];
    }
    if (watch_ != nullptr) watch_->before_update(i, piece.value);
    rule_.update(piece, rates, ratios[i]);
    if (watch_ != nullptr) watch_->after_update(i, piece.value);
    piece.step = Tensor();  // one at a time, where a rank has all of it
    if (states[i]->master.defined()) shards[i].value.copy_(states[i]->master);
  }
}

void Optimizer::skip(std::span<const ParamShard> shards, const Mesh& mesh) const {
  const at::NoGradGuard no_grad;
  if (rule_.has_ratios()) sum_over_axes(tables_of(shards, mesh).partial, mesh);
  std::vector<DirectionPiece> nothing;
  for (const ParamShard& s : shards) {
    if (!updates_whole(*s.param) || splitting_axes(s, mesh) == 0) continue;
    const auto type = needs_master(s.value) ? at::kFloat : s.value.scalar_type();
    const Tensor zero = at::zeros({1}, s.value.options().dtype(type).requires_grad(false));
    nothing.push_back({&s, zero.expand({s.value.numel()})});
  }
  steps_of_matrices(nothing, mesh, [](const Tensor& u, const LayerSplit&) { return u; });
}

std::vector<Tensor> Optimizer::steps_of(std::span<const ParamShard> shards,
                                        std::vector<RulePiece>& pieces, const Rates& rates,
                                        const Mesh& mesh) const {
  std::vector<Tensor> steps(shards.size());
  std::vector<size_t> at;
  std::vector<DirectionPiece> parts;
  for (size_t i = 0; i < shards.size(); ++i) {
    if (!updates_whole(*shards[i].param) || splitting_axes(shards[i], mesh) == 0) continue;
    at.push_back(i);
    parts.push_back({&shards[i], rule_.direction(pieces[i], rates)});
  }
  const std::vector<Tensor> found = steps_of_matrices(parts, mesh, rule_.whole);
  for (size_t i = 0; i < at.size(); ++i) steps[at[i]] = found[i];
  return steps;
}

Optimizer::Tables Optimizer::tables_of(std::span<const ParamShard> shards, const Mesh& mesh) const {
  Tables out;
  std::map<uint64_t, int64_t> heights;  // in the same order on every rank
  for (const ParamShard& shard : shards) {
    const ShardLayers held = layers_of(shard, mesh);
    const uint64_t axes = splitting_axes(shard, mesh);
    out.rows.push_back({axes, heights[axes] + held.first, held.first, held.run});
    if (is_scaled(*shard.param)) heights[axes] += num_layers(*shard.param);
  }
  for (const auto& [axes, height] : heights) {
    const auto f64 = shards[0].value.options().dtype(at::kDouble).requires_grad(false);
    out.partial.push_back({axes, at::zeros({height, rule_.num_norms}, f64)});
  }
  return out;
}

std::vector<Tensor> Optimizer::ratios_of(std::span<const ParamShard> shards,
                                         std::vector<RulePiece>& pieces, const Rates& rates,
                                         const Mesh& mesh) const {
  const Tables all = tables_of(shards, mesh);
  std::map<uint64_t, Tensor> tables;
  for (const PartialSums& p : all.partial) tables[p.axes] = p.sums;
  for (size_t i = 0; i < shards.size(); ++i) {
    const Rows& rows = all.rows[i];
    pieces[i].layers = rows.run;
    const Tensor sums = rule_.measure(pieces[i], rates);
    if (!is_scaled(*shards[i].param)) continue;
    tables.at(rows.axes).narrow(0, rows.first, rows.run.layers).copy_(sums);
  }
  sum_over_axes(all.partial, mesh);
  for (auto& [axes, table] : tables) table = rule_.ratios(table.sqrt(), rates);
  std::vector<Tensor> ratios;
  for (size_t i = 0; i < shards.size(); ++i) {
    const Rows& rows = all.rows[i];
    const Tensor& table = tables.at(rows.axes);
    const bool has_own = is_scaled(*shards[i].param);
    ratios.push_back(has_own ? table.narrow(0, rows.first, rows.run.layers)
                             : at::ones({rows.run.layers}, table.options()));
    if (watch_ == nullptr) continue;
    const int64_t layers = num_layers(*shards[i].param);
    watch_->set_ratios(i, has_own ? table.narrow(0, rows.first - rows.held, layers)
                                  : at::ones({layers}, table.options()));
  }
  return ratios;
}

OptimizerState Optimizer::state() const {
  OptimizerState all{.num_steps = num_steps_, .tensors = {}};
  for (size_t i = 0; i < states_.size(); ++i) {
    const State& s = states_[i];
    for (size_t k = 0; k < s.slots.size(); ++k) {
      all.tensors.push_back({s.param->name, slots_of(*s.param)[k], s.slots[k], i});
    }
    if (s.master.defined()) all.tensors.push_back({s.param->name, "master", s.master, i});
  }
  return all;
}

void Optimizer::begin(std::span<const ParamShard> shards, int64_t num_steps) {
  const at::NoGradGuard no_grad;
  num_steps_ = num_steps;
  states_.clear();
  for (const ParamShard& s : shards) {
    State& state = states_.emplace_back();
    state.param = s.param;
    for (size_t k = 0; k < slots_of(*s.param).size(); ++k) state.slots.push_back(new_slot(s.value));
    state.master = new_master(s.value);
  }
}

void Optimizer::restore(std::span<const ParamShard> shards, const OptimizerState& from) {
  begin(shards, from.num_steps);
  copy_state(from.tensors, state().tensors);
}

std::vector<Optimizer::State*> Optimizer::states_of(std::span<const ParamShard> shards) {
  if (states_.empty()) begin(shards);
  std::vector<State*> found;
  size_t at = 0;
  for (const ParamShard& s : shards) {
    KUAFU_CHECK(s.param != nullptr && s.value.defined() && s.grad.defined(), "a shard of ",
                s.param == nullptr ? "nothing" : s.param->name, " lacks its value or gradient");
    while (at < states_.size() && states_[at].param != s.param) ++at;
    KUAFU_CHECK(at < states_.size(), "a step over ", s.param->name,
                ", of which there is no state, or not in this order");
    found.push_back(&states_[at++]);
  }
  return found;
}

std::unique_ptr<Optimizer> make_optimizer(const OptimizerPlan& plan, const OptimizerRules& rules) {
  return std::make_unique<Optimizer>(plan, rules);
}

}  // namespace kuafu
