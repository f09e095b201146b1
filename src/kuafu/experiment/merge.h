// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <vector>

#include "kuafu/record/run_log.h"

namespace kuafu {

/// The record of a results folder or a run.jsonl. Throws ConfigError as read_run() does, and where a
/// line in the middle is no JSON; a last line that was cut off is left out.
RunRecord load_record(const std::string& path);

/// A folder to merge, and what it holds.
struct MergeInput {
  std::string folder;
  RunRecord record;
};

struct Merged {
  RunRecord record;
  std::map<std::string, std::string> origins;  ///< folder of every case, by id
  std::vector<std::string> notes;              ///< cases that several inputs had
};

/// Puts the cases of all inputs into one record. A case that several have: once where their lines are
/// the same; else the `ok` one; then the one whose certificate has a verdict; then the one of more
/// rounds; else the newest. Throws ConfigError naming case and folders where no time tells which that
/// is.
/// Inputs of one suite hash give a record of that suite; of others, one of all their cases.
Merged merged(const std::vector<MergeInput>& inputs);

/// Writes the record into `out` with the `cases/ID` folders of its origins. Throws ConfigError where
/// `out` holds results already.
void write_merged(const Merged& merged, const std::string& out);

}  // namespace kuafu
