// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

// The memory traffic of an optimizer's step without its arithmetic: passes over streams that are
// only read and streams that are read and written back in place, with hardly an operation for each
// element. What is written was read, so that no line is fetched for the sake of writing it.
namespace kuafu::micro {

/// One pass over memory, `count` f32 of each stream.
struct Pass {
  float* written[3] = {};     ///< x = x / 2 + the sum of what is read
  const float* read[3] = {};  ///< where nothing is written: added up
  int64_t count = 0;
};

/// How many streams a pass has: written ones (read too) and read ones.
struct PassKind {
  int written, read;
  int bytes() const { return 4 * (2 * written + read); }  ///< an element
};

/// One way of making a pass.
struct StreamLoop {
  std::string_view name;
  void (*run)(PassKind kind, const Pass&);
};

/// Every way that is tried; the limit is the one with the least median.
///   together      one loop over all streams, as the compiler makes it
///   one by one    blocks that fit the first cache: one written stream after the other of each block
///   by lines      the same in blocks of four cache lines
///   ahead         one loop that asks for lines before it needs them
///   owning        the same, asking to write what is only read, too
///   far ahead     the same, four times as far
///   past          lines are stored past the caches (on a line that was just read a tenth of the
///                 speed; where nothing was read, it would be the fastest)
/// What these loops taught. At -O2 GCC 12 makes vectors of no loop whose length it does not know
/// ("very cheap" cost model): compiled like that they moved 4 bytes an instruction, and AdamW, whose
/// file is compiled with -O3, ran 1.6 times as fast as its "limit". Instructions bound them, not
/// memory. This file is therefore compiled as the kernels are (CMakeLists.txt), and a limit that is
/// beaten ends the benchmark.
inline constexpr int kNumStreamLoops = 7;
extern const StreamLoop kStreamLoops[kNumStreamLoops];

}  // namespace kuafu::micro
