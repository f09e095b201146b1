// SPDX-License-Identifier: Apache-2.0
//
// The table of --log as text: .csv under a head, or .jsonl.
#pragma once

#include <cstdint>
#include <string>

namespace kuafu {

inline constexpr const char* kValidationColumn = "validation_loss";

bool is_csv(const std::string& file);

/// The lines of an earlier run up to its step `last`; those of a table under the columns of `head`,
/// since that run may have watched no layers.
std::string kept_lines(const std::string& file, int64_t last, const std::string& head);

/// The largest step of a table's rows; 0: there are none.
int64_t last_step(const std::string& rows, bool is_table);

/// The whole table up to step `last`, the row of which gets this validation loss; where it has no
/// such row, one is added. `head` is of a .csv file that is not there yet.
std::string completed(const std::string& file, int64_t last, double loss, std::string head);

/// Of the steps from 1 to `last` those that rows have not, between the first row and `last`: "11 to
/// 20, 31". Empty: none.
std::string missing_steps(const std::string& rows, int64_t last, bool is_table);

}  // namespace kuafu
