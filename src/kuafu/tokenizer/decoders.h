// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "kuafu/tokenizer/component.h"
#include "kuafu/tokenizer/text_step.h"

namespace kuafu::tokenizer {

using TokenTexts = std::vector<std::string>;

/// What makes tokens parts of a text again, which are joined.
using Decoder = TextStep<TokenTexts>;

/// The member `decoder` of a file, with all that it is made of.
StepPtr<TokenTexts> make_decoder(const Component& part);

}  // namespace kuafu::tokenizer
