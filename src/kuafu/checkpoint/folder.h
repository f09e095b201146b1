// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "kuafu/base/errors.h"

namespace kuafu {

// The folder of `--checkpoint`: which checkpoints it holds, and which of them stay. `root` is it.

/// None of the checkpoints that a run was told to go on from is whole: nothing ran.
class UnusableCheckpoints : public ConfigError {
 public:
  using ConfigError::ConfigError;
};

/// Name of the link to the checkpoint of the lowest validation loss.
inline constexpr const char* kBestLink = "best";

/// The step that the last name of a path is of ("saved/step-00000100"); none where it has another.
std::optional<int64_t> step_of_folder(const std::string& path);

/// A link in `root` that is named as a checkpoint is; none where there is none.
std::optional<std::string> linked_checkpoint(const std::string& root);
/// Folders of the complete checkpoints in `root`, newest first: those named as step_folder() does.
/// Partial folders and links are passed over.
std::vector<std::string> complete_checkpoints(const std::string& root);
/// The same with those whose index is missing or no file of their own: they are damaged, since a save
/// gets its name when it is whole.
std::vector<std::string> checkpoints(const std::string& root);
/// The first of complete_checkpoints(); none where there is none.
std::optional<std::string> newest_checkpoint(const std::string& root);

/// Where the link `best` leads: a complete checkpoint of `root` itself; none where it does not.
std::optional<std::string> best_checkpoint(const std::string& root);
/// Lets `best` lead to that step from one moment to the next. Throws ConfigError with path and
/// reason. @pre it is complete
void name_best(const std::string& root, int64_t step);

/// Which checkpoints make room for newer ones.
struct Rotation {
  int64_t keep = 1;  ///< newest that stay
  /// Newest step whose own loss is known to be finite: the newest checkpoint up to it stays too.
  int64_t sound = std::numeric_limits<int64_t>::max();
};
/// Removes all others but best_checkpoint(). What cannot be removed stays.
void remove_checkpoints(const std::string& root, const Rotation& rotation);

/// Removes that one, if it is there. What cannot be removed stays.
void remove_checkpoint(const std::string& root, int64_t step);

/// Gives a checkpoint a name that is none's, step-00000100.diverged, so that no run goes on from
/// it. Returns the name; empty where that failed.
std::string set_aside(const std::string& root, int64_t step);

/// The checkpoint that a user names: its folder, the link `best`, or the folder of several, whose
/// newest is taken. Throws ConfigError saying what is there instead.
std::string named_checkpoint(const std::string& given);

}  // namespace kuafu
