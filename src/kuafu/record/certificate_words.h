// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "kuafu/record/json.h"

namespace kuafu {

/// Of `certificate` in a document, what came nearest to its bound, or furthest beyond:
/// "gradient error 1.7e-16 of 1.5e-15 (blocks.0.attn.out.bias, step 3)"; empty where nothing was
/// compared. Of the run itself, in its own type:
std::string words_of_native(const Json& certificate);
/// Of its f64 twin:
std::string words_of_twin(const Json& certificate);

}  // namespace kuafu
