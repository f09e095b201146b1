// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kuafu/base/trace.h"

namespace kuafu {

/// The kind of every op that a step may make; kUnbooked for any other. Own ops (kuafu::) book FLOPs
/// and bytes by their formulas. The others make no model FLOPs, and each element of a tensor counts
/// once: kElementwise, kNorm, kReduction, kSort and kCopy read their arguments and write their
/// results; kFill writes its result; kGather reads its indices and as many elements as it writes.
OpKind kind_of_op(std::string_view name);

/// Whether an op moves no data by itself: views, memory that is only taken, reads of one number
/// (oracles), and ops that are made of others, which are told instead.
bool moves_nothing(std::string_view name);

/// Ops of a trace that are of no kind, by name with their tensors, each once.
std::vector<std::string> unknown_ops(const Trace& trace);

/// Ops of a trace that nothing books, by name with their tensors, each once: those of no kind, and
/// own ops that booked neither FLOPs nor bytes though their first tensor has elements.
std::vector<std::string> unbooked_ops(const Trace& trace);

}  // namespace kuafu
