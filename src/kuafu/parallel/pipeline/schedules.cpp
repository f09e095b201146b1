// SPDX-License-Identifier: Apache-2.0
#include "kuafu/parallel/pipeline/schedules.h"

#include <algorithm>

#include "kuafu/base/errors.h"

namespace kuafu::pipeline {
namespace {

/// p ranks in two stages of words: the row of each rank, made by `row_of(rank)`.
template <class RowOf>
Timetable rows(PipeShape s, const RowOf& row_of) {
  KUAFU_REQUIRE(s.ranks > 0 && s.micro_batches > 0 && s.chunks > 0, "a pipeline of ", s.ranks,
                " ranks, ", s.micro_batches, " micro-batches and ", s.chunks,
                " chunks; all must be positive");
  Timetable t;
  for (int r = 0; r < s.ranks; ++r) t.push_back(row_of(r));
  return t;
}

void need_chunks(PipeShape s, int chunks, std::string_view name) {
  if (s.chunks == chunks) return;
  throw Refused(text("schedule \"", name, "\" has ", chunks, chunks == 1 ? " stage" : " stages",
                     " a rank, given chunks = ", s.chunks, "; nearest: chunks = ", chunks,
                     ", or schedule = \"interleaved\""));
}

/// Micro-batches group by group (at most p of them), in each group chunk by chunk.
Row in_groups(PipeShape s, int r, Op op) {
  Row row;
  for (int first = 0; first < s.micro_batches; first += s.ranks) {
    const int last = std::min(first + s.ranks, s.micro_batches);
    for (int c = 0; c < s.chunks; ++c) {
      const int chunk = op == Op::kForward ? c : s.chunks - 1 - c;
      for (int m = first; m < last; ++m) row.push_back({op, chunk * s.ranks + r, m});
    }
  }
  return row;
}

}  // namespace

Timetable gpipe(PipeShape s) {
  need_chunks(s, 1, "gpipe");
  return rows(s, [&](int r) {
    Row row;
    for (int m = 0; m < s.micro_batches; ++m) row.push_back({Op::kForward, r, m});
    for (int m = s.micro_batches; m-- > 0;) row.push_back({Op::kBackward, r, m});
    return row;
  });
}

Timetable one_f_one_b(PipeShape s) {
  need_chunks(s, 1, "1f1b");
  return rows(s, [&](int r) {
    const int warm = std::min(s.ranks - 1 - r, s.micro_batches);
    Row row;
    for (int m = 0; m < warm; ++m) row.push_back({Op::kForward, r, m});
    for (int m = warm; m < s.micro_batches; ++m) {
      row.push_back({Op::kForward, r, m});
      row.push_back({Op::kBackward, r, m - warm});
    }
    for (int m = s.micro_batches - warm; m < s.micro_batches; ++m) {
      row.push_back({Op::kBackward, r, m});
    }
    return row;
  });
}

Timetable interleaved(PipeShape s) {
  // Groups of p micro-batches follow each other around the ring without a gap. Where m is no
  // multiple of p the first group is short: a whole one, its missing micro-batches struck out,
  // which can neither delay what is left nor keep more of it.
  PipeShape whole = s;
  whole.micro_batches = (s.micro_batches + s.ranks - 1) / s.ranks * s.ranks;
  const int missing = whole.micro_batches - s.micro_batches;
  return rows(s, [&](int r) {
    const Row forward = in_groups(whole, r, Op::kForward),
              backward = in_groups(whole, r, Op::kBackward);
    const int total = static_cast<int>(forward.size());
    // Before its first backward a rank fills what lies between it and the last rank, there and
    // back, for every chunk but the last.
    const int warm = std::min(total, 2 * (s.ranks - 1 - r) + (s.chunks - 1) * s.ranks);
    Row row(forward.begin(), forward.begin() + warm);
    for (int i = warm; i < total; ++i) {
      row.push_back(forward[static_cast<size_t>(i)]);
      row.push_back(backward[static_cast<size_t>(i - warm)]);
    }
    row.insert(row.end(), backward.end() - warm, backward.end());
    std::erase_if(row, [&](const Action& a) { return a.micro_batch < missing; });
    for (Action& a : row) a.micro_batch -= missing;
    return row;
  });
}

Timetable zero_bubble_h1(PipeShape s) {
  need_chunks(s, 1, "zero_bubble");
  return rows(s, [&](int r) {
    // As 1F1B, but rank r takes its weight gradients r micro-batches later: p alive on every rank.
    const int warm = std::min(s.ranks - 1 - r, s.micro_batches);
    Row row;
    for (int m = 0; m < warm; ++m) row.push_back({Op::kForward, r, m});
    for (int i = 0; i < s.micro_batches; ++i) {
      if (warm + i < s.micro_batches) row.push_back({Op::kForward, r, warm + i});
      row.push_back({Op::kInputGrad, r, i});
      if (i >= r) row.push_back({Op::kWeightGrad, r, i - r});
    }
    for (int m = std::max(0, s.micro_batches - r); m < s.micro_batches; ++m) {
      row.push_back({Op::kWeightGrad, r, m});
    }
    return row;
  });
}

void register_schedules(Registry<Schedule>& schedules) {
  const auto at_most = [](int alive, PipeShape s) {
    return std::min(alive, s.chunks * s.micro_batches);
  };
  schedules.add("gpipe", "all forwards, then all backwards",
                {gpipe, 1, [=](PipeShape s, int) { return s.micro_batches; }});
  schedules.add("1f1b", "one forward, one backward: at most p micro-batches alive",
                {one_f_one_b, 1, [=](PipeShape s, int r) { return at_most(s.ranks - r, s); }});
  schedules.add("interleaved", "several stages a rank: the bubble divided by their number",
                {interleaved, 0, [=](PipeShape s, int r) {
                   return at_most(s.chunks * s.ranks + s.ranks - 1 - 2 * r, s);
                 }});
  schedules.add("zero_bubble", "1F1B, weight gradients fill the bubble (ZB-H1)",
                {zero_bubble_h1, 1, [=](PipeShape s, int) { return at_most(s.ranks, s); }});
  schedules.add("zbv", "two stages a rank in a V, weight gradients fill the bubble (ZB-V)",
                {zbv, 2, [=](PipeShape s, int) { return at_most(2 * s.ranks, s); }});
}

const Registry<Schedule>& builtin_schedules() {
  static const Registry<Schedule> kAll = [] {
    Registry<Schedule> schedules("pipeline schedule");
    register_schedules(schedules);
    return schedules;
  }();
  return kAll;
}

}  // namespace kuafu::pipeline
