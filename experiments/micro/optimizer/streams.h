// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

// The memory traffic of an AdamW step without its arithmetic: four streams read, three of them
// written back in place, 28 bytes an f32 element, with one multiplication and one addition for each
// element written. No optimizer that keeps w, m and v in f32 moves less.
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

/// Every way that is tried; the limit is the fastest of them. Stores past the caches are none of
/// them: into lines that were just read they reach a tenth of the speed.
///   together      one loop over the four streams, as the compiler makes it
///   one by one    blocks that fit the first cache: w, then m, then v of each block
///   ahead         one loop that asks for lines before it needs them
inline constexpr int kNumStreamLoops = 3;
extern const StreamLoop kStreamLoops[kNumStreamLoops];

}  // namespace kuafu::micro
