// SPDX-License-Identifier: Apache-2.0
#include "app/worker/explained.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "app/worker/document.h"
#include "app/worker/explain_moves.h"
#include "app/worker/explain_pipeline.h"
#include "app/worker/options.h"
#include "app/worker/plan_json.h"
#include "kuafu/comm/simulated.h"
#include "kuafu/dataset/no_data.h"
#include "kuafu/engine/engine.h"
#include "kuafu/engine/stepping/stage_map.h"
#include "kuafu/meter/book.h"
#include "kuafu/meter/flops.h"
#include "kuafu/optim/rule.h"
#include "kuafu/parallel/tensor/embedding.h"

namespace kuafu {
namespace {

/// Replicas of more ranks are looked at by the first rank of each tensor group.
constexpr int64_t kMostRanksSimulated = 64;

std::string letters_of(const Param& p) {
  if (is_token_table(p) || p.name == "head.tokens") return "VH";
  if (p.name.find("embedding.positions") == 0) return "SH";
  const bool is_of_experts =
      p.name.find(".moe.") != std::string::npos && p.layout.dims.size() > 1 &&
      p.name.find(".router.") == std::string::npos && p.name.find(".shared.") == std::string::npos;
  if (is_of_experts) return p.global.size() == 3 ? "EIO" : "EO";
  if (p.global.size() == 2) return "IO";
  if (p.global.size() > 2) return std::string("ABCDEFGH").substr(0, p.global.size());
  return "H";
}

void add_params(Explained& all, const Context& ctx, Model& model) {
  for (const auto& block : model.blocks) {
    for (const Param* p : block->params()) {
      Axes summed = p->grad_axes;
      if (ctx.mesh.size("data") > 1) summed.push_back("data");
      std::erase_if(summed, [&](const std::string& axis) { return ctx.mesh.size(axis) == 1; });
      all.params.push_back({p->name, p->global, to_string(p->layout, letters_of(*p)),
                            shape_of(p->value), std::move(summed)});
    }
  }
}

/// The model's table of tokens; null where it has none.
const Param* token_table(Model& model) {
  for (const auto& block : model.blocks) {
    for (const Param* p : block->params()) {
      if (is_token_table(*p)) return p;
    }
  }
  return nullptr;
}

/// `table` is that of the model's tokens; null where these are not its layers.
void add_costs(Explained& all, const Context& ctx, const std::string& layers, const Param* table) {
  struct Row {
    const char* name;
    int64_t in, out;
    Role role;
  };
  const Plan& plan = all.plan;
  const int64_t h = plan.model.hidden;
  const Shape tokens = {plan.train.micro_batch, plan.model.sequence};
  const int64_t f = plan.model.ffn_width(), up = plan.model.mlp == "swiglu" ? 2 * f : f;
  const auto add = [&](const char* name, const Cost& cost) {
    all.costs.push_back({layers, name, cost});
  };
  if (table != nullptr) {
    const TokenGrid grid{ctx.activation(Stream::kOuter), tokens[0], tokens[1]};
    add("embedding", embedding_cost(ctx.mesh, table->global, table->layout, grid));
  }
  std::vector<Row> linears;
  const int64_t e = plan.model.embedding_width();
  if (table != nullptr && e != h) {
    linears.push_back({"embedding project", e, h, Role::kExpand});
    linears.push_back({"head project", h, e, Role::kExpand});
  }
  if (plan.model.num_kv_heads() != plan.model.heads) {
    // Ranks that outnumber the key-value heads have one each.
    const int64_t ranks = ctx.mesh.size(ctx.activation(Stream::kInner).dims[2]);
    const int64_t kv_heads = std::max(plan.model.kv_heads, ranks);
    linears.push_back({"attention q", h, h, Role::kExpand});
    linears.push_back({"attention kv", h, 2 * kv_heads * h / plan.model.heads, Role::kExpand});
  } else {
    linears.push_back({"attention qkv", h, 3 * h, Role::kExpand});
  }
  linears.push_back({"attention out", h, h, Role::kContract});
  linears.push_back({"mlp up", h, up, Role::kExpand});
  linears.push_back({"mlp down", f, h, Role::kContract});
  for (const Row& row : linears) {
    const bool expands = row.role == Role::kExpand;
    const auto elements = [&](const Layout& layout, const Shape& shape) {
      int64_t n = 1;
      for (const int64_t extent : local_shape(layout, shape, ctx.mesh, row.name)) n *= extent;
      return n;
    };
    const Layout in = ctx.activation(expands ? Stream::kOuter : Stream::kInner);
    const Layout out = ctx.activation(expands ? Stream::kInner : Stream::kOuter);
    const LinearShape shape{elements(in, {tokens[0], tokens[1], row.in}),
                            elements(ctx.weight(row.role), {row.in, row.out}),
                            elements(out, {tokens[0], tokens[1], row.out})};
    add(row.name, ctx.tensor.cost(shape, row.role));
  }
}

/// Rank 0, and the fullest of the first replica: replicas hold alike.
void add_counts(Explained& all, const Registries& registries) {
  const auto ranks = static_cast<int>(num_ranks(all.plan));
  const AxisAliases aliases = mesh_aliases(all.plan, registries.tensor_modes());
  const int64_t replicas = all.plan.parallel.data.size, group = all.plan.parallel.tensor.size;
  const bool is_large = ranks / replicas > kMostRanksSimulated;
  SimulatedWorld world(ranks);
  for (int r = 0; r < ranks; ++r) {
    const Mesh mesh(all.axes, r, aliases);
    if (mesh.coord(Axes{"data"}) != 0 || (is_large && r % group != 0)) continue;
    // An estimate of a plan over its budget is wanted, not an error.
    const RankResult result = simulate_need(all.plan, registries, world, r);
    ++all.simulated_ranks;
    add_to_count(all.flops, static_cast<uint64_t>(result.flops), flops::kWhat);
    add_to_count(all.flops_recomputed, static_cast<uint64_t>(result.flops_recomputed),
                 flops::kWhat);
    if (r == 0) all.first = result;
    if (r > 0 && result.peak_bytes <= all.fullest.peak_bytes) continue;
    all.fullest = result;
    all.fullest_rank = r;
  }
  const uint64_t alike = static_cast<uint64_t>(ranks / all.simulated_ranks);
  for (uint64_t* count : {&all.flops, &all.flops_recomputed}) {
    if (__builtin_mul_overflow(*count, alike, count)) throw_too_large(flops::kWhat);
  }
}

/// What the rule does to a whole matrix once, in FLOPs.
uint64_t flops_of_whole(const Rule& rule, const Param& p) {
  const size_t dim = p.layers.is_stacked ? 1 : 0;
  RankBook book(0);
  const BookScope booked(&book);
  rule.whole(at::empty({p.global[dim], p.global[dim + 1]}, at::device(at::kMeta)), p.layers);
  return static_cast<uint64_t>(book.flops_optimizer());
}

/// Matrices are dealt among the ranks that hold parts of them, one here and two there: no rank
/// stands for others. Ranks that hold the same parts all do it.
void add_optimizer(Explained& all, const Registries& registries) {
  const Rule rule = make_rule(all.plan.optimizer, registries.optimizers);
  if (!rule.has_matrices()) return;
  Plan plan = all.plan;
  plan.memory.device.reset();
  const auto ranks = static_cast<int>(num_ranks(plan));
  const int in_stage = ranks / static_cast<int>(plan.parallel.pipeline.size);
  SimulatedWorld world(ranks);
  const NoData data(plan.model);
  for (int first = 0; first < ranks; first += in_stage) {  // "pipeline" is the outermost axis
    const auto me = world.communicator(first);
    const Engine engine(plan, registries, *me, data, {.device = at::kMeta});
    const Mesh mesh(all.axes, first, mesh_aliases(plan, registries.tensor_modes()));
    for (const ParamShard& shard : engine.shards()) {
      const Param& p = *shard.param;
      if (!holds_hidden_matrices(p)) continue;
      Axes axes = p.layout.all_axes();
      axes.insert(axes.end(), shard.split_axes.begin(), shard.split_axes.end());
      const int64_t each = in_stage / mesh.size(axes) * (p.layers.is_stacked ? p.global[0] : 1);
      uint64_t flops = flops_of_whole(rule, p);
      if (__builtin_mul_overflow(flops, static_cast<uint64_t>(each), &flops))
        throw_too_large(flops::kOptimizer);
      add_to_count(all.flops_optimizer, flops, flops::kOptimizer);
    }
  }
}

/// Of another machine the data may lie elsewhere: the rest is explained all the same.
void add_data(Explained& all) {
  try {
    const OpenedData opened = data_opener()(all.plan);
    all.data = data_json(all.plan, opened.identity);
    all.data_words = opened.dataset->describe();
  } catch (const ConfigError& e) {
    all.data_words = text("cannot be read here: ", e.what());
  }
}

Json residence_json(const Residence& r) {
  return {{"portion", to_string(r.portion)}, {"tier", memory::name_of(r.tier)}};
}

Json types_json(const std::vector<std::pair<std::string, AxisType>>& types) {
  Json by_axis = Json::object();
  for (const auto& [axis, type] : types) by_axis[axis] = to_string(type);
  return by_axis;
}

Json state_json(const StateRow& row) {
  Json slots = Json::object();
  for (const StateRow::Slot& s : row.slots) {
    slots[s.name] = residence_json(s.residence);
    slots[s.name]["dtype"] = to_string(s.dtype);
  }
  Json parameter = residence_json(row.parameter), gradient = residence_json(row.gradient);
  parameter["types"] = types_json(row.parameter_types);
  gradient["types"] = types_json(row.gradient_types);
  return {{"parameter", row.name},
          {"dtype", to_string(row.dtype)},
          {"layers", {{"stacked", row.layers.is_stacked}, {"parts", row.layers.parts}}},
          {"replicas", row.replicas},
          {"value", parameter},
          {"gradient", gradient},
          {"slots", slots}};
}

Json traffic_json(const RankResult& r) {
  Json axes = Json::object();
  for (const auto& [axis, t] : r.traffic) {
    axes[axis] = {{"bytes_received", t.bytes_received},
                  {"bytes_sent", t.bytes_sent},
                  {"messages", t.messages},
                  {"peers", t.peers},
                  {"calls", t.calls}};
  }
  return axes;
}

}  // namespace

bool is_token_table(const Param& p) { return p.name.find("embedding.tokens") == 0; }

Explained explain(const Plan& plan, const Registries& registries) {
  Explained all;
  all.plan = plan;
  all.axes = mesh_axes(plan, registries.tensor_modes());
  const Placement placement(plan, registries, 0, at::kMeta);
  const Context& context = placement.context();
  Model model = placement.make_model();
  all.parts = model_parts(plan, registries);
  add_data(all);
  add_params(all, context, model);
  add_costs(all, context, "", token_table(model));
  for (const LayerPlan& range : plan.parallel.layers) {
    add_costs(all, context.layer(range.from), text(range.from, " to ", range.to), nullptr);
  }
  add_counts(all, registries);
  all.moves = explain_moves(plan, registries.policies, all.fullest);
  add_optimizer(all, registries);
  all.pipeline = pipeline_json(plan, registries);
  return all;
}

Json explained_json(const Explained& all) {
  Json mesh = Json::array(), layouts = Json::array(), costs = Json::array(), states = Json::array();
  for (const StateRow& row : all.parts.states) states.push_back(state_json(row));
  for (const Axis& axis : all.axes) mesh.push_back({{"axis", axis.name}, {"size", axis.size}});
  for (const ExplainedParam& p : all.params) {
    layouts.push_back({{"parameter", p.name},
                       {"shape", p.global},
                       {"layout", p.layout},
                       {"shard", p.shard},
                       {"summed_over", p.summed}});
  }
  for (const ExplainedCost& c : all.costs) {
    costs.push_back({{"layers", c.layers.empty() ? Json(nullptr) : Json(c.layers)},
                     {"layer", c.layer},
                     {"forward", c.cost.forward},
                     {"backward", c.cost.backward},
                     {"input_grad", c.cost.input_grad},
                     {"weight_grad", c.cost.weight_grad}});
  }
  const auto& budget = all.plan.memory.device;
  return {{"explain", kExplainFormat},
          {"plan", plan_json(all.plan)},
          {"plan_hash", plan_hash(all.plan)},
          {"ranks", num_ranks(all.plan)},
          {"data", all.data},
          {"mesh", mesh},
          {"parameters", parameters_json(all.parts)},
          {"flops_per_step", all.flops},
          {"flops_per_token", flops_per_token(all.plan, all.flops)},
          {"flops_recomputed", all.flops_recomputed},
          {"flops_optimizer", all.flops_optimizer},
          {"memory",
           {{"rank", all.fullest_rank},
            {"simulated_ranks", all.simulated_ranks},
            {"peak_bytes", all.fullest.peak_bytes},
            {"at_peak", by_category(all.fullest.at_peak)},
            {"budget_bytes", budget ? Json(*budget) : Json(nullptr)}}},
          {"moves", all.moves ? moves_json(all.plan, all.fullest, *all.moves) : Json(nullptr)},
          {"pipeline", all.pipeline},
          {"layouts", layouts},
          {"states", states},
          {"costs", costs},
          {"traffic",
           {{"rank", 0}, {"steps", all.plan.train.steps}, {"axes", traffic_json(all.first)}}}};
}

}  // namespace kuafu
