// SPDX-License-Identifier: Apache-2.0
#include "app/worker/run_files.h"

#include <filesystem>
#include <fstream>
#include <iostream>
#include <set>
#include <sstream>
#include <system_error>

#include "app/worker/document.h"
#include "kuafu/base/errors.h"
#include "kuafu/base/suggest.h"
#include "kuafu/base/worlds.h"
#include "kuafu/record/activity.h"
#include "kuafu/record/trace_file.h"
#include "kuafu/record/trace_reader.h"
#include "kuafu/record/trace_timeline.h"
#include "kuafu/simulate/last_step.h"

namespace kuafu {
namespace {

Json trace_head(const Plan& plan, const std::string& world) {
  return {
      {"trace", 1}, {"world", world}, {"ranks", num_ranks(plan)}, {"plan_hash", plan_hash(plan)}};
}

/// Ops of a plug-in's code that count nowhere: not in FLOPs, nor in what a simulated run holds.
void tell_unbooked(const std::vector<std::string>& lines_by_rank) {
  std::set<std::string> names;
  for (const std::string& lines : lines_by_rank) {
    std::istringstream in(lines);
    for (std::string line; std::getline(in, line);) {
      if (line.find("\"unbooked\"") == std::string::npos) continue;
      const Json event = Json::parse(line, nullptr, /*allow_exceptions=*/false);
      if (event.is_object() && event.value("kind", "") == "unbooked") {
        names.insert(event.value("name", ""));
      }
    }
  }
  if (names.empty()) return;
  std::cerr << "kuafu: note: the step has ops that nothing books (\"kind\": \"unbooked\"): "
            << join({names.begin(), names.end()}) << std::endl;
}

}  // namespace

void RunFiles::attempt(const std::function<void()>& write) {
  try {
    write();
  } catch (const ConfigError& e) {
    is_incomplete_ = true;
    const std::lock_guard lock(mutex_);
    if (told_.insert(e.what()).second) std::cerr << "kuafu: " << e.what() << std::endl;
  }
}

void RunFiles::claim_log() { claim_ = FileClaim("--log", options_.log_file); }

void RunFiles::drop_older_document() {
  std::error_code error;  // where it cannot go, it cannot be replaced, which will be told
  const std::filesystem::path file = options_.json_file;
  if (std::filesystem::is_regular_file(file, error)) std::filesystem::remove(file, error);
}

Json RunFiles::document() const {
  // A pipe would be waited for.
  std::error_code error;
  if (!std::filesystem::is_regular_file(options_.json_file, error)) return Json::object();
  std::ifstream file(options_.json_file);
  Json there = Json::parse(file, nullptr, /*allow_exceptions=*/false);
  return there.is_object() ? there : Json::object();
}

void RunFiles::write_document(const Json& document) {
  if (options_.json_file.empty()) return;
  attempt([&] { kuafu::write_document(document, options_.json_file); });
}

void RunFiles::write_events(const Plan& plan, const std::string& world,
                            const std::vector<std::string>& lines_by_rank) {
  const std::string &trace = options_.trace_file, &timeline = options_.timeline_file;
  KUAFU_REQUIRE(!lines_by_rank[0].empty(), timeline.empty() ? "--trace" : "--timeline",
                ": every step was done before this run");
  if (!trace.empty()) attempt([&] { write_trace(trace_head(plan, world), lines_by_rank, trace); });
  tell_unbooked(lines_by_rank);
  if (timeline.empty()) return;
  std::vector<Trace> ranks;
  for (const std::string& lines : lines_by_rank) {
    const auto rank = static_cast<int>(ranks.size());
    ranks.push_back(read_trace_lines(lines, rank, text("events of rank ", rank)));
  }
  attempt([&] { write_activities(timeline_of(ranks, world), timeline); });
}

void RunFiles::write_simulated_events(const Plan& plan, const Registries& registries,
                                      const std::vector<Trace>& oracles) {
  const std::string world = worlds::kSimulated, &trace = options_.trace_file,
                    &timeline = options_.timeline_file;
  if (!timeline.empty()) {
    const ActivityLog log = simulate_last_step(plan, registries, world);
    attempt([&] { write_activities(log, timeline); });
  }
  if (trace.empty()) return;
  std::vector<std::string> lines;
  for (const Trace& one : trace_last_step(plan, registries, oracles)) {
    lines.push_back(trace_lines(one, static_cast<int>(lines.size())));
  }
  attempt([&] { write_trace(trace_head(plan, world), lines, trace); });
}

}  // namespace kuafu
