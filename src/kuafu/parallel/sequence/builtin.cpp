// SPDX-License-Identifier: Apache-2.0
#include "kuafu/parallel/sequence/interface.h"

namespace kuafu {

void register_sequence_modes(Registry<MakeAttention>& modes) {
  modes.add("none", "every sequence whole on one rank",
            [](const AttentionSetup& setup) { return make_local_attention(setup.recompute); });
  modes.add("ring", "keys and values travel around a ring (online softmax)", make_ring_attention);
  modes.add("ring-zigzag", "ring with early and late tokens paired: causal masks load ranks alike",
            make_zigzag_attention);
  modes.add("ulysses", "heads instead of tokens during attention, by all-to-all",
            make_ulysses_attention);
  modes.add("all-gather", "all keys and values gathered on every rank: the simple reference",
            make_all_gather_attention);
}

}  // namespace kuafu
