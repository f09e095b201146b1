// SPDX-License-Identifier: Apache-2.0
#include "kuafu/parallel/pipeline/timetable.h"

#include <algorithm>
#include <charconv>

#include "kuafu/base/errors.h"
#include "kuafu/base/suggest.h"
#include "kuafu/base/utf8.h"
#include "kuafu/parallel/pipeline/play.h"

namespace kuafu::pipeline {
namespace {

constexpr std::string_view kOps = "FBIWsrSR";

[[noreturn]] void bad_action(std::string_view given) {
  constexpr size_t kShown = 40;
  const std::string shown = as_utf8(utf8_prefix(given, kShown));
  throw ConfigError(text(in_quotes(given.size() > kShown ? shown + "..." : shown),
                         " is no action; allowed: stage, one of F (forward), B "
                         "(backward), I (input gradient), W (weight gradient), s, r, S, R "
                         "(send and receive), micro-batch, such as 2F0"));
}

std::string_view trimmed(std::string_view s) {
  const size_t first = s.find_first_not_of(" \t\r");
  if (first == std::string_view::npos) return {};
  return s.substr(first, s.find_last_not_of(" \t\r") - first + 1);
}

/// A line of a document that holds a row.
struct RowLine {
  int line;  ///< from 1
  std::string_view text;
};

/// All but empty lines, without comments.
std::vector<RowLine> row_lines(std::string_view csv) {
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
  if (csv.starts_with(kByteOrderMark)) csv.remove_prefix(kByteOrderMark.size());
  std::vector<RowLine> rows;
  for (int line = 1; !csv.empty(); ++line) {
    const size_t end = std::min(csv.find('\n'), csv.size());
    const std::string_view whole = csv.substr(0, end);
    const std::string_view text = trimmed(whole.substr(0, whole.find('#')));
    csv.remove_prefix(std::min(end + 1, csv.size()));
    if (!text.empty()) rows.push_back({line, text});
  }
  return rows;
}

}  // namespace

std::string to_string(const Action& a) {
  return text(a.stage, static_cast<char>(a.op), a.micro_batch);
}

Action parse_action(std::string_view given) {
  const std::string_view s = trimmed(given);
  const size_t at = s.find_first_of(kOps);
  if (at == std::string_view::npos) bad_action(given);
  Action a;
  a.op = static_cast<Op>(s[at]);
  const auto number = [&](std::string_view digits, int& out) {
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), out);
    if (error != std::errc() || end != digits.data() + digits.size() || out < 0) bad_action(given);
  };
  number(s.substr(0, at), a.stage);
  number(s.substr(at + 1), a.micro_batch);
  return a;
}

std::vector<int> ranks_of_stages(const Timetable& t, int stages) {
  std::vector<int> ranks(static_cast<size_t>(stages), -1);
  for (size_t r = 0; r < t.size(); ++r) {
    for (const Action& a : t[r]) {
      KUAFU_REQUIRE(a.stage < stages, "action ", to_string(a), " of rank ", r, " names stage ",
                    a.stage, " of ", stages);
      int& rank = ranks[static_cast<size_t>(a.stage)];
      KUAFU_REQUIRE(rank < 0 || rank == static_cast<int>(r), "stage ", a.stage, " is on rank ",
                    rank, " and on rank ", r, " (", to_string(a), "); a stage lives on one rank");
      rank = static_cast<int>(r);
    }
  }
  for (int s = 0; s < stages; ++s) {
    KUAFU_REQUIRE(ranks[static_cast<size_t>(s)] >= 0, "no rank holds stage ", s, " of ", stages);
  }
  return ranks;
}

std::string to_csv(const Timetable& t) {
  std::string out;
  for (const Row& row : t) {
    for (size_t i = 0; i < row.size(); ++i) out += (i == 0 ? "" : ",") + to_string(row[i]);
    out += "\n";
  }
  return out;
}

Timetable parse_csv(std::string_view csv, std::string_view origin) {
  for (size_t at = 0; (at = csv.find('\r', at)) < csv.size(); ++at) {
    const auto before = csv.substr(0, at);
    KUAFU_REQUIRE(
        at + 1 == csv.size() || csv[at + 1] == '\n', origin, ":",
        1 + std::count(before.begin(), before.end(), '\n'),
        ": a carriage return within the line; lines end with a line feed, alone or behind "
        "a carriage return");
  }
  Timetable t;
  for (auto [line, rest] : row_lines(csv)) {
    Row row;
    while (true) {
      const size_t comma = std::min(rest.find(','), rest.size());
      try {
        row.push_back(parse_action(rest.substr(0, comma)));
      } catch (const ConfigError& e) {
        throw ConfigError(text(origin, ":", line, ": ", e.what()));
      }
      if (comma == rest.size()) break;
      rest.remove_prefix(comma + 1);
    }
    t.push_back(std::move(row));
  }
  KUAFU_REQUIRE(!t.empty(), origin,
                ": no rows; a schedule has one line of actions a rank, such as ",
                "0F0,0F1,0B0,0B1");
  return t;
}

std::vector<int> lines_of_rows(std::string_view csv) {
  std::vector<int> lines;
  for (const RowLine& row : row_lines(csv)) lines.push_back(row.line);
  return lines;
}

PipeShape shape_of(const Timetable& t) {
  int64_t stages = 0, micro_batches = 0, actions = 0;
  for (const Row& row : t) {
    for (const Action& a : row) {
      stages = std::max(stages, int64_t{a.stage} + 1);
      micro_batches = std::max(micro_batches, int64_t{a.micro_batch} + 1);
      actions += is_message(a.op) ? 0 : 1;
    }
  }
  // Each stage has an action for each micro-batch: nothing larger than the file is ever made room
  // for.
  KUAFU_REQUIRE(stages <= actions && micro_batches <= actions / std::max<int64_t>(1, stages),
                "stages up to ", stages - 1, " and micro-batches up to ", micro_batches - 1,
                " take at least ", stages, " x ", micro_batches, " actions, it has ", actions);
  const auto ranks = static_cast<int64_t>(t.size());
  KUAFU_REQUIRE(ranks > 0 && stages % ranks == 0, stages, " stages are not the same number on ",
                ranks, " ranks");
  return {static_cast<int>(ranks), static_cast<int>(micro_batches),
          static_cast<int>(stages / ranks)};
}

}  // namespace kuafu::pipeline
