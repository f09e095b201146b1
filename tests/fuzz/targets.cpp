// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/targets.h"

#include <algorithm>
#include <sstream>

#include "kuafu/base/errors.h"
#include "kuafu/base/suggest.h"
#include "kuafu/base/utf8.h"
#include "kuafu/experiment/suite.h"
#include "kuafu/parallel/pipeline/analysis.h"
#include "kuafu/parallel/pipeline/timetable.h"
#include "kuafu/plan/plan.h"
#include "kuafu/record/hdf5.h"
#include "tests/fuzz/toml_walk.h"

namespace kuafu::fuzz {
namespace {

const std::vector<std::string> kTimetables = {
    "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n",
    "# zero bubble\n0F0, 0F1, 0I0, 0W0, 0I1, 0W1\r\n1F0, 1I0, 1F1, 1W0, 1I1, 1W1\n",
    "0F0,0s0,2r0,2F0,2R0,2B0,2S0,0R0,0B0\n1r0,1F0,1s0,3r0,3F0,3B0,3S0,1R0,1B0,1S0\n",
    "0F0,0F1,0F2,0F3,0B0,0B1,0B2,0B3\n"};

void require_equal(const Plan& got, const Plan& want, const std::string& what) {
  const std::string found = difference(got, want);
  require(found.empty(), what + found);
}

/// What reading gives of what was printed: an error is none there.
template <class Read>
auto again(const Read& read) {
  try {
    return read();
  } catch (const ConfigError& e) {
    throw Finding(text("what is printed cannot be read again: ", as_utf8(e.what())));
  }
}

/// What resolve() fills in for so many ranks.
Plan placed(Plan plan, int64_t ranks) {
  ParallelPlan& p = plan.parallel;
  const int64_t replica = p.pipeline.size * p.tensor.size * p.sequence.size;
  if (p.data.size == 0) p.data.size = ranks / replica;
  if (plan.train.micro_batch == 0) plan.train.micro_batch = plan.train.batch / p.data.size;
  return plan;
}

void read_plan(const std::string& bytes) {
  const TensorModes modes = builtin_tensor_modes();
  const Plan plan = parse_plan(bytes, "plan.toml", modes);
  Plan written = walked_plan(toml_json(bytes));
  const int64_t side = written.model.image / std::max<int64_t>(1, written.model.patch);
  if (written.model.kind == "vit") written.model.sequence = side * side + 1;
  const Leaves leaves = leaves_of(toml_json(bytes));
  const bool names_data = std::any_of(leaves.begin(), leaves.end(),
                                      [](const auto& leaf) { return leaf.first == "data.kind"; });
  if (written.model.kind == "vit" && !names_data) written.data.kind = "synthetic";
  require_equal(plan, written, "");
  const std::string printed = to_toml(plan);
  require(is_utf8(printed), "the printed plan is no UTF-8");
  require_equal(walked_plan(toml_json(printed)), plan, "printed: ");
  require_equal(again([&] { return parse_plan(printed, "printed", modes); }), plan,
                "printed and read again: ");
  const Plan resolved = resolve(plan, 4, modes);
  require_equal(resolved, placed(written, 4), "resolved: ");
  const std::string whole = to_toml(resolved);
  require(
      plan_hash(again([&] { return parse_plan(whole, "resolved", modes); })) == plan_hash(resolved),
      "the resolved plan has another hash when it is printed and read again");
}

void read_suite(const std::string& bytes) {
  SuiteOptions options;
  options.baselines = "no baselines";
  const Suite suite = parse_suite(bytes, "suite.toml", options);
  require(parse_suite(bytes, "suite.toml", options).hash == suite.hash, "read twice, two suites");
  require(!suite.name.empty() && !suite.cases.empty(), "a suite without name or cases");
  for (const Case& c : suite.cases) {
    require(c.ranks > 0 && c.timeout_s > 0, "a case without ranks or time");
    require(is_utf8(c.name) && is_utf8(c.plan_toml), "a case that is no UTF-8");
    again([&] { return case_value(c, "model.hidden"); });
  }
  check_suite(suite, bytes);
}

/// The cells of a line between commas, blanks around them left out.
std::vector<std::string> cells_of(const std::string& line) {
  std::vector<std::string> cells(1);
  for (const char c : line) {
    if (c == ',') {
      cells.emplace_back();
    } else {
      cells.back() += c;
    }
  }
  for (std::string& cell : cells) {
    while (!cell.empty() && std::string(" \t\r").find(cell.back()) != std::string::npos) {
      cell.pop_back();
    }
    cell.erase(0, std::min(cell.find_first_not_of(" \t\r"), cell.size()));
  }
  return cells;
}

/// "12F3" by its digits: stage, letter, micro-batch.
void check_action(const pipeline::Action& got, const std::string& cell) {
  std::istringstream in(cell);
  int64_t stage = -1, micro_batch = -1;
  char letter = 0;
  in >> std::noskipws >> stage >> letter >> micro_batch;
  require(!in.fail() && in.peek() == std::char_traits<char>::eof(), "no action: " + cell);
  require(got.stage == stage && static_cast<char>(got.op) == letter &&
              got.micro_batch == micro_batch && stage >= 0 && micro_batch >= 0,
          to_string(got) + " is not the action written: " + cell);
}

void check_timetable(const pipeline::Timetable& t, const std::string& bytes) {
  const bool is_marked =
      bytes.size() >= 3 && bytes[0] == '\xef' && bytes[1] == '\xbb' && bytes[2] == '\xbf';
  std::istringstream in(bytes.substr(is_marked ? 3 : 0));
  size_t rows = 0;
  for (std::string line; std::getline(in, line);) {
    const std::vector<std::string> cells = cells_of(line.substr(0, line.find('#')));
    if (cells.size() == 1 && cells[0].empty()) continue;
    require(rows < t.size() && t[rows].size() == cells.size(), "a row of other actions");
    for (size_t i = 0; i < cells.size(); ++i) check_action(t[rows][i], cells[i]);
    ++rows;
  }
  require(rows == t.size(), "a row that is not written");
}

void read_timetable(const std::string& bytes) {
  const pipeline::Timetable t = pipeline::parse_csv(bytes, "schedule.csv");
  check_timetable(t, bytes);
  require(again([&] { return pipeline::parse_csv(pipeline::to_csv(t), "printed"); }) == t,
          "the timetable changes when it is printed and read again");
  const pipeline::PipeShape shape = pipeline::shape_of(t);
  pipeline::ranks_of_stages(t, shape.stages());
  pipeline::validate(t, shape);
}

}  // namespace

std::vector<std::string> target_names() {
  std::vector<std::string> names = {
      "index",     "index-resealed",  "safetensors", "safetensors-resealed",
      "record",    "record-resealed", "plan",        "suite",
      "timetable", "trace",           "weights"};
  if (has_hdf5()) names.push_back("hdf5");
  return names;
}

Target make_target(const std::string& name) {
  const bool is_resealed = name.ends_with("-resealed");
  if (name.starts_with("index")) return index_target(is_resealed);
  if (name.starts_with("safetensors")) return safetensors_target(is_resealed);
  if (name.starts_with("record")) return record_target(is_resealed);
  if (name == "hdf5") return hdf5_target();
  if (name == "trace") return trace_target();
  if (name == "weights") return weights_target();
  if (name == "plan") return {name, plan_seeds(), read_plan};
  if (name == "suite") return {name, suite_seeds(), read_suite};
  if (name == "timetable") return {name, kTimetables, read_timetable};
  throw ConfigError(text(in_quotes(name), " is no target; allowed: ", join(target_names())));
}

Answer answer_of(const Target& target, const std::string& bytes) {
  try {
    target.read(bytes);
    return Answer::kValue;
  } catch (const Finding&) {
    throw;
  } catch (const ConfigError& e) {
    const std::string message = e.what();
    require(!message.empty(), "an error without a text");
    require(is_utf8(message), "the error is no UTF-8: " + as_utf8(message));
    return Answer::kRefused;
  } catch (const std::exception& e) {
    throw Finding(text("an exception that no reader may throw: ", as_utf8(e.what())));
  }
}

}  // namespace kuafu::fuzz
