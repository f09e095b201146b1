// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kuafu/record/json.h"

namespace kuafu {

/// Version of the lines of run.jsonl that are written: every line ends with its checksum. Lines of
/// format 1 had none; they are read still, any other version is refused.
inline constexpr int64_t kRecordFormat = 2;
inline constexpr int64_t kOldestRecordFormat = 1;

/// Begins certificate.reason where the run was done and its process ended while it was certified:
/// the document was written before that.
inline constexpr std::string_view kCutShort = "certifying was cut short";

enum class FieldType : uint8_t {
  kText,
  kInteger,
  kNumber,
  kObject,
  kNumbers,         ///< list of numbers
  kTexts,           ///< list of texts
  kNumbersPerStep,  ///< list of one list of numbers a training step
  kInterval,        ///< list of two numbers, low and high
  kPerRank,         ///< list of one integer a rank
  kBytesPerRank,    ///< list of one {name: bytes} a rank
};

/// When a field must be there.
enum class Presence : uint8_t {
  kAlways,
  kOk,  ///< in every document of status `ok`
  kOptional,
};

/// One field of the document that `kuafu run --json` writes.
struct FieldDoc {
  std::string path;  ///< dotted; `*` stands for any name: "ledger.*.bytes_sent"
  FieldType type;
  Presence presence;
  bool is_nullable;
  std::string unit;  ///< empty where it has none
  std::string meaning;
};

/// Every field, in the order of the document: validation and docs/record.md read this one table.
const std::vector<FieldDoc>& document_fields();

/// The table as Markdown: what docs/record.md holds between its two marks.
std::string document_fields_markdown();

/// Everything wrong with `document`, one sentence each; empty = valid. Fields that the table lacks
/// are allowed: a newer program may write more.
std::vector<std::string> document_problems(const Json& document);

/// Dotted paths in `document` that the table lacks. `plan` and `provenance` are open.
std::vector<std::string> unknown_fields(const Json& document);

/// Everything wrong with one line of run.jsonl (kind `suite` or `case`); empty = valid.
std::vector<std::string> line_problems(const Json& line);

/// "ok", "refused", "out_of_memory", "timeout", "diverged", "interrupted", "failed".
const std::vector<std::string>& statuses();

/// All words that a field may be; empty where it may be more. A status may be "different" too, of what a
/// certificate refutes.
std::vector<std::string> words_of_field(const std::string& path);

/// Why no document can have a value at a dotted path, with the nearest one that can; empty: it can.
std::string path_problem(std::string_view path);

/// The value at a dotted path ("memory.peak_bytes"), or null where there is none. A list element is
/// named by its index, "first", "last", "max" or "sum"; of numbers per step the step stands before it.
Json value_at(const Json& document, std::string_view path);

}  // namespace kuafu
