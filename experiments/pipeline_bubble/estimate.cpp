// SPDX-License-Identifier: Apache-2.0
//
// pipeline_estimate: plays timetables. Reads a JSON list of requests
//   {"schedule": "1f1b", "ranks": 4, "micro_batches": 8, "chunks": 1, "forward": 1, "input_grad":
//   1,
//    "weight_grad": 1, "transfer": 0, "spans": true}
// from standard input (durations are those of one rank's share of the model, so a stage of one of v
// chunks takes a v-th) and writes {"provenance": ..., "rows": [...]} to standard output: length,
// bubble, busy time and most stage inputs alive by rank, and with "spans" every action.

#include <iostream>
#include <iterator>

#include "kuafu/base/errors.h"
#include "kuafu/parallel/pipeline/analysis.h"
#include "kuafu/parallel/pipeline/schedules.h"
#include "kuafu/record/provenance.h"

namespace kuafu {
namespace {

using pipeline::Estimate;
using pipeline::OpCosts;
using pipeline::PipeShape;
using pipeline::Schedule;
using pipeline::Timetable;

Json spans_of(const Estimate& estimate) {
  Json rows = Json::array();
  for (const auto& spans : estimate.spans) {
    Json row = Json::array();
    for (const auto& [action, start, end] : spans) {
      row.push_back({{"op", std::string(1, static_cast<char>(action.op))},
                     {"stage", action.stage},
                     {"micro_batch", action.micro_batch},
                     {"start", start},
                     {"end", end}});
    }
    rows.push_back(row);
  }
  return rows;
}

Json row_of(const Json& request, const Registry<Schedule>& schedules) {
  const auto name = request.at("schedule").get<std::string>();
  const PipeShape shape{request.at("ranks").get<int>(), request.at("micro_batches").get<int>(),
                        request.value("chunks", 1)};
  const Timetable timetable = schedules.find(name).make(shape);
  pipeline::validate(timetable, shape);
  const double share = 1.0 / shape.chunks;
  OpCosts costs{request.value("forward", 1.0) * share, request.value("input_grad", 1.0) * share,
                request.value("weight_grad", 1.0) * share, request.value("transfer", 0.0)};
  const Estimate estimate = pipeline::estimate(timetable, costs);
  Json row = request;
  row["length"] = estimate.length;
  row["bubble"] = estimate.bubble();
  row["busy"] = estimate.busy;
  row["peak_alive"] = estimate.peak_alive;
  if (request.value("spans", false)) row["spans"] = spans_of(estimate);
  return row;
}

int run() {
  const std::string input{std::istreambuf_iterator<char>(std::cin), {}};
  const Json requests = Json::parse(input, nullptr, false);
  KUAFU_REQUIRE(requests.is_array(), "standard input: expected a JSON list of requests");
  Registry<Schedule> schedules("schedule");
  pipeline::register_schedules(schedules);
  Json rows = Json::array();
  for (const Json& request : requests) rows.push_back(row_of(request, schedules));
  std::cout << Json{{"provenance", provenance()}, {"rows", rows}}.dump() << "\n";
  return 0;
}

}  // namespace
}  // namespace kuafu

int main() {
  try {
    return kuafu::run();
  } catch (const std::exception& error) {
    std::cerr << "pipeline_estimate: " << error.what() << "\n";
    return 2;
  }
}
