// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kuafu::pipeline {

/// What a rank does. kBackward is both gradients at once; kInputGrad and kWeightGrad are its
/// halves.
enum class Op : char {
  kForward = 'F',
  kBackward = 'B',
  kInputGrad = 'I',
  kWeightGrad = 'W',
  kSendForward = 's',   ///< activations of `stage` to the next stage
  kRecvForward = 'r',   ///< activations for `stage` from the one before
  kSendBackward = 'S',  ///< the gradient of the input of `stage` to the one before
  kRecvBackward = 'R',  ///< the gradient of the output of `stage` from the next
};

/// One entry of a row; prints as "2F0": stage, op, micro-batch.
struct Action {
  Op op = Op::kForward;
  int stage = 0;
  int micro_batch = 0;
  auto operator<=>(const Action&) const = default;
};
std::string to_string(const Action& a);
/// Reads "2F0". Throws ConfigError: what was given, what is allowed.
Action parse_action(std::string_view text);

/// Ranks of a pipeline, micro-batches of a step and stages a rank holds.
struct PipeShape {
  int ranks = 1;
  int micro_batches = 1;
  int chunks = 1;
  int stages() const { return ranks * chunks; }
  bool operator==(const PipeShape&) const = default;
};

/// One row of actions per rank, each in the order in which the rank takes them.
using Row = std::vector<Action>;
using Timetable = std::vector<Row>;

/// Which rank holds each stage, read off the rows. Throws ConfigError where two ranks claim a stage
/// or none has it.
std::vector<int> ranks_of_stages(const Timetable& t, int stages);

/// One line a rank: "0F0,0F1,0B0"; '#' opens a comment. What a file of a hand-written schedule
/// holds.
std::string to_csv(const Timetable& t);
/// Throws ConfigError with `origin` and line.
Timetable parse_csv(std::string_view csv, std::string_view origin);
/// The line of each row of such a document, from 1.
std::vector<int> lines_of_rows(std::string_view csv);

/// Highest micro-batch and stage + 1, and rows: the shape a timetable is made for. Throws ConfigError
/// where the ranks do not divide the stages, or the actions are fewer than the shape has.
PipeShape shape_of(const Timetable& t);

}  // namespace kuafu::pipeline
