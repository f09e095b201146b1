// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "kuafu/tokenizer/part.h"
#include "kuafu/tokenizer/step.h"

namespace kuafu::tokenizer {

using Tokens = std::vector<std::string>;

/// What makes tokens parts of a text again, which are joined.
using Decoder = Step<Tokens>;

/// The member `decoder` of a file, with all that it is made of.
StepPtr<Tokens> make_decoder(const Part& part);

}  // namespace kuafu::tokenizer
