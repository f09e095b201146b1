// A memory policy: before each moment of a step, which chunks of parameters leave the device, and
// which come ahead of their use. This one lets the largest leave first, of those as large the one
// that is used last.
//
// Picture (budget 20; r is read by the moment, + kept, . at home)
//
//   moment       0  1  2  3  update
//   chunk 0, 8   r  +  +  r  .       small: it stays
//   chunk 1, 12  .  r  .  .  .       leaves before moment 2, whose chunk needs its room
//   chunk 2, 12  .  .  r  .  .
//
// A policy is a function of what is known and has no state of its own: asked again, it chooses the
// same. It sees no tensor and copies nothing: Kuafu makes its choices moves, holds each to the rules
// (memory/moves.h) and plays them on real memory. The losses are those of a plan without tiers.
//
// What to change first: `rank`. Conformance says whether each move keeps the rules, and how many bytes
// are moved; see also
//   kuafu explain plan.toml --plugin build/libmy_policy.so
// which holds your policy against the others and the least bytes that there are.

#include <torch/version.h>

#include <cstdint>

#include "kuafu/engine/plugin.h"
#include "kuafu/memory/room.h"

namespace {

using namespace kuafu;

// `known` has the trace of the step, with the bytes of each chunk and who reads it when, what lies on
// the device, the budget, and the keys of [memory] that are named below, in add().
memory::Choice choose(const memory::Known& known) {
  const int64_t moments = known.trace.num_moments();
  // The largest rank leaves first; what is below 0 stays.
  const auto rank = [&](int64_t chunk) {
    return known.bytes_of(chunk) * (moments + 2) + known.distance(chunk);
  };
  memory::Room room(known, known.budget);
  room.make_for_moment(rank);  // what this moment needs
  room.bring_ahead(rank, known.knobs.prefetch);
  return room.choice();
}

void add(Registries& registries) {
  registries.policies.add("my_policy", "the largest chunk leaves first: a policy of my own",
                          {.keys = {"prefetch"}, .choose = choose});
}

}  // namespace

extern "C" const kuafu::PluginInfo* kuafu_plugin() {
  static const kuafu::PluginInfo kInfo = {.abi = KUAFU_PLUGIN_ABI,
                                          .torch = TORCH_VERSION,
                                          .name = "my_policy",
                                          .version = "1",
                                          .add = add};
  return &kInfo;
}
