// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "app/worker/appended_file.h"

namespace kuafu {

/// Writes scalars that TensorBoard draws: one event file, records of which are
///
///     length   8 bytes, little-endian, of the data
///     check    4 bytes, of the length
///     data     a message Event {1: double wall_time, 2: int64 step, 3: string file_version,
///                               5: Summary {1: Value {1: string tag, 2: float simple_value}},
///                               7: SessionLog {1: status}}
///     check    4 bytes, of the data
///
/// in protocol buffers' wire format; a check is CRC-32C turned right by 15 bits, plus 0xa282ead8.
///                        [TensorFlow, tensorflow/core/lib/io/record_writer.h, util/event.proto]
class TensorBoard {
 public:
  /// A new file in the folder, which is made. Points of the step `begin`, counted from 1, and later
  /// ones in files that were there are those of a run that ended before it saved them: a session that
  /// starts there tells TensorBoard to drop them. Throws ConfigError where it cannot be written.
  TensorBoard(const std::string& folder, int64_t begin);

  /// Whether a run has written into the folder.
  static bool is_used(const std::string& folder);

  /// `step` counts from 1.
  void add(const std::string& tag, int64_t step, double value);
  /// What was added can be read by others. Throws ConfigError where it cannot be written.
  void flush();

 private:
  void write(const std::string& event);

  std::optional<AppendedFile> file_;
  std::string unwritten_;  ///< whole events
};

}  // namespace kuafu
