// SPDX-License-Identifier: Apache-2.0
//
// Motivation: what a schedule leaves idle when the executor really runs it, and what the executor
//   itself costs.
// What is compared: length and bubble of timetables run by thread ranks whose stages wait for a
//   given time (so that there may be more of them than cores), from the executor's own timeline,
//   beside the same timetable played with free messages and the papers' formula. With --overhead
//   the stages take no time, and what lies between two actions is the executor's.
// Last result: results/pipeline_bubble/measured.json.
//
//   micro_pipeline --schedule 1f1b --ranks 4 --micro-batches 8 --forward-ms 5
//   micro_pipeline --overhead
//   micro_pipeline --requests < requests.json     a list of {"schedule", "ranks", "micro_batches",
//       "chunks", "forward_ms", "input_grad_ms", "weight_grad_ms", "rounds", "spans"}
// prints one JSON document. Durations are of one rank's share of the model for one micro-batch.

#include <algorithm>
#include <iostream>
#include <iterator>
#include <numeric>
#include <optional>

#include <CLI/CLI.hpp>

#include "experiments/micro/pipeline/measure.h"
#include "kuafu/base/errors.h"
#include "kuafu/record/json.h"
#include "kuafu/record/provenance.h"
#include "kuafu/tensor/tensor.h"

namespace kuafu::micro {
namespace {

/// The papers' bubble of equal stages and free messages, a backward twice a forward; none where
/// they give no formula. That of ZB-V is a bound. [2104.04473, section 2.2; 2401.10241]
std::optional<double> closed_form(const std::string& schedule, const pipeline::PipeShape& s) {
  const double idle = s.ranks - 1, m = s.micro_batches;
  if (schedule == "gpipe" || schedule == "1f1b") return idle / m;
  if (schedule == "interleaved" && s.micro_batches % s.ranks == 0) return idle / (s.chunks * m);
  if (s.micro_batches < s.ranks) return std::nullopt;
  if (schedule == "zero_bubble") return idle / (3 * m);
  if (schedule == "zbv") return idle / (4 * m);
  return std::nullopt;
}

/// The p-th part of sorted numbers, p of 1.
double quantile(const std::vector<double>& sorted, double p) {
  KUAFU_CHECK(!sorted.empty(), "a quantile of nothing");
  return sorted[static_cast<size_t>(p * static_cast<double>(sorted.size() - 1))];
}

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return quantile(v, 0.5);
}

Json spans_of(const Round& round) {
  Json rows = Json::array();
  for (const RankSpans& rank : round.ranks) {
    Json row = Json::array();
    for (const auto& [a, start, end] : rank.computed) {
      row.push_back({{"op", std::string(1, static_cast<char>(a.op))},
                     {"stage", a.stage},
                     {"micro_batch", a.micro_batch},
                     {"start", start},
                     {"end", end}});
    }
    rows.push_back(row);
  }
  return rows;
}

Json timed_row(const PipelineCase& c, bool with_spans) {
  const std::vector<Round> rounds = measure(c);
  std::vector<double> lengths, bubbles;
  for (const Round& r : rounds) {
    lengths.push_back(r.length());
    bubbles.push_back(r.bubble());
  }
  const pipeline::Estimate expected = played(c);
  const std::optional<double> form = closed_form(c.schedule, c.shape);
  Json row = {{"schedule", c.schedule},
              {"ranks", c.shape.ranks},
              {"micro_batches", c.shape.micro_batches},
              {"chunks", c.shape.chunks},
              {"forward_s", c.work.forward_s},
              {"input_grad_s", c.work.input_grad_s},
              {"weight_grad_s", c.work.weight_grad_s},
              {"length_s", median(lengths)},
              {"length_played_s", expected.length},
              {"bubble", median(bubbles)},
              {"bubble_played", expected.bubble()},
              {"closed_form", form ? Json(*form) : Json()},
              {"lengths_s", lengths},
              {"bubbles", bubbles}};
  if (with_spans) row["spans"] = spans_of(rounds[rounds.size() / 2]);
  return row;
}

PipelineCase case_of(const Json& request) {
  const auto seconds = [&](const char* key) { return 1e-3 * request.value(key, 5.0); };
  return {.schedule = request.at("schedule").get<std::string>(),
          .shape = {request.at("ranks").get<int>(), request.at("micro_batches").get<int>(),
                    request.value("chunks", 1)},
          .work = {seconds("forward_ms"), seconds("input_grad_ms"), seconds("weight_grad_ms")},
          .rounds = request.value("rounds", int64_t{3})};
}

Json answer_requests() {
  const std::string input{std::istreambuf_iterator<char>(std::cin), {}};
  const Json requests = Json::parse(input, nullptr, false);
  KUAFU_REQUIRE(requests.is_array(), "standard input: expected a JSON list of requests");
  std::vector<PipelineCase> cases;  // all read before any runs
  for (const Json& request : requests) {
    cases.push_back(case_of(request));
    KUAFU_REQUIRE(cases.back().rounds >= 1, "rounds = ", cases.back().rounds, ": at least 1");
    played(cases.back());
  }
  Json rows = Json::array();
  for (size_t i = 0; i < cases.size(); ++i) {
    rows.push_back(timed_row(cases[i], requests[i].value("spans", false)));
  }
  return rows;
}

/// What lies between two actions that take no time, waits for messages apart. Messages of 8 KiB
/// travel as copies, so that no send waits for its receiver.
Json overhead_row(const std::string& schedule, const pipeline::PipeShape& shape, int64_t rounds) {
  const PipelineCase c{
      .schedule = schedule, .shape = shape, .work = {}, .message = 2048, .rounds = rounds};
  std::vector<double> gaps;
  for (const Round& round : measure(c)) {
    const std::vector<double> found = round.gaps();
    gaps.insert(gaps.end(), found.begin(), found.end());
  }
  std::sort(gaps.begin(), gaps.end());
  return {{"schedule", schedule},
          {"ranks", shape.ranks},
          {"micro_batches", shape.micro_batches},
          {"chunks", shape.chunks},
          {"actions", gaps.size()},
          {"mean_us",
           1e6 * std::accumulate(gaps.begin(), gaps.end(), 0.0) / static_cast<double>(gaps.size())},
          {"median_us", 1e6 * quantile(gaps, 0.5)},
          {"p99_us", 1e6 * quantile(gaps, 0.99)}};
}

Json overheads(int64_t rounds) {
  Json rows = Json::array();
  rows.push_back(overhead_row("interleaved", {1, 64, 4}, rounds));
  for (const int ranks : {2, 4}) {
    for (const char* schedule : {"gpipe", "1f1b", "zero_bubble"}) {
      rows.push_back(overhead_row(schedule, {ranks, 64, 1}, rounds));
    }
    for (const char* schedule : {"interleaved", "zbv"}) {
      rows.push_back(overhead_row(schedule, {ranks, 64, 2}, rounds));
    }
  }
  return rows;
}

int run(int argc, char** argv) {
  CLI::App app("Pipeline schedules run with timed waits, and what the executor costs");
  PipelineCase c;
  double forward = 5, input_grad = 5, weight_grad = 5;  // ms
  bool is_overhead = false, reads_requests = false;
  app.add_option("--schedule", c.schedule)->capture_default_str();
  app.add_option("--ranks", c.shape.ranks)->capture_default_str();
  app.add_option("--micro-batches", c.shape.micro_batches)->capture_default_str();
  app.add_option("--chunks", c.shape.chunks)->capture_default_str();
  app.add_option("--rounds", c.rounds)->check(CLI::PositiveNumber)->capture_default_str();
  for (auto& [name, value] :
       {std::pair{"--forward-ms", &forward}, std::pair{"--input-grad-ms", &input_grad},
        std::pair{"--weight-grad-ms", &weight_grad}}) {
    app.add_option(name, *value)->check(CLI::PositiveNumber)->capture_default_str();
  }
  app.add_flag("--overhead", is_overhead, "stages that take no time: the executor's own");
  app.add_flag("--requests", reads_requests, "a JSON list of cases on standard input");
  CLI11_PARSE(app, argc, argv);
  Json document = {{"benchmark", is_overhead ? "executor" : "pipeline"},
                   {"provenance", provenance()}};
  if (is_overhead) {
    document["rows"] = overheads(c.rounds);
  } else if (reads_requests) {
    document["rows"] = answer_requests();
  } else {
    c.work = {1e-3 * forward, 1e-3 * input_grad, 1e-3 * weight_grad};
    played(c);  // refuses what cannot run before any rank starts
    document["rows"] = Json::array({timed_row(c, false)});
  }
  std::cout << document.dump(1) << "\n";
  return 0;
}

}  // namespace
}  // namespace kuafu::micro

int main(int argc, char** argv) {
  try {
    kuafu::initialise_tensors();
    return kuafu::micro::run(argc, argv);
  } catch (const std::exception& e) {
    std::cerr << "micro_pipeline: " << e.what() << "\n";
    return 1;
  }
}
