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

const std::vector<std::string> kPlans = {
    "[model]\nkind = \"gpt\"\nlayers = 4\nhidden = 64\nheads = 4\nvocab = 256\nsequence = 32\n"
    "[parallel]\ndata = 2\ntensor = { mode = \"1d\", size = 2 }\n[train]\nbatch = 8\nsteps = 3\n",
    "# a comment\nmodel.hidden = 32\nmodel.dtype = \"bf16\"\nmodel.norm = \"rms\"\n[optimizer]\n"
    "kind = \"adamw\"\nlr = 1e-3\nbeta2 = 0.95\n[data]\nkind = \"synthetic\"\n"
    "[parallel.pipeline]\nsize = 2\nschedule = \"1f1b\"\n[train]\nbatch = 8\nmicro_batch = 2\n",
    "[model]\nlayers = 4\nhidden = 64\n[parallel]\ntensor = { mode = \"1d\", size = 4 }\n"
    "[[parallel.layers]]\nfrom = 2\nto = 3\nmode = \"2d\"\n[memory]\nrecompute = \"full\"\n",
    "model = { kind = \"vit\", hidden = 32, image = 16, patch = 4, classes = 5 }\n[data]\nkind = "
    "\"synthetic\"\n[parallel]\ndata = \"auto\"\n[memory]\ndevice = \"6 "
    "GB\"\n[optimizer]\nschedule "
    "= \"cosine\"\nschedule_steps = \"auto\"\nwarmup = 2\n[train]\nloss_scale = "
    "\"dynamic\"\nloss_scale_start = 1024.0\n[cluster]\nranks_per_node = 2\ninter_latency_us = "
    "3\n"};

const std::vector<std::string> kSuites = {
    "[suite]\nname = \"a\"\nquestion = \"Which?\"\nworld = \"threads\"\ntimeout_s = 60\nseeds = "
    "[1, "
    "2]\n[base]\nmodel.hidden = 32\ntrain = { batch = 8, steps = 2 }\n[grid]\nranks = [1, "
    "2]\ntrain.batch = [4, 8]\n",
    "[suite]\nname = \"b\"\nquestion = \"How?\"\ncertify = false\n[[strategy]]\nname = \"one "
    "rank\"\nranks = 1\n[[strategy]]\nname = \"1D\"\nparallel.tensor.mode = "
    "\"1d\"\nparallel.tensor.size = \"$ranks\"\nranks = [2, 4]\n[[skip]]\nstrategy = "
    "\"1D\"\nranks = 4\n[[case]]\nname = \"last\"\nstrategy = \"one rank\"\ntrain.batch = "
    "4\n[[reference]]\nmetric = \"loss.last\"\nbelow = 5.5\nsource = \"a "
    "guess\"\n[[reference]]\nmetric = \"ranks\"\nvalue = 2\ntolerance = 0.1\nwhere = { ranks = 2 "
    "}\n",
    // Two keys of the base end on one line; of the cases on 3 replicas none can be placed.
    "[suite]\nname = \"c\"\nquestion = \"Where?\"\nworlds = [\"threads\", \"simulated\"]\nbudget_s "
    "= 9.5\n[base]\nmodel = { layers = 4, hidden = 32 }\nparallel = { pipeline = { blocks = [\n3, "
    "3], size = 2 }, zero = 1 }\n[base.optimizer]\nlr = 3e-4\n[grid]\nparallel.data = [2, "
    "3]\n[[policy]]\nname = \"full\"\nparallel.data.order = \"fixed\"\nmemory.recompute = "
    "\"full\"\nmemory.device = \"6 GB\"\n",
    // Values by formula, and what is computed of the results.
    R"toml([suite]
name = "d"
question = "How fast?"
[base]
model = { hidden = 32, layers = 2 }
train.batch = "= 8 * ranks"
optimizer.lr = "= 0.001 * max(1, model.layers / 2)"
[grid]
ranks = [1, 2]
[[strategy]]
name = "replicas"
parallel.data = "auto"
[[column]]
name = "speed-up"
formula = "at(ranks = 1, step_time_s.median) / step_time_s.median"
unit = "s"
[[column]]
name = "share"
formula = "`speed-up` / ranks"
[[claim]]
name = "twice as fast"
formula = "`speed-up` >= 0.9 * ranks"
where = { ranks = [1, 2], strategy = "replicas" }
within = 0.05
source = "a guess"
[[claim]]
name = "all learn"
formula = "all(loss.last < loss.first)"
where = "ranks > 1"
source = "another"
[[figure]]
kind = "line"
x = "ranks"
y = "speed-up"
by = "strategy"
where = { train.batch = 8 }
log = "xy"
title = "Speed-up"
)toml"};

const std::vector<std::string> kTimetables = {
    "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n",
    "# zero bubble\n0F0, 0F1, 0I0, 0W0, 0I1, 0W1\r\n1F0, 1I0, 1F1, 1W0, 1I1, 1W1\n",
    "0F0,0s0,2r0,2F0,2R0,2B0,2S0,0R0,0B0\n1r0,1F0,1s0,3r0,3F0,3B0,3S0,1R0,1B0,1S0\n",
    "0F0,0F1,0F2,0F3,0B0,0B1,0B2,0B3\n"};

void require(bool condition, const std::string& what) {
  if (!condition) throw Finding(what);
}

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
    const std::vector<std::string> cells = cells_of(line);
    if (cells[0].starts_with('#') || (cells.size() == 1 && cells[0].empty())) continue;
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
  if (name == "plan") return {name, kPlans, read_plan};
  if (name == "suite") return {name, kSuites, read_suite};
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
