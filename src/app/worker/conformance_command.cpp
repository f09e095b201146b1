// SPDX-License-Identifier: Apache-2.0
#include <signal.h>
#include <string.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <iostream>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "app/worker/crash_report.h"
#include "app/worker/document.h"
#include "app/worker/early_exit.h"
#include "app/worker/options.h"
#include "app/worker/run_options.h"
#include "app/worker/watchdog.h"
#include "kuafu/base/plugin_hint.h"
#include "kuafu/base/suggest.h"
#include "kuafu/comm/worlds.h"
#include "kuafu/conformance/kinds.h"
#include "kuafu/engine/plugin.h"
#include "kuafu/record/kept_results.h"
#include "kuafu/record/table.h"
#include "kuafu/tensor/tensor.h"

namespace kuafu {
namespace {

using conformance::Finding;
using conformance::Kind;

/// A choice to check.
struct Checked {
  const Kind* kind;
  std::string name;
};

/// All choices, or those that the plug-ins brought.
std::vector<Checked> all_choices(const Registries& registries, bool only_added) {
  const Registries builtin = builtin_registries();
  std::vector<Checked> all;
  for (const Kind& kind : conformance::kinds()) {
    const std::vector<std::string> old = kind.names(builtin);
    for (const std::string& name : kind.names(registries)) {
      const bool is_old = std::find(old.begin(), old.end(), name) != old.end();
      if (!only_added || !is_old) all.push_back({&kind, name});
    }
  }
  return all;
}

/// How one of another kind that has that name is checked, if there is one.
std::string hint_of_kind(const std::string& name, const Registries& registries) {
  for (const Kind& kind : conformance::kinds()) {
    const std::vector<std::string> names = kind.names(registries);
    if (std::find(names.begin(), names.end(), name) == names.end()) continue;
    const std::string option = kind.name == std::string("scheme") ? "" : text("--", kind.name, " ");
    return text("; the ", kind.what, " of that name is checked by: kuafu conformance ", option,
                name);
  }
  return "";
}

/// Those asked for. Throws ConfigError for a name that is not there, with the nearest.
std::vector<Checked> choices_of(const ConformanceOptions& options, const Registries& registries) {
  std::vector<Checked> named;
  for (const Kind& kind : conformance::kinds()) {
    const auto asked = options.names.find(kind.name);
    if (asked == options.names.end()) continue;
    const std::vector<std::string> known = kind.names(registries);
    for (const std::string& name : asked->second) {
      const std::string has_name_elsewhere = hint_of_kind(name, registries);
      KUAFU_REQUIRE(std::find(known.begin(), known.end(), name) != known.end(), "no ", kind.what,
                    " ", in_quotes(name), "; nearest: ", in_quotes(nearest(name, known)),
                    "; allowed: ", join(in_quotes(known)),
                    has_name_elsewhere.empty() ? plugin_hint(options.plugins) : has_name_elsewhere);
      named.push_back({&kind, name});
    }
  }
  if (!named.empty()) return named;
  const std::vector<Checked> all = all_choices(registries, !options.plugins.empty());
  KUAFU_REQUIRE(!all.empty(), "the plug-ins given add nothing to check; name what to check");
  return all;
}

int64_t num_failed(const std::vector<Finding>& findings) {
  return std::count_if(findings.begin(), findings.end(), [](const Finding& f) { return !f.is_ok; });
}

Json json_of(const Finding& f) {
  return {{"kind", f.kind},   {"name", f.name}, {"check", f.check},     {"where", f.where},
          {"shape", f.shape}, {"ok", f.is_ok},  {"refusal", f.refusal}, {"detail", f.detail}};
}

Json document_of(const std::vector<Finding>& findings, const char* status) {
  Json list = Json::array();
  for (const Finding& f : findings) list.push_back(json_of(f));
  const int64_t failed = num_failed(findings);
  return {{"status", status},
          {"passed", static_cast<int64_t>(findings.size()) - failed},
          {"failed", failed},
          {"findings", list}};
}

/// A cell for a check of one case: all of its shapes.
std::string cell(const std::vector<const Finding*>& findings) {
  if (findings.empty()) return "-";
  const auto is_bad = [](const Finding* f) { return !f->is_ok; };
  const auto is_refused = [](const Finding* f) { return !f->refusal.empty(); };
  if (std::any_of(findings.begin(), findings.end(), is_bad)) return "FAILED";
  return std::all_of(findings.begin(), findings.end(), is_refused) ? "refused" : "ok";
}

void add_once(std::vector<std::string>& to, const std::string& word) {
  if (std::find(to.begin(), to.end(), word) == to.end()) to.push_back(word);
}

/// A row for each place of a choice, a column for each check.
std::string table_of(const Checked& choice, const std::vector<Finding>& findings) {
  std::vector<std::string> checks, places;
  for (const Finding& f : findings) {
    add_once(checks, f.check);
    add_once(places, f.where);
  }
  std::vector<Table::Column> columns = {{choice.kind->name}, {"on"}};
  for (const std::string& check : checks) columns.push_back({check});
  Table table(columns);
  for (const std::string& place : places) {
    std::vector<std::string> row = {choice.name, place};
    for (const std::string& check : checks) {
      std::vector<const Finding*> here;
      for (const Finding& f : findings) {
        if (f.check == check && f.where == place) here.push_back(&f);
      }
      row.push_back(cell(here));
    }
    table.add(row);
  }
  return table.str();
}

/// Tells of findings as they come: a check takes from nothing to minutes.
class Progress {
 public:
  void operator()(const Finding& f) {
    if (where_.empty()) std::cout << f.kind << " " << f.name;
    if (f.where != where_) std::cout << "\n  " << f.where << ":";
    if (f.where != where_ || f.check != check_) std::cout << " " << f.check << " ";
    where_ = f.where;
    check_ = f.check;
    if (f.is_ok) {
      std::cout << (f.refusal.empty() ? "." : "r");
    } else {
      std::cout << "FAILED\n"
                << f.check << " of " << f.name << " on " << f.where << ", " << f.shape << ":\n  "
                << f.detail << "\n ";
      check_.clear();
    }
    std::cout << std::flush;
  }

 private:
  std::string where_, check_;
};

/// What was refused, once a reason.
void print_refusals(const std::vector<Finding>& findings) {
  std::vector<std::string> refusals;
  for (const Finding& f : findings) {
    if (!f.refusal.empty()) add_once(refusals, text(f.where, ": ", f.refusal));
  }
  if (!refusals.empty()) std::cout << "\nrefused\n";
  for (const std::string& refusal : refusals) std::cout << "  " << refusal << "\n";
}

/// "scheme \"2d\""
std::string words_of(const Finding& choice) {
  return text(choice.kind, " ", in_quotes(choice.name));
}

/// Calls `on_signal` once, on a thread of its own, at what asks the process to end. To be made before
/// other threads are: they must not take the signal.
class EndSignals {
 public:
  explicit EndSignals(std::function<void(int number)> on_signal)
      : thread_([this, on_signal = std::move(on_signal)] {
          int number = 0;
          ::sigwait(&awaited_, &number);
          if (!is_over_) on_signal(number);
        }) {}
  ~EndSignals() {
    is_over_ = true;
    ::pthread_kill(thread_.native_handle(), SIGTERM);
    thread_.join();
  }
  EndSignals(const EndSignals&) = delete;
  EndSignals& operator=(const EndSignals&) = delete;

 private:
  static sigset_t blocked() {
    sigset_t signals;
    ::sigemptyset(&signals);
    for (const int number : {SIGINT, SIGTERM, SIGHUP}) ::sigaddset(&signals, number);
    ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
    return signals;
  }

  const sigset_t awaited_ = blocked();
  std::atomic<bool> is_over_ = false;
  std::thread thread_;
};

/// All that is checked: told as it comes, ended where one check takes too long or a signal comes,
/// named where one crashes. What is found so far is in the document, whatever ends the process.
class Checking {
 public:
  explicit Checking(const ConformanceOptions& options)
      : options_(options), signals_([this](int number) { end_interrupted(number); }) {}

  std::vector<Finding> check(const Checked& choice, const Registries& registries) {
    const Kind& kind = *choice.kind;
    const Finding of_choice{.kind = kind.name, .name = choice.name};
    {
      const std::lock_guard lock(mutex_);
      in_hand_ = choice;
      first_ = told_.size();
    }
    const auto between = [&] {
      begin(text("what is between the checks of ", words_of(of_choice)), of_choice);
    };
    Progress progress;
    between();
    const conformance::Tell tell = {.begins =
                                        [&](const Finding& blank) {
                                          begin(text("check ", blank.check, " of ", words_of(blank),
                                                     " on ", blank.where, ", ", blank.shape),
                                                blank);
                                          write_unfinished();
                                        },
                                    .ended =
                                        [&](const Finding& f) {
                                          add(f);
                                          between();
                                          progress(f);
                                        }};
    return kind.check(registries, choice.name, options_.sizes.empty() ? kind.sizes : options_.sizes,
                      tell);
  }

 private:
  /// A watchdog that barks ends the process, and whoever waits for its end here does not come back.
  void begin(const std::string& what, const Finding& blank) {
    limit_.reset();
    {
      const std::lock_guard lock(mutex_);
      note_under_way(what);
      under_way_ = what;
      blank_ = blank;
    }
    limit_.emplace(options_.timeout_s, [this] { end_late(); });
  }

  void add(const Finding& f) {
    const std::lock_guard lock(mutex_);
    told_.push_back(f);
    if (!options_.json_file.empty()) KeptResults::add(json_of(f));
  }

  void write(const char* status) const {
    Json document = document_of(told_, status);
    document["under_way"] = under_way_;
    write_document(document, options_.json_file);
  }

  /// At most once a second; whoever waits for the end of this process has what came since. A pipe
  /// gets the whole document alone. A full disk is told of at the end.
  void write_unfinished() {
    std::error_code error;
    if (options_.json_file.empty()) return;
    const auto now = std::chrono::steady_clock::now();
    if (written_ && now - *written_ < std::chrono::seconds(1)) {
      KeptResults::add({{"under_way", under_way_}});
      return;
    }
    written_ = now;
    const auto kind = std::filesystem::status(options_.json_file, error).type();
    using std::filesystem::file_type;
    if (kind != file_type::regular && kind != file_type::not_found) return;
    const std::lock_guard lock(mutex_);
    try {
      write("unfinished");
      KeptResults::forget();
    } catch (const ConfigError&) {
    }
  }

  [[noreturn]] void end_late() {
    mutex_.lock();  // for good
    const std::string late = text("took longer than ", options_.timeout_s, " s (--timeout)");
    blank_.detail = late;
    told_.push_back(blank_);
    end("timeout", text(under_way_, " ", late), kTimeout);
  }

  [[noreturn]] void end_interrupted(int number) {
    mutex_.lock();  // for good
    end("interrupted",
        text("signal ", number, " (", ::strsignal(number), ") in the middle of: ", under_way_),
        kInterrupted);
  }

  [[noreturn]] void end(const char* status, const std::string& why, int code) const {
    std::cout << "\n";
    if (told_.size() > first_) {
      const auto first = told_.begin() + static_cast<std::ptrdiff_t>(first_);
      std::cout << "\n" << table_of(*in_hand_, {first, told_.end()});
    }
    std::cout << "\n"
              << static_cast<int64_t>(told_.size()) - num_failed(told_) << " of " << told_.size()
              << " findings hold, and not all is checked" << std::endl;
    std::cerr << "kuafu: " << status << ": " << why << std::endl;
    try {
      if (!options_.json_file.empty()) write(status);
    } catch (const std::exception& e) {
      std::cerr << "kuafu: " << e.what() << std::endl;
      code = kUnwritten;
    }
    end_process(code);
  }

  const ConformanceOptions& options_;
  std::mutex mutex_;  ///< of the next five
  std::vector<Finding> told_;
  std::optional<Checked> in_hand_;  ///< choice whose findings are those from `first_` on
  size_t first_ = 0;
  std::string under_way_ = "what is before the first check";
  Finding blank_;  ///< of what is under way
  std::optional<Watchdog> limit_;
  std::optional<std::chrono::steady_clock::time_point> written_;  ///< when, of what is unfinished
  EndSignals signals_;
};

}  // namespace

int conformance_command(const ConformanceOptions& options) {
  if (!options.json_file.empty()) require_writable("--json", options.json_file);
  Checking checking(options);
  initialise_tensors();
  if (compute_device().is_cuda()) start_rank();  // checks make tensors before they start ranks
  Registries registries = builtin_registries();
  for (const std::string& plugin : options.plugins) load_plugin(plugin, registries);
  std::vector<Finding> all;
  for (const Checked& choice : choices_of(options, registries)) {
    if (!all.empty()) std::cout << "\n";
    const std::vector<Finding> findings = checking.check(choice, registries);
    std::cout << "\n\n" << table_of(choice, findings);
    print_refusals(findings);
    if (num_failed(findings) > 0) std::cout << "\nlarger and later cases were not tried\n";
    std::cout << std::flush;
    all.insert(all.end(), findings.begin(), findings.end());
  }
  const int64_t failed = num_failed(all);
  std::cout << "\n"
            << static_cast<int64_t>(all.size()) - failed << " of " << all.size()
            << " findings hold\n";
  if (!options.json_file.empty()) {
    write_document(document_of(all, failed == 0 ? "ok" : "failed"), options.json_file);
  }
  return failed == 0 ? kOk : kFailed;
}

}  // namespace kuafu
