// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kuafu/experiment/child.h"
#include "kuafu/experiment/suite.h"
#include "kuafu/record/json.h"

namespace kuafu {

/// One run of a case: the first, in the suite's order, is certified; those of later rounds only
/// time it again.
struct Turn {
  const Case* of = nullptr;
  int64_t round = 1;
  int64_t position = 1;  ///< in the round's order of all cases of the suite
};

/// All cases of the suite in the order of a round: the suite's in round 1, later another one in
/// each, so that a slow minute does not meet the same case every time. Depends on the ids of the
/// cases and the round alone: a sweep that goes on later goes on in it.
std::vector<Turn> order_of_round(const Suite& suite, int64_t round);

/// Whether more rounds of a case say more: the simulated world times nothing.
bool is_timed(const Case& c);

/// Whether the first run of a case leaves something to be timed again.
bool is_repeatable(const Case& c, const Json& line);

/// The kernels that a block of provenance names; "own" of older ones.
std::string kernels_of(const Json& provenance);

/// Whether the first run was made by this program on this machine: other times do not mix with its.
bool is_of_here(const Json& line, const Json& provenance);

/// The entry of a round in the case's line; null where it has none.
Json round_of(const Json& line, int64_t round);

/// How a run of a case ended.
struct RoundRun {
  Turn turn;
  std::string sweep;  ///< the call that made it, 16 hex digits
  std::string began;  ///< UTC
  Json document;
  ChildResult result;
};

/// Puts a round's entry into the case's line, in the place of the one that it may have, and its
/// timing anew. Losses are compared with those of the line's document.
void put_round(Json& line, const RoundRun& run);

/// What the rounds after the first show besides times: ends that are not `ok`, and other losses.
struct RoundFindings {
  std::vector<std::string> sentences;
  bool is_bad = false;  ///< one failed, or computed something else
};
RoundFindings findings_of_rounds(const Json& line);

}  // namespace kuafu
