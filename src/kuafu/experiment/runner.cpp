// SPDX-License-Identifier: Apache-2.0
#include "kuafu/experiment/runner.h"

#include <chrono>
#include <filesystem>

#include "kuafu/base/errors.h"
#include "kuafu/base/units.h"
#include "kuafu/experiment/finality.h"
#include "kuafu/experiment/membership.h"
#include "kuafu/experiment/outcome.h"
#include "kuafu/record/provenance.h"
#include "kuafu/record/schema.h"

namespace kuafu {

Runner::Runner(const Suite& suite, RunnerOptions options)
    : options_(std::move(options)), budget_s_(suite.budget_s) {
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
  const Json now = provenance();
  for (const char* field : {"git_commit", "host"}) {
    const Json before = value_at(record().header, text("provenance.", field));
    if (before != now[field]) {
      notes_.push_back(text("the folder was begun with ", field, " ", before.dump(), ", now it is ",
                            now[field].dump(), ": each case records its own"));
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
  return has_run_.contains(c.id) ? "" : why_again(c, *line, options_.retried);
}

std::vector<Case> Runner::unfinished(const std::vector<Case>& cases) const {
  std::vector<Case> left;
  for (const Case& c : cases) {
    if (!why_unfinished(c).empty()) left.push_back(c);
  }
  return left;
}

std::vector<std::string> Runner::repeated(const std::vector<Case>& cases) const {
  std::vector<std::string> sentences;
  for (const Case& c : cases) {
    if (line_of(c) == nullptr) continue;
    const std::string why = why_unfinished(c);
    if (!why.empty()) sentences.push_back(text("runs again: ", c.name, ": ", why));
  }
  return sentences;
}

void Runner::put(const Case& c, const Json& line) {
  if (line_of(c) == nullptr) {
    log_->append(line);
  } else {
    log_->replace(line);
  }
  has_run_.insert(c.id);
}

SweepEnd Runner::run(const std::vector<Case>& cases, Progress& progress,
                     const std::function<bool()>& is_interrupted) {
  const auto begin = std::chrono::steady_clock::now();
  const auto tick = [&] {
    progress.tick();
    return !is_interrupted();
  };
  for (const Case& c : unfinished(cases)) {
    if (is_interrupted()) return SweepEnd::kInterrupted;
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - begin;
    if (budget_s_ && spent.count() >= *budget_s_) return SweepEnd::kOutOfBudget;
    progress.start(c.name);
    const std::optional<Json> line = run_case(c, tick);
    if (!line) return SweepEnd::kInterrupted;
    put(c, *line);
    progress.finish((*line)["status"].get<std::string>());
  }
  log_->sync();
  return SweepEnd::kComplete;
}

std::optional<Json> Runner::run_case(const Case& c, const std::function<bool()>& tick) {
  const std::string folder = options_.folder + "/cases/" + c.id;
  make_writable_folder(folder);
  write_plan(c, folder);
  const std::string document_path = folder + "/document.json";
  std::filesystem::remove(document_path);
  ChildCommand command{words(c, folder), folder + "/output.txt", folder + "/errors.txt",
                       c.timeout_s + options_.grace_s};
  const ChildResult result = run_child(command, tick);
  if (result.end == ChildResult::End::kCancelled) return std::nullopt;
  const Json document = document_of(c, {result, document_path, command.error_path});
  std::filesystem::remove(document_path);  // run.jsonl has it now
  return case_line(c, document, result);
}

std::vector<std::string> Runner::words(const Case& c, const std::string& case_folder) const {
  std::vector<std::string> words;
  if (c.world == "mpi") {
    words = options_.mpi_launcher;
    words.insert(words.end(), {"-n", text(c.ranks)});
  }
  words.insert(words.end(), {options_.worker, "run", case_folder + "/plan.toml"});
  if (c.world != "mpi") words.insert(words.end(), {"--world", c.world, "--ranks", text(c.ranks)});
  words.insert(words.end(), {c.is_certified ? "--certify" : "--no-certify", "--json",
                             case_folder + "/document.json", "--timeout", text(c.timeout_s)});
  for (const auto& plugin : options_.plugins) words.insert(words.end(), {"--plugin", plugin});
  return words;
}

void Runner::write_plan(const Case& c, const std::string& case_folder) const {
  replace_file(case_folder + "/plan.toml",
               text("# ", c.name, "\n# kuafu run ", case_folder, "/plan.toml --world ", c.world,
                    " --ranks ", c.ranks, "\n", c.plan_toml));
}

}  // namespace kuafu
