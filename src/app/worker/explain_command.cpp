// SPDX-License-Identifier: Apache-2.0
//
// What a plan would do, before anything runs: the rank program of rank 0 on meta tensors.

#include <filesystem>
#include <iostream>

#include "app/worker/document.h"
#include "app/worker/explain_moves.h"
#include "app/worker/explain_pipeline.h"
#include "app/worker/explained.h"
#include "app/worker/options.h"
#include "kuafu/base/units.h"
#include "kuafu/record/files.h"
#include "kuafu/record/json_text.h"
#include "kuafu/record/table.h"
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

void print_layouts(const Explained& all, const Context& ctx) {
  std::cout
      << "\nLayouts  axis names after a slash shard that dim; ranks on other axes hold copies\n";
  print_activations(ctx);
  for (const LayerPlan& range : all.plan.parallel.layers) {
    std::cout << "  layers " << range.from << " to " << range.to << ": " << range.mode << "\n";
    print_activations(ctx.layer(range.from));
  }
  Table table(
      {{"parameter"}, {"shape"}, {"layout"}, {"shard of rank 0"}, {"gradient summed over"}});
  for (const ExplainedParam& p : all.params) {
    if (is_like_the_last(p.name, all.plan)) continue;
    table.add({p.name, to_string(p.global), p.layout, to_string(p.shard), to_string(p.summed)});
  }
  std::cout << table.str();
}

std::string count(int64_t n) { return print_count(static_cast<double>(n)); }

void print_model(const Explained& all) {
  const ModelParts& parts = all.parts;
  std::cout << "\nModel  " << all.plan.model.kind << ": " << count(parts.whole.total())
            << " parameters, " << count(parts.fullest.total()) << " on rank " << parts.rank
            << ", the fullest; " << print_count(flops_per_token(all.plan, all.flops), "FLOP")
            << " a token\n";
  Table table({{"parameters"}, {"all", Align::kRight}, {"fullest rank", Align::kRight}});
  for (int k = 0; k < kNumPartKinds; ++k) {
    const auto kind = static_cast<PartKind>(k);
    if (parts.whole.of(kind) == 0) continue;
    table.add(
        {std::string(to_string(kind)), count(parts.whole.of(kind)), count(parts.fullest.of(kind))});
  }
  table.add({"total", count(parts.whole.total()), count(parts.fullest.total())});
  std::cout << table.str();
}

void print_costs(const Explained& all) {
  for (size_t i = 0; i < all.costs.size();) {
    const std::string& layers = all.costs[i].layers;
    std::cout << "\nCost  elements rank 0 receives for one layer and micro-batch"
              << (layers.empty() ? "" : " of layers " + layers) << "\n";
    Table costs({{"layer"},
                 {"forward", Align::kRight},
                 {"backward", Align::kRight},
                 {"input grad", Align::kRight},
                 {"weight grad", Align::kRight}});
    for (; i < all.costs.size() && all.costs[i].layers == layers; ++i) {
      const Cost& c = all.costs[i].cost;
      costs.add({all.costs[i].layer, count(c.forward), count(c.backward), count(c.input_grad),
                 count(c.weight_grad)});
    }
    std::cout << costs.str();
  }
}

void print_traffic(const Explained& all) {
  std::cout << "\nTraffic  rank 0, counted over " << all.plan.train.steps << " steps\n";
  if (all.first.traffic.empty()) {
    std::cout << "  none: no axis is longer than 1\n";
    return;
  }
  Table table({{"axis"},
               {"received", Align::kRight},
               {"sent", Align::kRight},
               {"messages", Align::kRight},
               {"peers", Align::kRight},
               {"calls"}});
  for (const auto& [axis, t] : all.first.traffic) {
    std::string calls;
    for (const auto& [verb, n] : t.calls) {
      calls += text(calls.empty() ? "" : ", ", verb, " ", n);
    }
    table.add({axis, print_bytes(t.bytes_received), print_bytes(t.bytes_sent), count(t.messages),
               text(t.peers), calls});
  }
  std::cout << table.str();
}

/// States that are kept alike are one line.
void print_states(const Explained& all) {
  struct Kind {
    std::string name;
    DType dtype;
    Residence residence;
    int64_t parameters = 0;
  };
  std::vector<Kind> kinds;
  const auto count_in = [&](const std::string& name, DType dtype, const Residence& residence) {
    for (Kind& k : kinds) {
      if (k.name != name || k.dtype != dtype || !(k.residence == residence)) continue;
      ++k.parameters;
      return;
    }
    kinds.push_back({name, dtype, residence, 1});
  };
  for (const StateRow& row : all.parts.states) {
    count_in("parameter", row.dtype, row.parameter);
    count_in("gradient", row.dtype, row.gradient);
    for (const StateRow::Slot& s : row.slots) count_in(s.name, s.dtype, s.residence);
  }
  std::cout << "\nStates  what a replica keeps of each between its uses: the whole, or its part\n";
  Table table({{"state"}, {"type"}, {"kept"}, {"memory"}, {"parameters", Align::kRight}});
  for (const Kind& k : kinds) {
    table.add({k.name, std::string(to_string(k.dtype)), std::string(to_string(k.residence.portion)),
               std::string(memory::name_of(k.residence.tier)), text(k.parameters)});
  }
  std::cout << table.str();
}

void print_memory(const Explained& all) {
  const RankResult& r = all.fullest;
  std::cout << "\nMemory  rank " << all.fullest_rank
            << ", the fullest: most live bytes of a step\n";
  Table memory({{"category"}, {"bytes", Align::kRight}});
  for (int c = 0; c < kNumCategories; ++c) {
    const int64_t bytes = r.at_peak[static_cast<size_t>(c)];
    if (bytes == 0) continue;
    memory.add({std::string(to_string(static_cast<Category>(c))), print_bytes(bytes)});
  }
  memory.add({"total", print_bytes(r.peak_bytes)});
  std::cout << memory.str();
  if (const auto& budget = all.plan.memory.device) {
    std::cout << "  budget " << print_bytes(*budget)
              << (r.peak_bytes > *budget ? ": NOT ENOUGH\n" : ": enough\n");
  }
  if (all.moves) print_moves(all.plan, all.fullest, *all.moves);
  const auto flops = [](uint64_t n) { return print_count(static_cast<double>(n), "FLOP"); };
  std::cout << "\nWork  " << flops(all.flops) << " a step, all ranks";
  if (all.flops_recomputed > 0)
    std::cout << ", and " << flops(all.flops_recomputed) << " recomputed";
  if (all.flops_optimizer > 0)
    std::cout << ", and " << flops(all.flops_optimizer) << " in the optimizer";
  std::cout << "\n";
}

void print_plan(const Plan& plan) {
  std::cout << "Plan " << plan_hash(plan) << "  " << plan.model.kind << ", " << plan.model.layers
            << " layers, hidden " << plan.model.hidden << ", heads " << plan.model.heads
            << ", vocab " << plan.model.vocab << ", sequence " << plan.model.sequence << ", "
            << to_string(plan.model.dtype) << "; batch " << plan.train.batch << " in "
            << plan.num_micro_batches()
            << (plan.num_micro_batches() == 1 ? " micro-batch of " : " micro-batches of ")
            << plan.train.micro_batch << " on each of " << plan.parallel.data.size
            << (plan.parallel.data.size == 1 ? " replica" : " replicas");
  if (plan.train.validate_every > 0) {
    std::cout << "; validated every " << plan.train.validate_every << " steps on "
              << plan.train.validation_batches << " held-out batches";
  }
  std::cout << "\n\n";
}

void print_all(const Explained& all, const Registries& registries) {
  const Placement placement(all.plan, registries, 0, at::kMeta);
  print_plan(all.plan);
  std::cout << "Data  " << all.data_words << "\n\n";
  print_mesh(all.axes);
  print_model(all);
  print_pipeline(all.plan, registries);
  print_layouts(all, placement.context());
  print_costs(all);
  print_traffic(all);
  print_states(all);
  print_memory(all);
}

/// Told before anything is computed.
void check_json(const std::string& file) {
  if (file.empty() || file == "-") return;
  std::error_code error;
  KUAFU_REQUIRE(!std::filesystem::is_directory(file, error), "--json ", file,
                " is a folder; name a file, or - for standard output");
  const std::filesystem::path folder = std::filesystem::path(file).parent_path();
  KUAFU_REQUIRE(folder.empty() || std::filesystem::is_directory(folder, error), "--json ", file,
                ": there is no folder ", folder.string());
}

}  // namespace

int explain_command(const WorkerOptions& options) {
  check_json(options.json_file);
  const Registries registries = load_registries(options);
  const Plan plan = load_resolved(options, registries, 0);
  initialise_tensors();
  plan::with_origins(load_origins(options),
                     [&] { check_placement(plan, registries, Advice::kNearest); });
  if (!options.timetable_file.empty()) write_timetable(plan, registries, options.timetable_file);
  const Explained all = explain(plan, registries);
  if (options.json_file == "-") {
    std::cout << json_document(explained_json(all));
    return kOk;
  }
  if (!options.json_file.empty())
    replace_file(options.json_file, json_document(explained_json(all)));
  print_all(all, registries);
  for (const std::string& file : {options.timetable_file, options.json_file}) {
    if (!file.empty()) std::cout << "\nwritten: " << file << "\n";
  }
  return kOk;
}

}  // namespace kuafu
