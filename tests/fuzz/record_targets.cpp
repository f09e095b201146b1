// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kuafu/base/errors.h"
#include "kuafu/base/utf8.h"
#include "kuafu/experiment/compare.h"
#include "kuafu/experiment/ratios.h"
#include "kuafu/experiment/summary.h"
#include "kuafu/record/hdf5.h"
#include "kuafu/record/json_text.h"
#include "kuafu/record/run_log.h"
#include "kuafu/record/schema.h"
#include "tests/fuzz/targets.h"
#include "tests/record/support.h"

namespace kuafu::fuzz {
namespace {

using test::TemporaryFolder;
using test::write_text;

RunRecord sample_record(int64_t cases, int64_t tag) {
  RunRecord record;
  record.header = test::sample_header(cases);
  for (int64_t i = 0; i < cases; ++i) {
    record.cases.push_back(test::sample_case(text("c", i), test::sample_document(2, tag + i)));
  }
  record.cases.front() = test::with_rounds(record.cases.front(), 2);
  record.cases.push_back(test::sample_case("r", {{"status", "refused"}, {"reason", "no place"}}));
  record.former = {test::sample_case("f", test::sample_document(1, tag))};
  record.former.front()["kind"] = "former";
  return record;
}

std::string text_of(const RunRecord& record) {
  std::string all = sealed(record.header) + "\n";
  for (const Json& line : record.cases) all += sealed(line) + "\n";
  for (const Json& line : record.former) all += sealed(line) + "\n";
  return all;
}

/// Each line that is a JSON object with a checksum that fits it.
std::string resealed_record(const std::string& bytes) {
  std::string out;
  for (size_t at = 0; at < bytes.size();) {
    const size_t end = std::min(bytes.find('\n', at), bytes.size());
    const std::string line = bytes.substr(at, end - at);
    try {
      Json value = parse_json(line);
      if (!value.is_object() || value.size() < 2) throw ConfigError("no line of a record");
      value.erase("checksum");
      out += sealed(value);
    } catch (const ConfigError&) {
      out += line;
    }
    if (end < bytes.size()) out += "\n";
    at = end + 1;
  }
  return out;
}

/// Each whole line of the bytes stands in the record, without its checksum and in its order: a case
/// that is written twice once, what is no JSON object or has no end among the damaged ones.
void check_lines(const RunRecord& record, const std::string& bytes) {
  RunRecord written;
  for (size_t at = 0; at < bytes.size();) {
    const size_t end = bytes.find('\n', at);
    const std::string line = bytes.substr(at, end - at);
    at = end == std::string::npos ? bytes.size() : end + 1;
    if (line.empty()) continue;
    Json value = Json::parse(line, nullptr, false);
    written.is_cut = end == std::string::npos;
    if (written.is_cut || !value.is_object()) {
      written.damaged.push_back(line);
      continue;
    }
    value.erase("checksum");
    const std::string kind = value.value("kind", "");
    std::vector<Json>& cases = written.cases;
    if (kind == "suite") {
      written.header = value;
    } else if (kind == "former") {
      written.former.push_back(value);
    } else if (std::find(cases.begin(), cases.end(), value) == cases.end()) {
      cases.push_back(value);
    }
  }
  require(record.header == written.header, "the suite line is not the one written");
  require(record.cases == written.cases, "the cases are not those that are written");
  require(record.former == written.former, "the former cases are not those that are written");
  require(record.damaged == written.damaged && record.is_cut == written.is_cut,
          "the damaged lines are others");
}

void check_values(const RunRecord& record, const std::vector<RunRecord>& valid) {
  const auto is_known = [&](const Json& line) {
    return std::any_of(valid.begin(), valid.end(), [&](const RunRecord& one) {
      return std::find(one.cases.begin(), one.cases.end(), line) != one.cases.end() ||
             std::find(one.former.begin(), one.former.end(), line) != one.former.end();
    });
  };
  require(record.header.is_null() ||
              std::any_of(valid.begin(), valid.end(),
                          [&](const RunRecord& one) { return one.header == record.header; }),
          "a changed suite line passes its checksum");
  for (const std::vector<Json>* lines : {&record.cases, &record.former}) {
    require(std::all_of(lines->begin(), lines->end(), is_known),
            "a changed line passes its checksum");
  }
}

}  // namespace

Target record_target(bool is_resealed) {
  const auto folder = std::make_shared<TemporaryFolder>();
  const std::vector<RunRecord> valid = {sample_record(2, 0), sample_record(1, 5)};
  const std::vector<std::string> texts = {text_of(valid[0]), text_of(valid[1])};
  const std::string path = *folder / kRunFile;
  write_text(path, texts[0]);
  const Results whole = load_results(path);
  return {is_resealed ? "record-resealed" : "record", texts,
          [folder, path, whole, valid, is_resealed](const std::string& bytes) {
            const std::string given = is_resealed ? resealed_record(bytes) : bytes;
            write_text(path, given);
            const RunRecord record = read_run(path);
            for (const Json& line : record.cases) {
              require(line_problems(line).empty(), "a line that breaks the page passes");
            }
            check_lines(record, given);
            if (!is_resealed) return check_values(record, valid);
            record_hash(record);
            compare(load_results(path), whole);
            result_table(record.cases);
            ratio_table(record.cases);
          }};
}

Target hdf5_target() {
  const auto folder = std::make_shared<TemporaryFolder>();
  const RunRecord record = sample_record(1, 0), other = sample_record(1, 5);
  std::vector<std::string> valid;
  for (const RunRecord& one : {record, other}) {
    write_hdf5(folder->path(), one);
    valid.push_back(test::read_text(*folder / kHdf5File));
  }
  return {"hdf5", valid, [folder, record, valid](const std::string& bytes) {
            write_text(*folder / kHdf5File, bytes);
            const Hdf5State state = hdf5_state(folder->path(), record);
            const Hdf5State right = bytes == valid[0]   ? Hdf5State::kCurrent
                                    : bytes == valid[1] ? Hdf5State::kOutdated
                                                        : Hdf5State::kDamaged;
            require(state == right, "a changed file is not seen as damaged");
            if (state == Hdf5State::kDamaged) throw ConfigError("damaged");
          }};
}

}  // namespace kuafu::fuzz
