// SPDX-License-Identifier: Apache-2.0
#include "kuafu/experiment/runner.h"

#include <chrono>
#include <filesystem>
#include <random>

#include "kuafu/base/errors.h"
#include "kuafu/base/suggest.h"
#include "kuafu/base/units.h"
#include "kuafu/base/worlds.h"
#include "kuafu/base/xxh64.h"
#include "kuafu/experiment/finality.h"
#include "kuafu/experiment/membership.h"
#include "kuafu/experiment/outcome.h"
#include "kuafu/experiment/verdict.h"
#include "kuafu/record/provenance.h"
#include "kuafu/record/schema.h"

namespace kuafu {

/// A worker ends itself at this share of its time-out, where a step does not end: with all it has
/// measured, which it cannot write once it is killed.
static constexpr double kOwnEnd = 1.2;

namespace {

/// Of a recorded case: the first plug-in that is another now; empty where none is, or where the line
/// is older than that it names them.
std::string changed_plugin(const Json& line, const Json& now) {
  const Json before = value_at(line, "plugins");
  if (!before.is_object()) return "";
  for (const auto& [name, hash] : before.items()) {
    if (now.value(name, Json()) != hash) return name;
  }
  for (const auto& [name, hash] : now.items()) {
    if (!before.contains(name)) return name;
  }
  return "";
}

/// 16 hex digits. Moments would not do: two calls may begin in one second.
std::string drawn_name() {
  std::random_device random;
  const uint64_t bits = uint64_t{random()} << 32 | random();
  return hash_digits(std::to_string(bits));
}

}  // namespace

Runner::Runner(const Suite& suite, RunnerOptions options)
    : suite_(suite),
      options_(std::move(options)),
      sweep_(drawn_name()),
      provenance_(provenance()),
      plugins_(plugin_hashes(options_.plugins)) {
  require_recordable(options_.folder);
  make_writable_folder(options_.folder);
  lock_.emplace(options_.folder);
  if (!lock_->note().empty()) notes_.push_back(lock_->note());
  log_.emplace(options_.folder);
  notes_.insert(notes_.end(), log_->notes().begin(), log_->notes().end());
  take_up(suite);
}

void Runner::take_up(const Suite& suite) {
  if (record().header.is_null()) return log_->begin(suite_header(suite));
  const Membership member = taken_up(record(), suite, options_.folder);
  if (member.is_changed) log_->rewrite(member.record);
  notes_.insert(notes_.end(), member.notes.begin(), member.notes.end());
  int64_t num_others = 0;
  for (const Json& line : record().cases) {
    const Json told = value_at(line, "document.provenance");
    if (told.is_object() && kernels_of(told) != kernels_of(provenance_)) ++num_others;
  }
  if (num_others > 0) {
    const std::string mine = kernels_of(provenance_), theirs = mine == "own" ? "aten" : "own";
    notes_.push_back(text(num_others, num_others == 1 ? " recorded case" : " recorded cases",
                          " ran kernels ", in_quotes(theirs), " and ",
                          num_others == 1 ? "is" : "are", " kept, though this call has ",
                          in_quotes(mine), ": give --out another folder to run them with these"));
  }
  for (const char* field : {"git_commit", "host"}) {
    const Json before = value_at(record().header, text("provenance.", field));
    if (before != provenance_[field]) {
      notes_.push_back(text("the folder was begun with ", field, " ", before.dump(), ", now it is ",
                            provenance_[field].dump(), ": each case records its own"));
    }
  }
}

const Json* Runner::line_of(const Case& c) const {
  for (const Json& line : record().cases) {
    if (line["case_id"] == c.id) return &line;
  }
  return nullptr;
}

std::string Runner::why_unfinished(const Case& c) const {
  const Json* line = line_of(c);
  if (line == nullptr) return "not recorded";
  const std::string changed = changed_plugin(*line, plugins_);
  if (!changed.empty() && !has_run_.contains({c.id, 1})) {
    return text("the plug-in ", changed, " is not the one that it was recorded with");
  }
  return has_run_.contains({c.id, 1}) ? "" : why_again(c, *line, options_.retried);
}

std::vector<Case> Runner::unfinished(const std::vector<Case>& cases) const {
  std::vector<Case> left;
  for (const Case& c : cases) {
    if (!why_unfinished(c).empty()) left.push_back(c);
  }
  return left;
}

bool Runner::is_due(const Turn& turn) const {
  const Case& c = *turn.of;
  if (turn.round == 1) return !why_unfinished(c).empty();
  const Json* line = line_of(c);
  if (line == nullptr || !is_repeatable(c, *line) || !is_of_here(*line, provenance_)) return false;
  const Json entry = round_of(*line, turn.round);
  if (entry.is_null()) return true;
  return !has_run_.contains({c.id, turn.round}) && !why_again(c, entry, options_.retried).empty();
}

std::vector<Turn> Runner::due_in(int64_t round, const std::vector<Case>& cases) const {
  std::set<std::string> ids;
  for (const Case& c : cases) ids.insert(c.id);
  std::vector<Turn> due;
  for (const Turn& turn : order_of_round(suite_, round)) {
    if (ids.contains(turn.of->id) && is_due(turn)) due.push_back(turn);
  }
  return due;
}

RunCounts Runner::counts(const std::vector<Case>& cases) const {
  RunCounts counts;
  for (const Case& c : cases) {
    const Json* line = line_of(c);
    const bool is_new = is_due({&c, 1});
    ++counts.total;
    counts.left += is_new ? 1 : 0;
    for (int64_t round = 2; round <= suite_.repeats; ++round) {
      const bool is_left = is_new ? is_timed(c) : is_due({&c, round});
      const bool is_there = !is_new && !is_left && !round_of(*line, round).is_null();
      counts.total += is_left || is_there ? 1 : 0;
      counts.left += is_left ? 1 : 0;
      counts.repeats += is_left ? 1 : 0;
    }
  }
  return counts;
}

std::vector<std::string> Runner::repeated(const std::vector<Case>& cases) const {
  std::vector<std::string> sentences;
  int64_t num_foreign = 0;
  for (const Case& c : cases) {
    const Json* line = line_of(c);
    if (line == nullptr) continue;
    const std::string why = why_unfinished(c);
    if (!why.empty()) sentences.push_back(text("runs again: ", c.name, ": ", why));
    const bool is_wanted = suite_.repeats > 1 && why.empty() && is_repeatable(c, *line) &&
                           round_of(*line, suite_.repeats).is_null();
    if (is_wanted && !is_of_here(*line, provenance_)) ++num_foreign;
  }
  if (num_foreign > 0) {
    sentences.push_back(text("not timed again: ", num_foreign,
                             num_foreign == 1 ? " case" : " cases",
                             " of another commit or machine, with whose times these would not "
                             "mix; choose another folder with --out"));
  }
  return sentences;
}

std::string Runner::why_not_timed(const std::vector<Case>& cases) const {
  int64_t num_left_out = 0;
  std::string theirs;
  for (const Case& c : cases) {
    const Json* line = line_of(c);
    const bool is_meant = suite_.repeats > 1 && line != nullptr && has_run_.contains({c.id, 1}) &&
                          is_repeatable(c, *line) && round_of(*line, 2).is_null() &&
                          !is_of_here(*line, provenance_);
    if (!is_meant) continue;
    ++num_left_out;
    theirs = value_at(*line, "document.provenance.git_commit").dump();
  }
  if (num_left_out == 0) return "";
  return text("not timed again: ", num_left_out, num_left_out == 1 ? " case" : " cases",
              ": the worker ", options_.worker, " says that it is of commit ", theirs,
              ", and this program is of ", provenance_["git_commit"].dump(),
              ", or it ran on another machine; build both together, and call again");
}

void Runner::put(const RoundRun& run) {
  const Case& c = *run.turn.of;
  const Json* before = line_of(c);
  Json line = run.turn.round == 1 ? case_line(c, run.document, run.result) : *before;
  if (run.turn.round == 1 && !plugins_.empty()) line["plugins"] = plugins_;
  if (is_repeatable(c, line)) put_round(line, run);
  if (before == nullptr) {
    log_->append(line);
  } else {
    log_->replace(line);
  }
  has_run_.insert({c.id, run.turn.round});
}

SweepEnd Runner::run(const std::vector<Case>& cases, Progress& progress,
                     const std::function<bool()>& is_interrupted) {
  const auto begin = std::chrono::steady_clock::now();
  const auto tick = [&] {
    progress.tick();
    return !is_interrupted();
  };
  for (int64_t round = 1; round <= suite_.repeats; ++round) {
    for (const Turn& turn : due_in(round, cases)) {
      if (is_interrupted()) return SweepEnd::kInterrupted;
      const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - begin;
      if (suite_.budget_s && spent.count() >= *suite_.budget_s) return SweepEnd::kOutOfBudget;
      const bool is_first = round == 1;
      progress.start(is_first ? turn.of->name : text(turn.of->name, ", round ", round),
                     is_first ? Progress::Kind::kFirst : Progress::Kind::kRepeat);
      const std::optional<RoundRun> done = run_turn(turn, tick);
      if (!done) return SweepEnd::kInterrupted;
      put(*done);
      const bool has_no_more = is_first && !is_repeatable(*turn.of, *line_of(*turn.of));
      if (has_no_more && is_timed(*turn.of)) progress.drop_repeats(suite_.repeats - 1);
      progress.finish(status_words(done->document["status"].get<std::string>(), done->document));
    }
  }
  log_->sync();
  return SweepEnd::kComplete;
}

std::optional<RoundRun> Runner::run_turn(const Turn& turn, const std::function<bool()>& tick) {
  const Case& c = *turn.of;
  const std::string folder = options_.folder + "/cases/" + c.id;
  make_writable_folder(folder);
  write_plan(c, folder);
  const std::string document_path = folder + "/document.json";
  std::filesystem::remove(document_path);
  const std::string of_round = turn.round == 1 ? "" : text("-round-", turn.round);
  ChildCommand command{words(turn, folder), text(folder, "/output", of_round, ".txt"),
                       text(folder, "/errors", of_round, ".txt"),
                       c.timeout_s * kOwnEnd + options_.grace_s};
  const std::string began = utc_time();
  const ChildResult result = run_child(command, tick);
  if (result.end == ChildResult::End::kCancelled) return std::nullopt;
  const Json document = document_of(c, {result, document_path, command.error_path});
  std::filesystem::remove(document_path);  // run.jsonl has it now
  return RoundRun{turn, sweep_, began, document, result};
}

std::vector<std::string> Runner::words(const Turn& turn, const std::string& case_folder) const {
  const Case& c = *turn.of;
  std::vector<std::string> words;
  if (c.world == worlds::kMpi) {
    words = options_.mpi_launcher;
    words.insert(words.end(), {"-n", text(c.ranks)});
  }
  words.insert(words.end(), {options_.worker, "run", case_folder + "/plan.toml"});
  if (c.world != worlds::kMpi)
    words.insert(words.end(), {"--world", c.world, "--ranks", text(c.ranks)});
  const bool is_certified = c.is_certified && turn.round == 1;
  words.insert(words.end(), {"--of-suite", is_certified ? "--certify" : "--no-certify", "--json",
                             case_folder + "/document.json", "--timeout", text(c.timeout_s)});
  if (is_certified && options_.certify_memory > 0)
    words.insert(words.end(), {"--certify-memory", text(options_.certify_memory)});
  for (const auto& plugin : options_.plugins) words.insert(words.end(), {"--plugin", plugin});
  return words;
}

void Runner::write_plan(const Case& c, const std::string& case_folder) const {
  replace_file(
      case_folder + "/plan.toml",
      text("# ", c.name,
           "\n# From the folder where the suite ran, as paths begin there: kuafu run ", case_folder,
           "/plan.toml --world ", c.world, " --ranks ", c.ranks, "\n", c.plan_toml));
}

}  // namespace kuafu
