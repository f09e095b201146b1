// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kuafu/plan/plan.h"

namespace kuafu {

/// What a resumed run would learn otherwise than the one that was saved.
enum class ResumeChanges : uint8_t { kRefused, kMeant };

/// Keys of how a run learns that differ: its data, samples, seed, learning rate and update rule.
/// "optimizer.lr = 0.001, now 0.002"; empty where none does. The horizon of a schedule is compared
/// as it is, whichever key it comes from. Data are the same where their hashes are, wherever they
/// lie; a plan without a hash (saved by an older version) agrees with any.
/// @pre both plans are resolved
std::vector<std::string> resume_changes(const Plan& saved, const Plan& now);

/// Whether a run may go on under `now` from what was saved under `saved`. The model and the kind of
/// optimizer must agree: they decide which tensors there are. How it learns (resume_changes) must
/// agree too unless changes are meant. Where and how it runs (parallel, memory, micro_batch), its
/// length and element type may change.
/// Throws ConfigError naming the keys that differ and both values; `saved_as` is the checkpoint's
/// folder. @pre both plans are resolved
void check_resumable(const Plan& saved, const Plan& now, std::string_view saved_as,
                     ResumeChanges changes = ResumeChanges::kRefused);

/// The same where weights alone were saved: the model must agree, all else is the plan's own.
/// `instead` is what else can be done.
void check_same_model(const Plan& saved, const Plan& now, std::string_view saved_as,
                      std::string_view instead = "begin without --resume in another folder");

}  // namespace kuafu
