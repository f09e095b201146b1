// SPDX-License-Identifier: Apache-2.0
//
// A model under everything that a plan may put beside it.

#include "kuafu/conformance/models.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "kuafu/base/suggest.h"
#include "kuafu/conformance/samples.h"
#include "kuafu/conformance/trial_runs.h"
#include "kuafu/plan/kind_names.h"

namespace kuafu::conformance {
namespace {

constexpr int64_t kPatch = 2, kMostRanks = 8;

/// The smallest grid with as many axes of several ranks as a scheme has on up to 8; none where it has
/// none.
Overrides fullest_grid_of(const TensorMode& mode) {
  Overrides best;
  std::ptrdiff_t most = 0;
  for (int64_t size = 2; size <= kMostRanks; ++size) {
    for (int64_t depth = 1; depth <= size; ++depth) {
      std::vector<Axis> axes;
      try {
        axes = mode.axes(size, depth);
      } catch (const Refused&) {
        continue;
      }
      const auto several =
          std::count_if(axes.begin(), axes.end(), [](const Axis& axis) { return axis.size > 1; });
      if (several <= most) continue;
      most = several;
      best = {{"parallel.tensor.mode", mode.name},
              {"parallel.tensor.size", text(size)},
              {"parallel.tensor.depth", text(depth)}};
    }
  }
  return best;
}

void add_pipelines(const Registries& registries, std::vector<Variant>& all) {
  for (const auto& entry : registries.schedules.entries()) {
    const int chunks = entry.make.chunks == 0 ? 2 : entry.make.chunks;
    const Variant v{text(entry.name, " on 2"),
                    {{"parallel.pipeline.size", "2"},
                     {"parallel.pipeline.schedule", entry.name},
                     {"parallel.pipeline.chunks", text(chunks)},
                     {"train.micro_batch", "1"}},
                    entry.name == "1f1b" ? Shapes::kAll : Shapes::kSmall};
    all.push_back(v);
  }
}

/// The first loss of two groupings of the same sums: chains of tokens, widths and vocabulary, through
/// every layer.
double loss_tolerance(const ModelShape& s) {
  return tolerance((s.batch * s.sequence + 4 * s.hidden + s.vocab) * (s.layers + 1));
}

/// Values as one rank has them, and as the oracle has them, to the bit.
void check_first_values(const Plan& plan, const Start& mine, const Start& alone,
                        const Registries& registries, Notes& notes) {
  for (const auto& [name, value] : alone.values) {
    const auto found = mine.values.find(name);
    notes.expect(found != mine.values.end(), "parameter ", name, " is missing");
    if (found == mine.values.end()) continue;
    notes.expect_same(found->second, value, text("first value of ", name, " beside one rank's"));
  }
  notes.expect(mine.values.size() == alone.values.size(), mine.values.size(), " parameters, ",
               alone.values.size(), " on one rank");
  if (!registries.oracles.contains(plan.model.kind)) return;
  const auto oracle = registries.oracles.find(plan.model.kind)(plan.model, plan.train.seed);
  const oracle::Tensors weights = oracle::initial_weights(*oracle, plan.train.seed);
  for (const auto& [name, value] : weights) {
    const auto found = mine.values.find(name);
    notes.expect(found != mine.values.end(), "the model has no parameter ", name,
                 ", its oracle has one");
    if (found == mine.values.end()) continue;
    notes.expect_same(found->second, value.to(found->second.scalar_type()),
                      text("first value of ", name, " beside its oracle's"));
  }
  notes.expect(weights.size() == mine.values.size(), "the model has ", mine.values.size(),
               " parameters, its oracle ", weights.size());
}

void check_start(const Plan& plan, const Plan& alone, const ModelShape& shape,
                 const Registries& registries, Notes& notes) {
  const Start mine = start_of(plan, registries), one = start_of(alone, registries);
  check_first_values(plan, mine, one, registries, notes);
  if (plan.model.dtype != DType::kF64) return;
  const double far = std::abs(mine.loss - one.loss) / std::abs(one.loss);
  notes.expect(far <= loss_tolerance(shape), "first loss ", mine.loss, ", on one rank ", one.loss,
               ": relative error ", far, ", tolerance ", loss_tolerance(shape));
}

/// The plan of one rank that is compared with: the same numbers and type, nothing parallel.
Plan alone_of(const Plan& plan, const Registries& registries) {
  Plan alone = plan;
  alone.parallel = {};
  alone.memory = {};
  alone.train.micro_batch = 0;
  return resolve(alone, 1, registries.tensor_modes());
}

}  // namespace

Overrides joined(Overrides a, const Overrides& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

std::string to_string(const ModelShape& s) {
  return text("layers ", s.layers, ", H ", s.hidden, ", N ", s.heads, ", V ", s.vocab, ", S ",
              s.sequence, ", B ", s.batch);
}

std::vector<ModelShape> model_shapes(const std::string& kind, Shapes shapes) {
  // Of images the sequence is an odd square and the class token.
  const bool has_images = ModelPlan{.kind = kind}.input() == ModelInput::kImages;
  std::vector<ModelShape> all = {{2, 48, 4, 61, has_images ? 10 : 12, 8},
                                 {2, 16, 4, 17, has_images ? 10 : 8, 4}};
  if (shapes == Shapes::kSmall) return all;
  all.push_back({1, 260, 4, 259, has_images ? 122 : 132, 4});    // wide, long
  all.push_back({1, 64, 2, 130, 10, 132});                       // many samples
  all.push_back({1, 130, 65, 17, 10, 4});                        // many heads
  all.push_back({1, 16, 2, 1030, has_images ? 1090 : 1028, 2});  // as long as real runs are
  if (shapes == Shapes::kAll) return all;
  all.push_back({24, 16, 2, 17, has_images ? 10 : 8, 2});   // as deep
  all.push_back({1, 1032, 4, 17, has_images ? 10 : 8, 2});  // as wide
  return all;
}

Overrides settings_of(const std::string& kind, const ModelShape& s) {
  Overrides settings = {{"model.kind", kind},
                        {"model.layers", text(s.layers)},
                        {"model.hidden", text(s.hidden)},
                        {"model.heads", text(s.heads)},
                        {"model.dropout", "0.1"},
                        {"model.dtype", "f64"},
                        {"train.batch", text(s.batch)},
                        {"train.steps", "3"}};
  // Wide experts are most of a model: two of them have as much to be wrong as eight.
  constexpr int64_t kWide = 1000;
  if (ModelPlan{.kind = kind}.has_mixtures() && s.hidden > kWide) {
    settings.emplace_back("model.experts", "2");
  }
  if (ModelPlan{.kind = kind}.input() == ModelInput::kImages) {
    const auto side = static_cast<int64_t>(std::lround(std::sqrt(s.sequence - 1)));
    return joined(settings, {{"model.image", text(side * kPatch)}, {"model.patch", text(kPatch)}});
  }
  return joined(settings, {{"model.vocab", text(s.vocab)}, {"model.sequence", text(s.sequence)}});
}

std::vector<Variant> model_variants(const Registries& registries) {
  std::vector<Variant> all = {{"one rank", {}, Shapes::kReal}};
  for (const auto& entry : registries.tensor.entries()) {
    const Overrides grid = fullest_grid_of(entry.make.mode);
    if (!grid.empty())
      all.push_back({text(entry.name, " on ", grid[1].second), grid, Shapes::kAll});
  }
  for (const std::string& name : registries.sequence.names()) {
    if (name == sequence_modes::kNone) continue;
    all.push_back({text(name, " on 2"),
                   {{"parallel.sequence.mode", name}, {"parallel.sequence.size", "2"}},
                   Shapes::kAll});
  }
  for (const char* zero : {"0", "1", "2", "3"}) {
    all.push_back({text("2 replicas, ZeRO ", zero),
                   {{"parallel.data.size", "2"}, {"parallel.zero", zero}},
                   *zero == '3' ? Shapes::kAll : Shapes::kSmall});
  }
  add_pipelines(registries, all);
  for (const char* recompute : {"selective", "full"}) {
    all.push_back({text("recompute ", recompute), {{"memory.recompute", recompute}}});
  }
  all.push_back({"experts on 2", {{"parallel.data.size", "2"}, {"parallel.expert.size", "2"}}});
  for (const char* type : {"f32", "bf16", "f16"}) {
    all.push_back({type, {{"model.dtype", type}}, Shapes::kAll});
  }
  all.push_back({"1d, 2 replicas, 2 stages, ZeRO 1",
                 {{"parallel.tensor.mode", tensor_modes::k1d},
                  {"parallel.tensor.size", "2"},
                  {"parallel.data.size", "2"},
                  {"parallel.zero", "1"},
                  {"parallel.pipeline.size", "2"},
                  {"train.micro_batch", "1"}}});
  return all;
}

int64_t ranks_of(const Variant& variant) {
  int64_t ranks = 1;
  for (const auto& [key, value] : variant.settings) {
    // The ranks of experts are those of the replicas.
    if (key.ends_with(".size") && key != "parallel.expert.size") ranks *= std::stoll(value);
  }
  return ranks;
}

std::vector<Finding> check_model_under(const Variant& variant, const Registries& registries,
                                       const std::string& name, Shapes shapes, const Tell& tell) {
  Findings findings(tell);
  const Shapes both = std::min(variant.shapes, shapes);
  for (const ModelShape& shape : model_shapes(name, both)) {
    Finding blank{.kind = "model", .name = name, .where = variant.name, .shape = to_string(shape)};
    const auto add = [&](const char* check, const std::function<void(const Plan&, Notes&)>& body) {
      blank.check = check;
      const Finding f = findings.run_or_refuse(blank, [&](Notes& notes) {
        body(placed_plan(registries, joined(settings_of(name, shape), variant.settings)), notes);
      });
      return f.refusal.empty();
    };
    const auto start = [&](const Plan& plan, Notes& notes) {
      check_start(plan, alone_of(plan, registries), shape, registries, notes);
    };
    if (!add("start", start)) continue;  // once is enough
    add("training",
        [&](const Plan& plan, Notes& notes) { expect_certified(plan, registries, notes); });
  }
  return std::move(findings).all();
}

namespace {

/// Where a model leaves an option out, its oracle does not: the narrowest shape tells.
std::vector<Finding> check_options(const Registries& registries, const std::string& name,
                                   const Tell& tell) {
  Findings findings(tell);
  const ModelShape shape = model_shapes(name, Shapes::kSmall).front();
  const Overrides base = settings_of(name, shape);
  for (const Variant& option : model_options(registries, base)) {
    findings.run_or_refuse({.kind = "model",
                            .name = name,
                            .check = "training",
                            .where = option.name,
                            .shape = to_string(shape)},
                           [&](Notes& notes) {
                             const Overrides all = joined(base, option.settings);
                             expect_certified(placed_plan(registries, all), registries, notes);
                           });
    if (findings.has_failed()) break;
  }
  return std::move(findings).all();
}

}  // namespace

std::vector<Finding> check_model(const Registries& registries, const std::string& name,
                                 const std::vector<int64_t>& sizes, const Tell& tell) {
  registries.models.find(name);  // throws NotFound
  const auto is_asked = [&](int64_t ranks) {
    return std::find(sizes.begin(), sizes.end(), ranks) != sizes.end();
  };
  std::set<int64_t> there;
  Findings findings;
  bool has_any = false;
  for (const Variant& variant : model_variants(registries)) {
    there.insert(ranks_of(variant));
    if (!is_asked(ranks_of(variant))) continue;
    has_any = true;
    std::vector<Finding> some = check_model_under(variant, registries, name, Shapes::kReal, tell);
    const bool is_refused =
        std::all_of(some.begin(), some.end(), [](const Finding& f) { return !f.refusal.empty(); });
    if (is_refused && variant.settings.empty()) {
      Finding none = some.front();
      none.is_ok = false;
      none.detail = "it is refused on one rank in every shape: " + none.refusal;
      none.refusal.clear();
      if (tell.ended) tell.ended(none);
      some.front() = none;
    }
    findings.add(some);
    if (findings.has_failed()) return std::move(findings).all();
  }
  std::vector<std::string> words;
  for (const int64_t ranks : there) words.push_back(text(ranks));
  KUAFU_REQUIRE(has_any, "a model is checked on ", join(words), " ranks; --sizes has none of them");
  if (is_asked(1) && registries.oracles.contains(name)) {
    findings.add(check_options(registries, name, tell));
    if (findings.has_failed()) return std::move(findings).all();
  }
  // One rank of a model without an oracle would be compared with itself.
  if (is_asked(1) && !registries.oracles.contains(name)) {
    findings.add(check_differences(registries, name, Shapes::kReal, tell));
  }
  return std::move(findings).all();
}

}  // namespace kuafu::conformance
