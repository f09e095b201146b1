// SPDX-License-Identifier: Apache-2.0
#include "kuafu/tokenizer/metaspace.h"

#include "kuafu/tokenizer/characters.h"

namespace kuafu::tokenizer {

Metaspace::Metaspace(const Component& part) {
  part.allow({"replacement", "prepend_scheme", "split", "add_prefix_space", "str_rep"});
  replacement = to_utf8(part.at("replacement").character());
  splits = part.boolean("split", true);
  const std::string scheme = part.value().contains("prepend_scheme")
                                 ? part.at("prepend_scheme").one_of({"always", "first", "never"})
                                 : "always";
  prepend = scheme == "always"  ? Prepend::kAlways
            : scheme == "first" ? Prepend::kFirst
                                : Prepend::kNever;
  if (part.boolean("add_prefix_space", true)) return;
  // An older spelling of never.
  if (prepend != Prepend::kNever) {
    part.at("add_prefix_space").refuse("true, or \"prepend_scheme\": \"never\" beside it");
  }
}

}  // namespace kuafu::tokenizer
