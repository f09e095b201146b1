// SPDX-License-Identifier: Apache-2.0
//
// Shared objects that are no plug-in: without the symbol, with DATA one whose symbol is data, with EXITS
// one that ends the process while it is loaded.

#include <cstdlib>

#if defined(DATA)
extern "C" {
int kuafu_plugin = 5;
}
#elif defined(EXITS)
namespace {
[[maybe_unused]] const int kNever = [] {
  std::exit(0);
  return 0;
}();
}  // namespace
#else
extern "C" int kuafu_plugin_of_another_name() { return 0; }
#endif
