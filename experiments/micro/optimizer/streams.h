// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

// The memory traffic of an AdamW step without its arithmetic: four streams read, three of them
// written back in place, 28 bytes an f32 element, with one multiplication and one addition for each
// element written. No optimizer that keeps w, m and v in f32 moves less: what is written was read,
// so that no line is fetched for the sake of writing it.
namespace kuafu::micro {

/// Elements that stream by, `count` of each.
struct Streams {
  float* w;
  const float* grad;
  float *m, *v;
  int64_t count;
};

/// One way of writing  x = x / 2 + grad  for x in w, m, v.
struct StreamLoop {
  std::string_view name;
  void (*run)(const Streams&);
};

/// Every way that is tried; the limit is the fastest of them.
///   together      one loop over the four streams, as the compiler makes it
///   one by one    blocks that fit the first cache: w, then m, then v of each block
///   by lines      the same in blocks of four cache lines
///   ahead         one loop that asks for lines before it needs them
///   far ahead     the same, four times as far
///   past          lines are stored past the caches (on a line that was just read a tenth of the
///                 speed; where nothing was read, it would be the fastest)
/// What these loops taught. At -O2 GCC 12 makes vectors of no loop whose length it does not know
/// ("very cheap" cost model): compiled like that they moved 4 bytes an instruction, and AdamW, whose
/// file is compiled with -O3, ran 1.6 times as fast as its "limit". Instructions bound them, not
/// memory. This file is therefore compiled as the kernels are (CMakeLists.txt), and a limit that is
/// beaten ends the benchmark.
inline constexpr int kNumStreamLoops = 6;
extern const StreamLoop kStreamLoops[kNumStreamLoops];

}  // namespace kuafu::micro
