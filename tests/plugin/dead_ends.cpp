// SPDX-License-Identifier: Apache-2.0
//
// Schedules that never come back: "segfaults", "aborts", "divides" and "overflows" crash where they
// are made, "hangs" waits for ever, "crashes-at-4" does the first where it has 4 micro-batches, and
// "quits" ends the process as if all were well. "refuses" says not why.

#include <signal.h>
#include <torch/version.h>
#include <unistd.h>

#include <cstdlib>

#include "kuafu/base/errors.h"
#include "kuafu/engine/plugin.h"
#include "kuafu/parallel/pipeline/schedules.h"

namespace {

using namespace kuafu;
using pipeline::PipeShape;
using pipeline::Timetable;

Timetable segfaults(PipeShape s) {
  volatile int* volatile nowhere = nullptr;
  *nowhere = s.ranks;
  return {};
}

Timetable crashes_at_4(PipeShape s) {
  return s.micro_batches == 4 ? segfaults(s) : pipeline::one_f_one_b(s);
}

Timetable aborts(PipeShape /*s*/) { std::abort(); }

Timetable divides(PipeShape /*s*/) {
  ::raise(SIGFPE);  // whether a division does is the processor's matter
  return {};
}

int depth_of(volatile char* above) {  // NOLINT: it is to use up the stack
  volatile char mine[4096];
  mine[0] = *above;
  return mine[0] == 1 ? 0 : 1 + depth_of(mine) + mine[1];
}

Timetable overflows(PipeShape /*s*/) {
  volatile char first = 0;
  return Timetable(static_cast<size_t>(depth_of(&first)));
}

Timetable hangs(PipeShape /*s*/) {
  while (true) ::pause();
}

Timetable quits(PipeShape /*s*/) { std::quick_exit(0); }

Timetable refuses(PipeShape /*s*/) { throw Refused(""); }

void add(Registries& registries) {
  struct Row {
    const char* name;
    Timetable (*make)(PipeShape s);
  };
  for (const Row& row :
       {Row{"segfaults", segfaults}, Row{"aborts", aborts}, Row{"divides", divides},
        Row{"overflows", overflows}, Row{"hangs", hangs}, Row{"crashes-at-4", crashes_at_4},
        Row{"quits", quits}, Row{"refuses", refuses}}) {
    registries.schedules.add(
        row.name, "never comes back",
        {.make = row.make, .chunks = 1, .most_alive = [](PipeShape s, int /*rank*/) {
           return s.micro_batches;
         }});
  }
}

}  // namespace

extern "C" const kuafu::PluginInfo* kuafu_plugin() {
  static const kuafu::PluginInfo kInfo = {.abi = KUAFU_PLUGIN_ABI,
                                          .torch = TORCH_VERSION,
                                          .name = "dead-ends",
                                          .version = "1",
                                          .add = add};
  return &kInfo;
}
