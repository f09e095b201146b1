// A pipeline schedule: for each rank, what it does in which order. This one is 1F1B whose weight
// gradients wait for the end.
//
// Picture (3 ranks, 4 micro-batches; F forward, I input gradient, W weight gradient)
//
//   rank 0  F0 F1 F2 .. .. I0 F3 I1 .. I2 .. I3 W0 W1 W2 W3
//   rank 1  .. F0 F1 .. I0 F2 I1 F3 I2 .. I3 W0 W1 W2 W3
//   rank 2  .. .. F0 I0 F1 I1 F2 I2 F3 I3 W0 W1 W2 W3
//
// Memory: a stage keeps its input until the weight gradient is made: all m micro-batches.
//
// What to change first: take weight gradients earlier, where a rank waits; the bubble stays as small
// and fewer inputs are kept. Then say so in most_alive, which conformance holds you to, and see
//   kuafu explain plan.toml --plugin build/libmy_schedule.so --timetable mine.svg
// A schedule is data: nothing here sends a message. Kuafu inserts them, and refuses an order in which
// ranks would wait in a circle.

#include <torch/version.h>

#include <algorithm>

#include "kuafu/engine/plugin.h"

namespace {

using namespace kuafu;
using pipeline::Op;

// Where shapes come from: s.ranks is parallel.pipeline.size, s.chunks the stages a rank holds, and
// s.micro_batches what a replica's part of the batch is cut into. Here stage r is that of rank r.
pipeline::Timetable make(pipeline::PipeShape s) {
  if (s.chunks != 1) {
    throw Refused(text("my_schedule has one stage a rank, given chunks = ", s.chunks,
                       "; nearest: chunks = 1"));
  }
  pipeline::Timetable timetable;
  for (int r = 0; r < s.ranks; ++r) {
    pipeline::Row row;
    const int m = s.micro_batches, warm = std::min(s.ranks - 1 - r, m);
    for (int i = 0; i < warm; ++i) row.push_back({Op::kForward, r, i});
    for (int i = 0; i < m; ++i) {
      if (warm + i < m) row.push_back({Op::kForward, r, warm + i});
      row.push_back({Op::kInputGrad, r, i});
    }
    for (int i = 0; i < m; ++i) row.push_back({Op::kWeightGrad, r, i});
    timetable.push_back(row);
  }
  return timetable;
}

void add(Registries& registries) {
  registries.schedules.add(
      "my_schedule", "1F1B whose weight gradients wait for the end: a schedule of my own",
      {.make = make, .chunks = 1, .most_alive = [](pipeline::PipeShape s, int /*rank*/) {
         return s.micro_batches;
       }});
}

}  // namespace

extern "C" const kuafu::PluginInfo* kuafu_plugin() {
  static const kuafu::PluginInfo kInfo = {.abi = KUAFU_PLUGIN_ABI,
                                          .torch = TORCH_VERSION,
                                          .name = "my_schedule",
                                          .version = "1",
                                          .add = add};
  return &kInfo;
}
