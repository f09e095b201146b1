// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "kuafu/record/files.h"
#include "kuafu/record/json.h"

namespace kuafu {

/// What a run.jsonl holds.
struct RunRecord {
  Json header;                       ///< the line of kind `suite`; null in an empty record
  std::vector<Json> cases;           ///< the lines of kind `case`, as they were written
  std::vector<Json> former;          ///< those of kind `former`: no longer in the suite
  std::vector<std::string> damaged;  ///< lines that are no JSON: cut off by a kill or a full disk
  bool is_cut = false;               ///< the last of them is the file's last, without its end
};

/// Name of the record inside a results folder.
inline constexpr const char* kRunFile = "run.jsonl";

/// Reads a record without changing it. Throws ConfigError naming file, line and problem where a
/// whole line is not what docs/record.md says or does not match its checksum, or where the format
/// is another version's.
RunRecord read_run(const std::string& path);

/// A line as it stands in a file, without its end: the object with one more field at the end,
/// "checksum":"1a2b3c4d", the CRC-32 of all bytes before that field.
std::string sealed(const Json& line);

/// The record of a run: one JSON line per finished case. Each line is handed to the system at once
/// and forced to the disk every few seconds, so a kill loses at most the case in hand. Lines change
/// only where a case runs anew or in another round, or the suite changes.
class RunLog {
 public:
  /// Opens or creates `folder`/run.jsonl. Damaged lines go to run.jsonl.damaged, as notes() says.
  explicit RunLog(const std::string& folder);
  ~RunLog();

  const RunRecord& record() const { return record_; }
  const std::vector<std::string>& notes() const { return notes_; }
  const std::string& path() const { return path_; }

  /// First line of a new record. @pre the record is empty.
  void begin(const Json& header);

  /// Adds the line of a finished case. Throws ConfigError where it cannot be written whole; the
  /// record then ends with the line before it.
  void append(const Json& line);

  /// Puts the line in the place of those that its case has. Throws ConfigError as append() does; the
  /// old lines are still there then.
  void replace(const Json& line);

  /// Puts all of `record` in the place of the lines there are, in one step. Throws ConfigError where
  /// it cannot be written whole; nothing has changed then.
  void rewrite(const RunRecord& record);

  /// Forces everything to the disk. Throws ConfigError.
  void sync();

 private:
  void open();
  void move_damage_aside();
  void put_in_place(RunRecord next);
  /// Returns the line as a reader gets it.
  Json write_line(const Json& line);

  std::string path_;
  RunRecord record_;
  std::vector<std::string> notes_;
  File file_;
  std::chrono::steady_clock::time_point last_sync_;
};

}  // namespace kuafu
