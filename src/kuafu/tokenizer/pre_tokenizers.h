// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kuafu/tokenizer/component.h"
#include "kuafu/tokenizer/piece.h"
#include "kuafu/tokenizer/text_step.h"

namespace kuafu::tokenizer {

/// What splits a text into words, of which the model makes tokens one by one.
using PreTokenizer = TextStep<Pieces>;

/// The member `pre_tokenizer` of a file, with all that it is made of.
StepPtr<Pieces> make_pre_tokenizer(const Component& part);

}  // namespace kuafu::tokenizer
