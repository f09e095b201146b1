// SPDX-License-Identifier: Apache-2.0
#include "kuafu/experiment/runner.h"

#include <chrono>
#include <filesystem>
#include <set>

#include "kuafu/base/errors.h"
#include "kuafu/base/units.h"
#include "kuafu/experiment/outcome.h"
#include "kuafu/record/provenance.h"
#include "kuafu/record/schema.h"

namespace kuafu {
namespace {

std::set<std::string> finished_ids(const RunRecord& record) {
  std::set<std::string> ids;
  for (const Json& line : record.cases) ids.insert(line["case_id"].get<std::string>());
  return ids;
}

/// {hash: bytes} of what its cases read.
Json corpora_json(const Suite& suite) {
  Json corpora = Json::object();
  for (const auto& [hash, bytes] : suite.corpora) corpora[hash] = bytes;
  return corpora;
}

}  // namespace

Runner::Runner(const Suite& suite, RunnerOptions options)
    : options_(std::move(options)), budget_s_(suite.budget_s) {
  require_recordable(options_.folder);
  make_writable_folder(options_.folder);
  lock_.emplace(options_.folder);
  if (!lock_->note().empty()) notes_.push_back(lock_->note());
  log_.emplace(options_.folder);
  notes_.insert(notes_.end(), log_->notes().begin(), log_->notes().end());
  check_suite(suite);
}

void Runner::check_suite(const Suite& suite) {
  const Json& header = record().header;
  const Json now = provenance();
  if (header.is_null()) {
    log_->begin({{"kind", "suite"},
                 {"format", kRecordFormat},
                 {"name", suite.name},
                 {"question", suite.question},
                 {"suite_hash", suite.hash},
                 {"cases", suite.cases.size()},
                 {"corpora", corpora_json(suite)},
                 {"provenance", now}});
    return;
  }
  const auto theirs = header["suite_hash"].get<std::string>();
  const Json before = value_at(header, "corpora"), corpora = corpora_json(suite);
  const bool is_other_data = !before.is_null() && before != corpora;
  KUAFU_REQUIRE(theirs == suite.hash, options_.folder, " holds the results of another suite: \"",
                header["name"].get<std::string>(), "\", hash ", theirs, "; this one is \"",
                suite.name, "\", hash ", suite.hash,
                is_other_data ? text("; its cases read corpora (bytes by hash) ", before.dump(),
                                     ", now they would read ", corpora.dump())
                              : "",
                ". Choose another folder with --out, or the suite, --set and corpora as they were");
  for (const char* field : {"git_commit", "host"}) {
    const Json before = value_at(header, text("provenance.", field));
    if (before != now[field]) {
      notes_.push_back(text("the folder was begun with ", field, " ", before.dump(), ", now it is ",
                            now[field].dump(), ": each case records its own"));
    }
  }
}

std::vector<Case> Runner::unfinished(const std::vector<Case>& cases) const {
  const std::set<std::string> ids = finished_ids(record());
  std::vector<Case> left;
  for (const Case& c : cases) {
    if (!ids.contains(c.id)) left.push_back(c);
  }
  return left;
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
    log_->append(*line);
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
  return case_line(c, document, result.wall_s);
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
