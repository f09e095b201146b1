// SPDX-License-Identifier: Apache-2.0
//
// Motivation: an optimizer step does little arithmetic; it should cost what its memory traffic
// does. What is compared: each rule in f32 over all parameters of a GPT, on each rank its own (one
// rank, then two at a time), far beyond the last cache:
//     kuafu   the step of the optimizer
//     peer    LibTorch's over the same tensors, one thread a rank: its fused kernel, or the same
//             formula by its foreach ops where it has none (LARS, LAMB)
//     limit   the same streams in as many passes with hardly any arithmetic (streams.h), by the
//             loop of several that has the least median
//   They take turns in one run, there and back; ratios are medians of the rounds' own, their spread
//   the quartiles. Kuafu's and LibTorch's results are compared before anything is timed. Where one
//   of them is faster than the limit in three quarters of the rounds, the limit is none: the
//   benchmark says so and ends with 1.
// Last result: results/benchmarks/optimizer.json.

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <iostream>
#include <map>
#include <span>

#include <CLI/CLI.hpp>

#include "experiments/micro/optimizer/rank.h"
#include "kuafu/comm/worlds.h"
#include "kuafu/meter/allocator.h"
#include "kuafu/record/files.h"
#include "kuafu/record/json_text.h"
#include "kuafu/record/provenance.h"
#include "kuafu/record/table.h"

namespace kuafu::micro {
namespace {

struct Settings {
  ModelSize size;
  int64_t rounds = 20;
  std::vector<std::string> rules;
  std::vector<int> ranks = {1, 2};
};

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

using Sides = std::map<std::string, std::vector<double>>;  // seconds by round

/// Seconds of every side and round, from the moment all ranks begin to the moment the last ends.
Sides measure(const Settings& settings, const TimedRule& rule, int ranks, int64_t& elements) {
  Sides sides;
  run_on_threads(ranks, [&](Communicator& world) {
    const at::NoGradGuard no_grad;
    Rank rank(settings.size, rule);
    rank.check();
    std::vector<std::pair<std::string, std::function<void()>>> turns = {
        {"kuafu", [&] { rank.kuafu(); }}, {"peer", [&] { rank.peer(); }}};
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

/// Median and quartiles of the rounds' own ratios: what slows the machine for a while slows both.
Json ratio(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> each;
  for (size_t i = 0; i < a.size(); ++i) each.push_back(a[i] / b[i]);
  return {{"value", median(each)}, {"quartiles", quartiles(each)}};
}

/// The name of the loop with the least median. Not the fastest of each round: of six turns even of
/// one and the same loop the fastest is well below its median, and no side has six turns.
std::string limit_of(const Sides& sides) {
  const auto is_faster = [&](const StreamLoop& a, const StreamLoop& b) {
    return median(sides.at(std::string(a.name))) < median(sides.at(std::string(b.name)));
  };
  const auto all = std::span(kStreamLoops);
  return std::string(std::min_element(all.begin(), all.end(), is_faster)->name);
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

Json document_of(const Settings& settings, const TimedRule& rule, int ranks, std::string& wrong) {
  int64_t elements = 0;
  Sides sides = measure(settings, rule, ranks, elements);
  const std::string limit = limit_of(sides);
  sides["limit"] = sides.at(limit);
  const double bytes = rule.bytes() * static_cast<double>(elements) * ranks;
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
  const std::string side = text(rule.kind, " of "), peer = text("LibTorch's ", rule.peer);
  const Json of_limit = ratio(sides.at("limit"), sides.at("kuafu"));
  wrong += beaten(of_limit, side + "Kuafu", ranks);
  wrong += beaten(ratio(sides.at("limit"), sides.at("peer")), side + peer, ranks);
  const Json of_peer = ratio(sides.at("peer"), sides.at("kuafu"));
  std::cout << rule.kind << ", " << rule.bytes() << " bytes an element, " << ranks << " ranks of "
            << elements << " parameters\n"
            << table.str() << "limit (" << limit << ") / kuafu " << shown(of_limit) << ", " << peer
            << " / kuafu " << shown(of_peer) << "\n\n"
            << std::flush;
  return {{"rule", rule.kind},
          {"ranks", ranks},
          {"parameters_per_rank", elements},
          {"bytes_per_element", rule.bytes()},
          {"peer", rule.peer},
          {"step_s", times},
          {"limit", limit},
          {"limit / kuafu", of_limit},
          {"peer / kuafu", of_peer}};
}

int run(int argc, char** argv) {
  CLI::App app(
      "Optimizers against the memory they move and against LibTorch's own\n"
      "example: micro_optimizer --rules lamb,sgd --rounds 10");
  Settings settings;
  std::vector<std::string> known;
  for (const TimedRule& rule : timed_rules()) known.emplace_back(rule.kind);
  settings.rules = known;
  std::string file;
  app.add_option("--rules", settings.rules, "optimizers, one after the other")
      ->delimiter(',')
      ->check(CLI::IsMember(known))
      ->capture_default_str();
  app.add_option("--layers", settings.size.layers)
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--hidden", settings.size.hidden)
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--rounds", settings.rounds)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--ranks", settings.ranks, "worlds, one after the other")
      ->delimiter(',')
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--json", file, "write the result to a file as well");
  CLI11_PARSE(app, argc, argv);
  require_recordable(file);
  Json document = {{"benchmark", "optimizer"},
                   {"settings",
                    {{"layers", settings.size.layers},
                     {"hidden", settings.size.hidden},
                     {"rounds", settings.rounds}}},
                   {"worlds", Json::array()},
                   {"trains", false},
                   {"provenance", provenance()}};
  std::string wrong;
  for (const TimedRule& rule : timed_rules()) {
    const auto& asked = settings.rules;
    if (std::find(asked.begin(), asked.end(), rule.kind) == asked.end()) continue;
    for (const int ranks : settings.ranks) {
      document["worlds"].push_back(document_of(settings, rule, ranks, wrong));
    }
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
