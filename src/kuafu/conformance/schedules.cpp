// SPDX-License-Identifier: Apache-2.0
//
// Pipeline schedules as data, and as the engine runs them.

#include "kuafu/conformance/schedules.h"

#include <algorithm>
#include <numeric>

#include "kuafu/conformance/trial_runs.h"
#include "kuafu/parallel/pipeline/analysis.h"
#include "kuafu/parallel/pipeline/play.h"

namespace kuafu::conformance {
namespace {

using pipeline::Op;
using pipeline::PipeShape;
using pipeline::Schedule;
using pipeline::Timetable;

constexpr int kMostChunks = 3;

/// Numbers of chunks that are no refusal: what is declared, or up to 3.
std::vector<int> chunks_of(const Schedule& schedule) {
  if (schedule.chunks > 0) return {schedule.chunks};
  std::vector<int> all;
  for (int chunks = 1; chunks <= kMostChunks; ++chunks) all.push_back(chunks);
  return all;
}

std::string name_of(const PipeShape& s) {
  return text(s.micro_batches, " micro-batches, ", s.chunks, s.chunks == 1 ? " stage" : " stages",
              " a rank");
}

/// Every action once, nobody waits in a circle: of the rows, and of the rows with their messages.
void check_timetable(const Schedule& schedule, PipeShape s, Notes& notes) {
  const Timetable t = schedule.make(s);
  pipeline::validate(t, s);
  pipeline::validate(pipeline::lower(t), s);
  notes.expect(schedule.make(s) == t, "the schedule is another when it is made again");
}

void check_memory(const Schedule& schedule, PipeShape s, Notes& notes) {
  notes.expect(static_cast<bool>(schedule.most_alive),
               "it does not declare most_alive, the stage inputs that a rank keeps at once");
  if (notes.has_failed()) return;
  const pipeline::Estimate e = pipeline::estimate(schedule.make(s), {});
  for (int r = 0; r < s.ranks; ++r) {
    const int kept = e.peak_alive[static_cast<size_t>(r)], declared = schedule.most_alive(s, r);
    notes.expect(kept <= declared, "rank ", r, " keeps ", kept,
                 " stage inputs at once, the schedule declares ", declared);
  }
}

/// Chunks that it does not have are refused, not ignored.
void check_chunks(const Schedule& schedule, PipeShape s, Notes& notes) {
  if (schedule.chunks == 0) return;
  s.chunks = schedule.chunks + 1;
  try {
    schedule.make(s);
  } catch (const Refused&) {
    return;
  }
  notes.fail(text("it has ", schedule.chunks, " stages a rank and does not refuse ", s.chunks));
}

/// A GPT with a block a stage, trained under the schedule.
void check_run(const Registries& registries, const std::string& name, PipeShape s, Notes& notes) {
  const int64_t layers = std::max<int64_t>(1, s.stages() - 2);
  const Plan plan = placed_plan(registries, {{"model.layers", text(layers)},
                                             {"model.hidden", "16"},
                                             {"model.heads", "2"},
                                             {"model.vocab", "37"},
                                             {"model.sequence", "6"},
                                             {"model.dropout", "0.1"},
                                             {"model.dtype", "f64"},
                                             {"parallel.pipeline.size", text(s.ranks)},
                                             {"parallel.pipeline.schedule", name},
                                             {"parallel.pipeline.chunks", text(s.chunks)},
                                             {"train.batch", text(s.micro_batches)},
                                             {"train.micro_batch", "1"},
                                             {"train.steps", "3"}});
  expect_certified(plan, registries, notes);
}

/// Every number up to 4 a rank, and some beyond 64.
std::vector<int> planned_micro_batches(int ranks) {
  std::vector<int> all(static_cast<size_t>(4 * ranks));
  std::iota(all.begin(), all.end(), 1);
  for (const int many : {65, 130}) {
    if (many > 4 * ranks) all.push_back(many);
  }
  return all;
}

/// Fewer micro-batches than ranks, as many, more, and an odd number of them.
std::vector<int> trained_micro_batches(int ranks) {
  std::vector<int> all = {1, ranks, 2 * ranks + 1};
  if (ranks > 2) all.push_back(ranks - 1);
  return all;
}

}  // namespace

std::vector<Finding> check_schedule(const Registries& registries, const std::string& name,
                                    const std::vector<int64_t>& sizes, const Tell& tell) {
  const Schedule& schedule = registries.schedules.find(name);
  Findings findings(tell);
  for (const int64_t size : sizes) {
    const auto ranks = static_cast<int>(size);
    const auto add = [&](const char* check, const PipeShape& s, const auto& body) {
      const Finding blank{.kind = "schedule",
                          .name = name,
                          .check = check,
                          .where = text("pipeline", ranks),
                          .shape = name_of(s)};
      return findings.run_or_refuse(blank, body);
    };
    for (const int chunks : chunks_of(schedule)) {
      bool is_sound = true;
      for (const int m : planned_micro_batches(ranks)) {
        const PipeShape s{ranks, m, chunks};
        const auto timetable = [&](Notes& n) { check_timetable(schedule, s, n); };
        const Finding f = add("timetable", s, timetable);
        is_sound = is_sound && f.is_ok;
        if (!f.is_ok || !f.refusal.empty()) continue;
        add("memory", s, [&](Notes& n) { check_memory(schedule, s, n); });
      }
      const PipeShape one{ranks, ranks, chunks};
      add("refusal", one, [&](Notes& n) { check_chunks(schedule, one, n); });
      if (!is_sound || ranks < 2) continue;  // ranks would wait for each other
      for (const int m : trained_micro_batches(ranks)) {
        const PipeShape s{ranks, m, chunks};
        add("training", s, [&](Notes& n) { check_run(registries, name, s, n); });
      }
    }
    if (findings.has_failed()) break;
  }
  return std::move(findings).all();
}

}  // namespace kuafu::conformance
