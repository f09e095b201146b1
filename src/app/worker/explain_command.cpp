// SPDX-License-Identifier: Apache-2.0
//
// What a plan would do, before anything runs: the rank program of rank 0 on meta tensors.

#include <algorithm>
#include <iostream>

#include "app/worker/explain_pipeline.h"
#include "app/worker/options.h"
#include "kuafu/base/units.h"
#include "kuafu/comm/simulated.h"
#include "kuafu/parallel/tensor/embedding.h"
#include "kuafu/record/table.h"
#include "kuafu/simulate/simulate.h"
#include "kuafu/tensor/tensor.h"

namespace kuafu {
namespace {

constexpr int64_t kMostRanksDrawn = 64;

using Align = Table::Align;

/// The ranks as a grid: the last axis to the right, the one before it downwards, others in turn.
void print_mesh(const std::vector<Axis>& all) {
  std::vector<Axis> axes;
  for (const Axis& axis : all) {
    if (axis.size > 1) axes.push_back(axis);
  }
  const Mesh mesh(all, 0);
  std::cout << "Mesh  " << mesh.num_ranks() << (mesh.num_ranks() == 1 ? " rank" : " ranks");
  for (const Axis& axis : axes) std::cout << "  " << axis.name << " " << axis.size;
  std::cout << "\n";
  if (axes.empty() || mesh.num_ranks() > kMostRanksDrawn) return;
  const int64_t columns = axes.back().size;
  const int64_t rows = axes.size() > 1 ? axes[axes.size() - 2].size : 1;
  if (axes.size() > 1) {
    std::cout << "      " << axes[axes.size() - 2].name << " downwards, ";
  } else {
    std::cout << "      ";
  }
  std::cout << axes.back().name << " to the right\n";
  for (int64_t first = 0; first < mesh.num_ranks(); first += rows * columns) {
    const Mesh here(all, static_cast<int>(first));
    if (axes.size() > 2) {
      std::cout << "     ";
      for (size_t a = 0; a + 2 < axes.size(); ++a) {
        std::cout << " " << axes[a].name << " " << here.coord(axes[a].name);
      }
      std::cout << "\n";
    }
    for (int64_t i = 0; i < rows; ++i) {
      std::cout << "     ";
      for (int64_t j = 0; j < columns; ++j) std::cout << " r" << first + i * columns + j;
      std::cout << "\n";
    }
  }
}

bool is_token_table(const Param& p) { return p.name.find("embedding.tokens") == 0; }

std::string letters_of(const Param& p) {
  if (is_token_table(p)) return "VH";
  if (p.name.find("embedding.positions") == 0) return "SH";
  if (p.global.size() == 2) return "IO";
  return "H";
}

void print_activations(const Context& ctx) {
  std::cout << "  outer activations  " << to_string(ctx.activation(Stream::kOuter), "BSH") << "\n"
            << "  inner activations  " << to_string(ctx.activation(Stream::kInner), "BSF") << "\n";
}

/// True for a transformer block of the same arrangement as the one before: that one stands for it.
bool is_like_the_last(const std::string& block, const Plan& plan) {
  if (block.find("blocks.") != 0) return false;
  const int64_t index = std::stoll(block.substr(7));
  return index > 0 && arrangement_of(plan, index) == arrangement_of(plan, index - 1);
}

void print_layouts(const Context& ctx, const Plan& plan, Model& model) {
  std::cout
      << "\nLayouts  axis names after a slash shard that dim; ranks on other axes hold copies\n";
  print_activations(ctx);
  for (const LayerPlan& range : plan.parallel.layers) {
    std::cout << "  layers " << range.from << " to " << range.to << ": " << range.mode << "\n";
    print_activations(ctx.layer(range.from));
  }
  Table table(
      {{"parameter"}, {"shape"}, {"layout"}, {"shard of rank 0"}, {"gradient summed over"}});
  for (const auto& block : model.blocks) {
    if (is_like_the_last(block->name(), plan)) continue;
    for (const Param* p : block->params()) {
      Axes summed = p->grad_axes;
      if (ctx.mesh.size("data") > 1) summed.push_back("data");
      std::erase_if(summed, [&](const std::string& axis) { return ctx.mesh.size(axis) == 1; });
      table.add({p->name, to_string(p->global), to_string(p->layout, letters_of(*p)),
                 to_string(shape_of(p->value)), to_string(summed)});
    }
  }
  std::cout << table.str();
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
void print_costs(const Context& ctx, const Plan& plan, const std::string& of, const Param* table) {
  struct Row {
    const char* name;
    int64_t in, out;
    Role role;
  };
  const int64_t h = plan.model.hidden;
  const Shape tokens = {plan.train.micro_batch, plan.model.sequence};
  std::cout << "\nCost  elements rank 0 receives for one layer and micro-batch" << of << "\n";
  Table costs({{"layer"},
               {"forward", Align::kRight},
               {"backward", Align::kRight},
               {"input grad", Align::kRight},
               {"weight grad", Align::kRight}});
  const int64_t f = plan.model.ffn_width(), up = plan.model.mlp == "swiglu" ? 2 * f : f;
  const auto add = [&costs](const char* name, const Cost& c) {
    costs.add({name, text(c.forward), text(c.backward), text(c.input_grad), text(c.weight_grad)});
  };
  if (table != nullptr) {
    const TokenGrid grid{ctx.activation(Stream::kOuter), tokens[0], tokens[1]};
    add("embedding", embedding_cost(ctx.mesh, table->global, table->layout, grid));
  }
  std::vector<Row> linears = {{"attention qkv", h, 3 * h, Role::kExpand}};
  if (plan.model.num_kv_heads() != plan.model.heads) {
    // Ranks that outnumber the key-value heads have one each.
    const int64_t ranks = ctx.mesh.size(ctx.activation(Stream::kInner).dims[2]);
    const int64_t kv_heads = std::max(plan.model.kv_heads, ranks);
    linears = {{"attention q", h, h, Role::kExpand},
               {"attention kv", h, 2 * kv_heads * h / plan.model.heads, Role::kExpand}};
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
  std::cout << costs.str();
}

void print_counts(const RankResult& r, const Plan& plan) {
  std::cout << "\nTraffic  rank 0, counted over " << plan.train.steps << " steps\n";
  if (r.traffic.empty()) std::cout << "  none: no axis is longer than 1\n";
  if (!r.traffic.empty()) {
    Table table({{"axis"},
                 {"received", Align::kRight},
                 {"sent", Align::kRight},
                 {"messages", Align::kRight},
                 {"peers", Align::kRight},
                 {"calls"}});
    for (const auto& [axis, t] : r.traffic) {
      std::string calls;
      for (const auto& [verb, count] : t.calls) {
        calls += text(calls.empty() ? "" : ", ", verb, " ", count);
      }
      table.add({axis, print_bytes(t.bytes_received), print_bytes(t.bytes_sent), text(t.messages),
                 text(t.peers), calls});
    }
    std::cout << table.str();
  }
  std::cout << "\nMemory  rank 0, largest live bytes of a step, exact\n";
  Table memory({{"category"}, {"bytes", Align::kRight}, {"", Align::kRight}});
  for (int c = 0; c < kNumCategories; ++c) {
    const int64_t bytes = r.at_peak[static_cast<size_t>(c)];
    if (bytes == 0) continue;
    memory.add({std::string(to_string(static_cast<Category>(c))), text(bytes), print_bytes(bytes)});
  }
  memory.add({"total", text(r.peak_bytes), print_bytes(r.peak_bytes)});
  std::cout << memory.str();
  if (plan.memory.device.has_value()) {
    std::cout << "  budget " << print_bytes(*plan.memory.device)
              << (r.peak_bytes > *plan.memory.device ? ": NOT ENOUGH\n" : ": enough\n");
  }
  std::cout << "\nWork  rank 0: " << r.flops << " model FLOPs a step";
  if (r.flops_recomputed > 0) std::cout << ", " << r.flops_recomputed << " recomputed";
  std::cout << "\n";
}

}  // namespace

int explain_command(const WorkerOptions& options) {
  const Registries registries = load_registries(options);
  Plan plan = load_resolved(options, registries, 0);
  initialise_tensors();
  plan::with_origins(load_origins(options),
                     [&] { check_placement(plan, registries, Advice::kNearest); });
  if (!options.timetable_file.empty()) write_timetable(plan, registries, options.timetable_file);
  const Placement placement(plan, registries, 0, at::kMeta);
  const Context& context = placement.context();
  Model model = placement.make_model();
  std::cout << "Plan " << plan_hash(plan) << "  " << plan.model.kind << ", " << plan.model.layers
            << " layers, hidden " << plan.model.hidden << ", heads " << plan.model.heads
            << ", vocab " << plan.model.vocab << ", sequence " << plan.model.sequence << ", "
            << to_string(plan.model.dtype) << "; batch " << plan.train.batch << " in "
            << plan.num_micro_batches() << " micro-batches of " << plan.train.micro_batch
            << " on each of " << plan.parallel.data.size << " replicas\n\n";
  print_mesh(mesh_axes(plan, registries.tensor_modes()));
  print_pipeline(plan, registries);

  print_layouts(context, plan, model);
  print_costs(context, plan, "", token_table(model));
  for (const LayerPlan& range : plan.parallel.layers) {
    print_costs(context.layer(range.from), plan, text(" of layers ", range.from, " to ", range.to),
                nullptr);
  }
  // An estimate of a plan over its budget is wanted, not an error.
  Plan unlimited = plan;
  unlimited.memory.device.reset();
  SimulatedWorld world(static_cast<int>(num_ranks(plan)));
  print_counts(simulate_rank(unlimited, registries, world, 0), plan);
  if (!options.timetable_file.empty()) std::cout << "\nwritten: " << options.timetable_file << "\n";
  return kOk;
}

}  // namespace kuafu
