// SPDX-License-Identifier: Apache-2.0
#include <map>

#include "kuafu/parallel/sequence/interface.h"
#include "kuafu/plan/kind_names.h"

namespace kuafu {

void register_sequence_modes(Registry<MakeAttention>& modes) {
  const std::map<std::string, MakeAttention> makers = {
      {sequence_modes::kNone,
       [](const AttentionSetup& setup) { return make_local_attention(setup.recompute); }},
      {sequence_modes::kRing, make_ring_attention},
      {sequence_modes::kRingZigzag, make_zigzag_attention},
      {sequence_modes::kUlysses, make_ulysses_attention},
      {sequence_modes::kAllGather, make_all_gather_attention}};
  for (const auto& [name, summary] : builtin_sequence_modes()) {
    modes.add(name, summary, code_of(makers, name));
  }
}

}  // namespace kuafu
