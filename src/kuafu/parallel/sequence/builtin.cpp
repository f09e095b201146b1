// SPDX-License-Identifier: Apache-2.0
#include <map>

#include "kuafu/parallel/sequence/interface.h"

namespace kuafu {

void register_sequence_modes(Registry<MakeAttention>& modes) {
  const std::map<std::string, MakeAttention> makers = {
      {"none", [](const AttentionSetup& setup) { return make_local_attention(setup.recompute); }},
      {"ring", make_ring_attention},
      {"ring-zigzag", make_zigzag_attention},
      {"ulysses", make_ulysses_attention},
      {"all-gather", make_all_gather_attention}};
  for (const auto& [name, summary] : builtin_sequence_modes()) {
    modes.add(name, summary, makers.at(name));
  }
}

}  // namespace kuafu
