// SPDX-License-Identifier: Apache-2.0
//
// What all rules have in common: updates of master copies, norms of layers over a mesh,
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

/// Nobody reads a gradient after its update. A card's two passes wait for memory either way, and leave
/// nothing there; a gradient on a disk comes as it is for each.
bool is_spare(const ParamShard& shard, const Tensor& value) {
  const Tensor& grad = shard.grad;
  return !value.is_cuda() && shard.gradient_file == nullptr &&
         grad.scalar_type() == value.scalar_type() && grad.is_contiguous();
}

/// For its update, a matrix that has its step aside.
bool needs_gradient(const RulePiece& piece) { return !piece.step.defined(); }

/// Copies the tensors of one state into those of another. Throws ConfigError where names or shapes
/// differ.
void copy_state(const std::vector<SlotTensor>& from, const std::vector<SlotTensor>& to,
                RuleSlots& slots) {
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
  for (size_t i = 0; i < to.size(); ++i) {
    slots.use(to[i].shard, RuleSlots::Use::kChange);
    to[i].tensor.copy_(from[i].tensor);
  }
  slots.rest();
}

}  // namespace

Optimizer::Optimizer(const OptimizerPlan& plan, const OptimizerRules& rules, RuleSlots* slots)
    : plan_(plan),
      rule_(make_rule(plan, rules)),
      own_slots_(slots == nullptr ? std::make_unique<RuleSlots>() : nullptr),
      slots_(slots == nullptr ? own_slots_.get() : slots) {}

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
  if (!slots_->is_declared()) begin(shards);
  const States states = slots_->rows_of(shards);
  const Rates rates{.lr = lr, .step = ++num_steps_};
  std::vector<RulePiece> pieces;
  for (size_t i = 0; i < shards.size(); ++i) {
    const RuleSlots::Row& state = *states[i];
    pieces.push_back({.value = state.master.defined() ? state.master : shards[i].value,
                      .grad = shards[i].grad,
                      .slots = state.slots,
                      .grad_factor = shards[i].grad_factor,
                      .weight_decay = is_left_out(*shards[i].param) ? 0 : plan_.weight_decay,
                      .is_matrix = updates_whole(*shards[i].param)});
    pieces.back().is_grad_spare = is_spare(shards[i], pieces.back().value);
  }
  expect_uses(shards, states, pieces, mesh);
  std::vector<Tensor> ratios(shards.size());
  if (rule_.has_ratios()) ratios = ratios_of(shards, states, pieces, rates, mesh);
  std::vector<Tensor> steps = steps_of(shards, states, pieces, rates, mesh);
  for (size_t i = 0; i < shards.size(); ++i) {
    RulePiece& piece = pieces[i];
    piece.step = std::move(steps[i]);
    if (needs_gradient(piece)) bring_gradient(shards[i]);
    if (piece.is_matrix && !piece.step.defined()) {
      give_slots(piece, *states[i], SlotUse::kChange);
      const DirectionPiece whole{&shards[i], rule_.direction(piece, rates)};
      piece.step = steps_of_matrices({whole}, mesh, rule_.whole)[0];
    }
    give_slots(piece, *states[i], uses_of(piece).update);
    if (watch_ != nullptr) watch_->before_update(i, piece.value);
    if (observer_ != nullptr) observer_->before_update(i, piece);
    rule_.update(piece, rates, ratios[i]);
    if (observer_ != nullptr) observer_->after_update(i, piece);
    if (watch_ != nullptr) watch_->after_update(i, piece.value);
    piece.step = Tensor();  // one at a time, where a rank has all of it
    if (states[i]->master.defined()) shards[i].value.copy_(states[i]->master);
  }
  slots_->rest();
}

void Optimizer::expect_uses(std::span<const ParamShard> shards, const States& states,
                            const std::vector<RulePiece>& pieces, const Mesh& mesh) {
  expect_gradients_of(shards, pieces, mesh);
  if (!slots_->is_away()) return;
  std::vector<size_t> measured, directed, updated;
  for (size_t i = 0; i < shards.size(); ++i) {
    const size_t row = slots_->number_of(*states[i]);
    const SlotUses uses = uses_of(pieces[i]);
    const bool is_split = splitting_axes(shards[i], mesh) != 0;
    if (rule_.has_ratios() && uses.measure != SlotUse::kNone) measured.push_back(row);
    if (pieces[i].is_matrix && is_split) directed.push_back(row);
    const bool has_direction = pieces[i].is_matrix && !is_split;
    if (has_direction || uses.update != SlotUse::kNone) updated.push_back(row);
  }
  measured.insert(measured.end(), directed.begin(), directed.end());
  measured.insert(measured.end(), updated.begin(), updated.end());
  slots_->expect(measured);
}

void Optimizer::expect_gradients_of(std::span<const ParamShard> shards,
                                    const std::vector<RulePiece>& pieces, const Mesh& mesh) {
  std::vector<const ParamShard*> measured, directed, updated;
  for (size_t i = 0; i < shards.size(); ++i) {
    const bool is_split = splitting_axes(shards[i], mesh) != 0;
    if (rule_.has_ratios()) measured.push_back(&shards[i]);
    (pieces[i].is_matrix && is_split ? directed : updated).push_back(&shards[i]);
  }
  measured.insert(measured.end(), directed.begin(), directed.end());
  measured.insert(measured.end(), updated.begin(), updated.end());
  expect_gradients(measured);
}

void Optimizer::give_slots(RulePiece& piece, const RuleSlots::Row& state, SlotUse use) {
  piece.slots = use == SlotUse::kNone ? Tensors(state.slots.size()) : state.slots;
  if (use == SlotUse::kNone) return;
  slots_->use(slots_->number_of(state),
              use == SlotUse::kRead ? RuleSlots::Use::kRead : RuleSlots::Use::kChange);
}

void Optimizer::skip(std::span<const ParamShard> shards, const Mesh& mesh) {
  const at::NoGradGuard no_grad;
  if (!slots_->is_declared()) begin(shards);
  // Ratios of nothing, and steps of matrices, which are made of the momentum, are thrown away: a
  // skipped step has the traffic, the FLOPs and the memory of any other.
  if (rule_.has_ratios()) {
    ratios_from(shards, {.lr = plan_.lr, .step = num_steps_ + 1}, mesh,
                [&](size_t i, const ops::LayerRun& run) {
                  const auto f64 = shards[i].value.options().dtype(at::kDouble);
                  return at::zeros({run.layers, rule_.num_norms}, f64.requires_grad(false));
                });
  }
  const States states = slots_->rows_of(shards);
  const auto direction = [&](size_t i) {
    slots_->use(slots_->number_of(*states[i]), RuleSlots::Use::kRead);
    const Tensor& u = states[i]->slots[0];
    return DirectionPiece{&shards[i], rule_.has_own_direction ? u.clone() : kept(u)};
  };
  std::vector<DirectionPiece> parts;
  std::vector<size_t> at;
  for (size_t i = 0; i < shards.size(); ++i) {
    if (!updates_whole(*shards[i].param) || splitting_axes(shards[i], mesh) == 0) continue;
    at.push_back(i);
    parts.push_back(direction(i));
  }
  std::vector<Tensor> steps(shards.size()), found = steps_of_matrices(parts, mesh, rule_.whole);
  for (size_t i = 0; i < at.size(); ++i) steps[at[i]] = std::move(found[i]);
  for (size_t i = 0; i < shards.size(); ++i) {
    Tensor step = std::move(steps[i]);
    if (updates_whole(*shards[i].param) && !step.defined()) {
      step = steps_of_matrices({direction(i)}, mesh, rule_.whole)[0];
    }
    if (watch_ == nullptr) continue;
    const Tensor& master = states[i]->master;
    const Tensor& value = master.defined() ? master : shards[i].value;
    watch_->before_update(i, value);
    watch_->after_update(i, value);
  }
  slots_->rest();
}

std::vector<Tensor> Optimizer::steps_of(std::span<const ParamShard> shards, const States& states,
                                        std::vector<RulePiece>& pieces, const Rates& rates,
                                        const Mesh& mesh) {
  std::vector<Tensor> steps(shards.size());
  std::vector<size_t> at;
  std::vector<DirectionPiece> parts;
  for (size_t i = 0; i < shards.size(); ++i) {
    if (!updates_whole(*shards[i].param) || splitting_axes(shards[i], mesh) == 0) continue;
    at.push_back(i);
    bring_gradient(shards[i]);
    give_slots(pieces[i], *states[i], SlotUse::kChange);
    parts.push_back({&shards[i], kept(rule_.direction(pieces[i], rates))});
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
    out.sums[axes] = at::zeros({height, rule_.num_norms}, f64);
  }
  return out;
}

std::vector<Tensor> Optimizer::ratios_of(std::span<const ParamShard> shards, const States& states,
                                         std::vector<RulePiece>& pieces, const Rates& rates,
                                         const Mesh& mesh) {
  return ratios_from(shards, rates, mesh, [&](size_t i, const ops::LayerRun& run) {
    pieces[i].layers = run;
    bring_gradient(shards[i]);
    give_slots(pieces[i], *states[i], uses_of(pieces[i]).measure);
    return rule_.measure(pieces[i], rates);
  });
}

std::vector<Tensor> Optimizer::ratios_from(
    std::span<const ParamShard> shards, const Rates& rates, const Mesh& mesh,
    const std::function<Tensor(size_t piece, const ops::LayerRun&)>& sums_of) {
  auto [all_rows, tables] = tables_of(shards, mesh);
  for (size_t i = 0; i < shards.size(); ++i) {
    const Rows& rows = all_rows[i];
    const Tensor sums = sums_of(i, rows.run);
    if (!is_scaled(*shards[i].param)) continue;
    tables.at(rows.axes).narrow(0, rows.first, rows.run.layers).copy_(sums);
  }
  sum_over_axes({tables.begin(), tables.end()}, mesh);
  for (auto& [axes, table] : tables) table = rule_.ratios(table.sqrt(), rates);
  std::vector<Tensor> ratios;
  for (size_t i = 0; i < shards.size(); ++i) {
    const Rows& rows = all_rows[i];
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
  return {.num_steps = num_steps_, .tensors = slots_->tensors()};
}

void Optimizer::begin(std::span<const ParamShard> shards, int64_t num_steps) {
  num_steps_ = num_steps;
  slots_->declare(
      shards, [this](const Param& p) -> const auto& { return slots_of(p); });
}

void Optimizer::restore(std::span<const ParamShard> shards, const OptimizerState& from) {
  begin(shards, from.num_steps);
  copy_state(from.tensors, state().tensors, *slots_);
}

std::unique_ptr<Optimizer> make_optimizer(const OptimizerPlan& plan, const OptimizerRules& rules,
                                          RuleSlots* slots) {
  return std::make_unique<Optimizer>(plan, rules, slots);
}

}  // namespace kuafu
