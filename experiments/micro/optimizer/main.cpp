// SPDX-License-Identifier: Apache-2.0
//
// Motivation: an optimizer step does little arithmetic; it should cost what its memory traffic
// does. What is compared: AdamW in f32 over all parameters of a GPT, on each rank its own (one
// rank, then
//   two at a time), far beyond the last cache:
//     kuafu   the step of the optimizer "adamw"
//     fused   LibTorch's at::_fused_adamw_ over the same tensors, one thread a rank
//     limit   the same streams with hardly any arithmetic (streams.h), in each round the fastest of
//             several loops
//   They take turns in one run, there and back; ratios are those of the medians, their spread
//   the quartiles of the rounds' own ratios. Kuafu's and fused results are compared before anything
//   is timed. Where one of them is faster than the limit in three quarters of the rounds, the limit
//   is none: the benchmark says so and ends with 1.
// Last result: results/benchmarks/optimizer.json.

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <deque>
#include <functional>
#include <iostream>
#include <limits>
#include <map>

#include <CLI/CLI.hpp>

#include "experiments/micro/optimizer/streams.h"
#include "kuafu/comm/worlds.h"
#include "kuafu/meter/allocator.h"
#include "kuafu/optim/optimizer.h"
#include "kuafu/record/files.h"
#include "kuafu/record/json_text.h"
#include "kuafu/record/provenance.h"
#include "kuafu/record/table.h"

namespace kuafu::micro {
namespace {

/// A GPT with a vocabulary of 256 and H positions: 12 H^2 + 13 H parameters a layer.
struct Settings {
  int64_t layers = 5, hidden = 1024, rounds = 20;
  std::vector<int> ranks = {1, 2};
};

std::vector<Shape> shapes_of(const Settings& s) {
  const int64_t h = s.hidden;
  std::vector<Shape> shapes = {{256, h}, {h, h}};
  for (int64_t l = 0; l < s.layers; ++l) {
    for (const Shape& shape : std::vector<Shape>{{h}, {h}, {h, 3 * h}, {3 * h}, {h, h}, {h}}) {
      shapes.push_back(shape);
    }
    for (const Shape& shape : std::vector<Shape>{{h}, {h}, {h, 4 * h}, {4 * h}, {4 * h, h}, {h}}) {
      shapes.push_back(shape);
    }
  }
  shapes.insert(shapes.end(), {{h}, {h}});
  return shapes;
}

/// The parameters of one rank and what updates them.
class Rank {
 public:
  explicit Rank(const Settings& settings) : adamw_(make_optimizer(plan_)) {
    for (const Shape& shape : shapes_of(settings)) {
      Param& p = params_.emplace_back();
      p.name = "p" + std::to_string(params_.size());
      p.global = p.padded = shape;
      p.value = made(shape, 0.37);
    }
    for (const Param& p : params_) {
      shards_.push_back(
          {.value = p.value, .grad = made(p.global, 0.61), .param = &p, .split_axes = {}});
    }
    adamw_->begin(shards_, kStepsBefore);
    for (const SlotTensor& state : adamw_->state().tensors) {
      (state.slot == "m" ? m_ : v_).push_back(state.tensor);
    }
    for (const ParamShard& s : shards_) {
      w_.push_back(s.value);
      g_.push_back(s.grad);
      steps_.push_back(at::full({}, static_cast<double>(kStepsBefore) + 1, at::kFloat));
      elements_ += s.value.numel();
    }
  }

  int64_t elements() const { return elements_; }

  void kuafu() { adamw_->step(shards_, plan_.lr); }

  void fused() {
    at::_fused_adamw_(w_, g_, m_, v_, {}, steps_, plan_.lr, plan_.beta1, plan_.beta2,
                      plan_.weight_decay, plan_.epsilon, false, false);
  }

  void stream(const StreamLoop& loop) {
    for (size_t i = 0; i < w_.size(); ++i) {
      loop.run({w_[i].mutable_data_ptr<float>(), g_[i].const_data_ptr<float>(),
                m_[i].mutable_data_ptr<float>(), v_[i].mutable_data_ptr<float>(), w_[i].numel()});
    }
  }

  /// Throws where a step of Kuafu's and one of LibTorch's differ. Both compute w = keep w - u with
  /// u at most lr (1 - beta1) / sqrt(1 - beta2) times the bias corrections, from zero m and v at
  /// step t: some 10 roundings of numbers no larger than |w| and u.
  void check() {
    Tensors before, ours;
    for (const Tensor& w : w_) before.push_back(w.clone());
    kuafu();
    for (const Tensor& w : w_) ours.push_back(w.clone());
    for (size_t i = 0; i < w_.size(); ++i) {
      w_[i].copy_(before[i]);
      m_[i].zero_();
      v_[i].zero_();
    }
    fused();
    constexpr double kEps = std::numeric_limits<float>::epsilon();
    for (size_t i = 0; i < w_.size(); ++i) {
      const Tensor moved = (w_[i] - before[i]).abs();
      KUAFU_REQUIRE(moved.max().item<double>() > 0, params_[i].name, " did not move");
      const Tensor allowed = 10 * kEps * (before[i].abs() + moved);
      KUAFU_REQUIRE(((w_[i] - ours[i]).abs() <= allowed).all().item<bool>(), params_[i].name,
                    ": AdamW of Kuafu and of LibTorch differ");
    }
  }

 private:
  static constexpr int64_t kStepsBefore = 1000;

  /// Positive numbers, so that v stays positive whichever loop wrote it.
  static Tensor made(const Shape& shape, double frequency) {
    int64_t count = 1;
    for (const int64_t extent : shape) count *= extent;
    Tensor t = at::empty(shape, at::kFloat);
    float* values = t.mutable_data_ptr<float>();
    for (int64_t i = 0; i < count; ++i) {
      const auto angle = static_cast<float>(frequency * static_cast<double>(i % 100003));
      values[i] = 0.02F * std::sin(angle) + 0.03F;
    }
    return t;
  }

  OptimizerPlan plan_;
  std::unique_ptr<Optimizer> adamw_;
  std::deque<Param> params_;
  std::vector<ParamShard> shards_;
  Tensors w_, g_, m_, v_, steps_;
  int64_t elements_ = 0;
};

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

using Sides = std::map<std::string, std::vector<double>>;  // seconds by round

/// Seconds of every side and round, from the moment all ranks begin to the moment the last ends.
Sides measure(const Settings& settings, int ranks, int64_t& elements) {
  Sides sides;
  run_on_threads(ranks, [&](Communicator& world) {
    const at::NoGradGuard no_grad;
    Rank rank(settings);
    rank.check();
    std::vector<std::pair<std::string, std::function<void()>>> turns = {
        {"kuafu", [&] { rank.kuafu(); }}, {"fused", [&] { rank.fused(); }}};
    for (const StreamLoop& loop : kStreamLoops) {
      turns.emplace_back(loop.name, [&] { rank.stream(loop); });
    }
    for (int64_t round = -2; round < settings.rounds; ++round) {
      for (const auto& [name, run] : turns) {
        world.barrier();
        const double start = now();
        run();
        world.barrier();
        if (world.rank() == 0 && round >= 0) sides[name].push_back(now() - start);
      }
      std::reverse(turns.begin(), turns.end());
    }
    if (world.rank() == 0) elements = rank.elements();
  });
  return sides;
}

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return (v[(v.size() - 1) / 2] + v[v.size() / 2]) / 2;
}

std::vector<double> quartiles(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return {v[v.size() / 4], v[v.size() * 3 / 4]};
}

/// Median of a over median of b, and the quartiles of the rounds' own ratios.
Json ratio(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> each;
  for (size_t i = 0; i < a.size(); ++i) each.push_back(a[i] / b[i]);
  return {{"value", median(a) / median(b)}, {"quartiles", quartiles(each)}};
}

/// Of each round the fastest of the loops that only stream.
std::vector<double> limit_of(const Sides& sides) {
  std::vector<double> best = sides.at(std::string(kStreamLoops[0].name));
  for (const StreamLoop& loop : kStreamLoops) {
    const std::vector<double>& seconds = sides.at(std::string(loop.name));
    for (size_t i = 0; i < best.size(); ++i) best[i] = std::min(best[i], seconds[i]);
  }
  return best;
}

std::string shown(const Json& r) {
  return text(human_number(r["value"].get<double>(), 3), " (",
              human_number(r["quartiles"][0].get<double>(), 3), " to ",
              human_number(r["quartiles"][1].get<double>(), 3), ")");
}

/// Why the limit is none; empty where it stands: a side beats it by more than the spread of the
/// rounds where even the lower quartile of limit / side is above 1.
std::string beaten(const Json& of_limit, const std::string& side, int ranks) {
  if (of_limit["quartiles"][0] <= 1.0) return "";
  return text(side, " on ", ranks, " ranks is ", shown(of_limit),
              " times as fast as its limit, which is none: find a faster loop (streams.h)\n");
}

Json document_of(const Settings& settings, int ranks, std::string& wrong) {
  int64_t elements = 0;
  Sides sides = measure(settings, ranks, elements);
  sides["limit"] = limit_of(sides);
  const double bytes = 28.0 * static_cast<double>(elements) * ranks;
  Table table({{"loop"}, {"ms", Table::Align::kRight}, {"GB/s", Table::Align::kRight}});
  Json times;
  for (const auto& [name, seconds] : sides) {
    const double middle = median(seconds);
    table.add({name, human_number(middle * 1e3, 4), human_number(bytes / middle * 1e-9, 3)});
    times[name] = {{"median", middle},
                   {"quartiles", quartiles(seconds)},
                   {"gb_per_s", bytes / middle * 1e-9},
                   {"samples", seconds}};
  }
  const Json of_limit = ratio(sides.at("limit"), sides.at("kuafu"));
  wrong += beaten(of_limit, "kuafu", ranks);
  wrong += beaten(ratio(sides.at("limit"), sides.at("fused")), "fused", ranks);
  const Json of_fused = ratio(sides.at("fused"), sides.at("kuafu"));
  std::cout << ranks << " ranks of " << elements << " parameters\n"
            << table.str() << "limit / kuafu " << shown(of_limit) << ", fused / kuafu "
            << shown(of_fused) << "\n"
            << std::flush;
  return {{"ranks", ranks},  {"parameters_per_rank", elements}, {"bytes_per_element", 28},
          {"step_s", times}, {"limit / kuafu", of_limit},       {"fused / kuafu", of_fused}};
}

int run(int argc, char** argv) {
  CLI::App app("AdamW against the memory it moves and against LibTorch's fused AdamW");
  Settings settings;
  std::string file;
  app.add_option("--layers", settings.layers)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--hidden", settings.hidden)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--rounds", settings.rounds)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--ranks", settings.ranks, "worlds, one after the other")->delimiter(',');
  app.add_option("--json", file, "write the result to a file as well");
  CLI11_PARSE(app, argc, argv);
  require_recordable(file);
  Json document = {
      {"benchmark", "optimizer"},
      {"settings",
       {{"layers", settings.layers}, {"hidden", settings.hidden}, {"rounds", settings.rounds}}},
      {"worlds", Json::array()},
      {"provenance", provenance()}};
  std::string wrong;
  for (const int ranks : settings.ranks) {
    document["worlds"].push_back(document_of(settings, ranks, wrong));
  }
  std::cerr << wrong;
  if (wrong.empty() && !file.empty()) replace_file(file, json_document(document));
  return wrong.empty() ? 0 : 1;
}

}  // namespace
}  // namespace kuafu::micro

int main(int argc, char** argv) {
  kuafu::install_allocators();
  kuafu::initialise_tensors();
  try {
    return kuafu::micro::run(argc, argv);
  } catch (const std::exception& e) {
    std::cerr << "micro_optimizer: " << e.what() << std::endl;
    return 1;
  }
}
