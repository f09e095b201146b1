// SPDX-License-Identifier: Apache-2.0
#include "app/kuafu/guard.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <optional>
#include <thread>
#include <utility>

#include "app/kuafu/forwarded_output.h"
#include "app/kuafu/programs.h"
#include "kuafu/base/config.h"
#include "kuafu/base/errors.h"
#include "kuafu/base/launcher.h"
#include "kuafu/base/limits.h"
#include "kuafu/base/units.h"
#include "kuafu/base/worlds.h"
#include "kuafu/experiment/verdict.h"
#include "kuafu/record/file_claim.h"
#include "kuafu/record/files.h"
#include "kuafu/record/json_text.h"
#include "kuafu/record/kept_results.h"
#include "kuafu/record/launch_folders.h"
#include "kuafu/record/progress.h"
#include "kuafu/record/run_summary.h"
#include "kuafu/record/schema.h"

namespace kuafu {
namespace {

constexpr std::array kPassedOn = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};
constexpr time_t kSameSignalMs = 500;
constexpr int kTooLate = 5;                // exit code of a time-out
constexpr double kLongestStart_s = 60;     // from a launcher to its first rank
constexpr double kLongestMeeting_s = 120;  // from the last rank that went to meet the others
constexpr std::chrono::milliseconds kPause(10);
// A suite runs cases again that ended so: finality.cpp.
constexpr const char* kUnbegun = "before a rank began";
constexpr const char* kUnmet = "before its ranks met";
volatile sig_atomic_t received = 0;  // written by the handler only
volatile pid_t worker = 0;

volatile time_t received_at_ms = 0;

volatile bool is_launcher = false;  // the worker is mpirun, in a process group of its own
volatile int listening = -1;        // the file of launcher and ranks: kListeningVariable

// What a terminal sends it sends to the worker too. mpirun would kill its ranks a second after most
// signals; SIGUSR1 and SIGUSR2 it hands to them, so that they have the time to save.
// What a launcher's ranks have told: 0, that they listen; 1, that one of them has begun; 4, that one
// goes to meet the others; 5, that rank 0 has said how the run ended.
bool is_marked(off_t what) {
  char byte = 0;
  return ::pread(listening, &byte, 1, what) == 1 && byte == '1';
}

// Which signal it is that ranks get as SIGUSR2.
void note(int number) {
  const char digits[] = {static_cast<char>('0' + number / 10),
                         static_cast<char>('0' + number % 10)};
  // Where it cannot be written ranks say that they were asked to stop.
  [[maybe_unused]] const ssize_t written = ::pwrite(listening, digits, sizeof(digits), 2);
}

void pass_on(int number, const siginfo_t& info) {
  // mpirun hands it to ranks that would die of it while they start: nothing is there to save yet.
  if (number == SIGUSR1 && is_launcher && !is_marked(0)) return;
  const bool is_first = received == 0;
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  const time_t now_ms = now.tv_sec * 1000 + now.tv_nsec / 1'000'000;
  if (is_first) received_at_ms = now_ms;
  if (number != SIGUSR1) received = number;  // which saves, and ends nothing
  if (is_launcher) {
    // What comes at once is the same one: to the process, and to its group.
    const bool is_copy = !is_first && now_ms - received_at_ms < kSameSignalMs;
    if (number != SIGUSR1 && is_first) note(number);
    if (number == SIGUSR1 || !is_copy)
      ::kill(worker, number != SIGUSR1 && is_first ? SIGUSR2 : number);
  } else if (info.si_code <= 0) {
    ::kill(worker, number);
  }
}

void on_signal(int number, siginfo_t* info, void*) {
  const int error = errno;  // of what it interrupts
  pass_on(number, *info);
  errno = error;
}

class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigemptyset(&passed_on_);
    for (const int number : kPassedOn) sigaddset(&passed_on_, number);
    ::sigprocmask(SIG_BLOCK, &passed_on_, &before_);
  }
  void handle() const {
    struct sigaction action {};
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_SIGINFO;
    for (const int number : kPassedOn) {
      ::sigaction(number, &action, nullptr);
    }
  }
  ~SignalsBlocked() { ::sigprocmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t passed_on_{}, before_{};
};

[[noreturn]] void be_worker(const std::vector<std::string>& words, pid_t guard,
                            const ForwardedOutput* output) {
  if (output != nullptr) output->be_writer();
  if (is_launcher) ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() != guard) ::_exit(1);  // it died before it was watched
  try {
    become(words);
  } catch (const Error& error) {
    std::cerr << "kuafu: " << error.what() << std::endl;
  }
  ::_exit(127);
}

/// Tells one file of a name from the next.
struct Version {
  ino_t inode = 0;
  int64_t changed_s = 0, changed_ns = 0;
  bool operator==(const Version&) const = default;
};

Version version_of(const std::string& path) {
  struct stat s {};
  if (path.empty() || ::stat(path.c_str(), &s) != 0) return {};
  return {s.st_ino, s.st_mtim.tv_sec, s.st_mtim.tv_nsec};
}

/// The signal that ended a process, or 0. What ranks get as SIGUSR2 was another to their launcher,
/// which ends with 128 and the signal of a rank.
int signal_of(int status) {
  const int number = WIFSIGNALED(status) ? WTERMSIG(status)
                     : is_launcher       ? WEXITSTATUS(status) - 128
                                         : 0;
  if (number != SIGUSR2) return WIFSIGNALED(status) ? number : 0;
  const int sent = is_launcher ? int{received} : signal_of_launcher();
  return sent != 0 ? sent : number;
}

std::string describe_end(int status) {
  const int number = signal_of(status);
  if (number == 0) return text("exited with code ", WEXITSTATUS(status));
  return text("was killed by signal ", number, " (", ::strsignal(number),
              number == SIGKILL ? ", perhaps by the system for want of memory)" : ")");
}

/// Status of the document that this run has written, `different` where its certificate says so;
/// empty where it has written none.
std::string status_of(const std::string& path, const Version& before) {
  const Version now = version_of(path);
  if (now == before || now == Version{})
    return "";  // or it is gone, as the run that began removed it
  const Json document = Json::parse(read_file(path, "document"), nullptr, false);
  if (is_different(document)) return "different";
  const Json status = value_at(document, "status");
  return status.is_string() ? status.get<std::string>() : "";
}

/// What is written there nobody reads back: /dev/null, a pipe.
bool is_device(const std::string& path) {
  struct stat s {};
  return ::stat(path.c_str(), &s) == 0 && !S_ISREG(s.st_mode);
}

/// Best effort: what the document says is on standard error too.
void write(const Json& document, const std::string& path) {
  try {
    replace_file(path, json_document(document));
  } catch (const ConfigError& e) {
    std::cerr << "kuafu: " << e.what() << std::endl;
  }
}

/// Where the run was done before it was certified, its results stand: says so, once. Another rank may
/// have said why in the document. What was found different is so: returns the exit code, none where nothing
/// was being certified.
std::optional<int> keep_results(const WorkerCall& call, const Json& kept, const std::string& how) {
  Json document = kept;
  if (!call.json.empty()) {
    const Json written = Json::parse(read_file(call.json, "document"), nullptr, false);
    if (is_cut_short(written) || is_different(written)) document = written;
  }
  const bool is_refuted = is_different(document);
  if (!is_refuted && !is_cut_short(document)) return {};
  const Json whole = with_end(document, how);
  if (whole != document) {
    std::cerr << "kuafu: " << why_of_verdict(whole) << std::endl;
    if (!call.json.empty()) write(whole, call.json);
  }
  if (is_refuted) {
    std::cerr << "kuafu: different: " << why_of_verdict(whole) << "; then " << how << std::endl;
  }
  if (!kept.is_null()) print_summary(whole);
  std::cout.flush();
  return is_refuted ? kBad : kDone;
}

/// How a run ended that could not say so itself.
struct Failure {
  std::string status = "failed", reason;
  int code = kBad;
};

/// Says why; writes it too where the run has written no failure itself. Results that it has written
/// stay in its document.
int report_failure(const WorkerCall& call, const Failure& failure, const std::string& written) {
  const auto& [status, reason, code] = failure;
  std::cerr << "kuafu: " << status << ": " << reason << std::endl;
  const bool has_failure = !written.empty() && written != "ok" && written != "different";
  if (has_failure || call.json.empty()) return code;
  if (written.empty()) {
    write_failure(call, status, reason);
  } else {
    Json document = Json::parse(read_file(call.json, "document"));
    document["status"] = status;
    document["reason"] = reason;
    write(document, call.json);
  }
  return code;
}

/// The exit code where a signal to this process ended the run; none where the run came to an end of
/// its own.
std::optional<int> code_of_signal(int status, const std::string& written) {
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  if (WIFEXITED(status) && code == kUnwritten) return {};  // it has told how it ended
  if ((WIFEXITED(status) && code == kStopped) || written == "interrupted") return kStopped;
  // A launcher ends as its killed ranks do, or with 1 where it was killed itself.
  const bool is_killed = code > 128 || (is_launcher && code != 0 && written.empty());
  if (!is_killed) return {};
  if (written == "ok") return kDone;  // it was done
  if (written == "different") return kBad;
  return written.empty() ? kStopped : 128 + received;
}

/// Of a run that a signal ended before its first step, or by force, which could not say so itself.
std::string reason_of_signal() {
  return text(
      "signal ", received, " (", ::strsignal(received),
      ") ended the run at once, before its steps or as the second one; nothing more is saved");
}

/// The exit code of a generation that a signal to this process or a reader of its text that has gone
/// ended, as shells tell it; none where it came to an end of its own. The worker tells what it has made,
/// where it is asked between two tokens.
std::optional<int> code_of_stop(int status, const WorkerCall& call, const std::string& written) {
  const int ended = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  if (ended == 128 + SIGPIPE) {
    if (written.empty()) write_failure(call, "interrupted", "nobody reads the text any more");
    return ended;
  }
  if (received == 0 || ended == 0) return {};
  const int code = 128 + received;
  const bool is_told = is_launcher ? is_marked(5) : WIFEXITED(status) && ended == code;
  if (is_told) return code;
  if (WIFEXITED(status) && !is_launcher) return {};
  const std::string why = text("stopped by SIG", ::sigabbrev_np(received),
                               " at once: before there was a result, or as the second signal");
  std::cerr << "kuafu: " << why << std::endl;
  if (written.empty()) write_failure(call, "interrupted", why);
  return code;
}

/// Bytes that are free where Open MPI puts its files, and how long these may be.
std::string room_of_launcher() {
  const char* temporary = std::getenv("TMPDIR");
  std::string room;
  for (const std::string folder : {"/dev/shm", temporary != nullptr ? temporary : "/tmp"}) {
    struct statvfs s {};
    if (::statvfs(folder.c_str(), &s) != 0) continue;
    const auto unit = static_cast<int64_t>(s.f_frsize);
    room += text("; ", folder, " has ", print_bytes(static_cast<int64_t>(s.f_bavail) * unit),
                 " free of ", print_bytes(static_cast<int64_t>(s.f_blocks) * unit));
  }
  rlimit longest{};
  if (::getrlimit(RLIMIT_FSIZE, &longest) == 0 && longest.rlim_cur != RLIM_INFINITY) {
    room += text("; files end at ", print_bytes(static_cast<int64_t>(longest.rlim_cur)),
                 " (ulimit -f)");
  }
  return room;
}

/// Why a launcher ended so, where nobody else says it: it is called to be quiet. Empty: it is told.
std::string reason_of_launcher(int code, const WorkerCall& call, const std::string& written) {
  if (!is_launcher || code == 0) return "";
  if (!is_marked(1)) {
    return text("mpirun ended with code ", code, " ", kUnbegun,
                "; see why with: scripts/mpirun.sh -n ", call.ranks, " true", room_of_launcher(),
                limit_of_memory());
  }
  if (code == 1 && !is_marked(0) && written.empty()) {
    return text("mpirun ended with code 1 ", kUnmet, "; MPI keeps some MiB a rank in shared memory",
                room_of_launcher(), limit_of_memory());
  }
  const int number = code - 128;
  // A run that was asked to stop ends with kStopped, the code of SIGINT too, which ranks take.
  if (number <= 0 || code == kStopped || (!written.empty() && written != "ok")) return "";
  return text("a rank was killed by signal ", number, " (", ::strsignal(number), ")");
}

/// Ends a launcher and all of its group. Returns its status, as of waitpid().
int end_launcher() {
  constexpr int kPatience = 300;  // of 10 ms
  int status = 0;
  ::kill(worker, SIGTERM);
  for (int i = 0; i < kPatience; ++i) {
    if (::waitpid(worker, &status, WNOHANG) == worker) return status;
    std::this_thread::sleep_for(kPause);
  }
  ::kill(-worker, SIGKILL);
  while (::waitpid(worker, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

/// When a rank last went to meet the others.
timespec last_arrival() {
  struct stat s {};
  ::fstat(listening, &s);
  return s.st_mtim;
}

/// What a launcher on this machine has not done in time: Open MPI may wait for ever where its folders
/// have no room. `alone_s`: since the last arrival. Empty: there is time.
std::string what_is_late(double passed_s, double alone_s, double timeout_s) {
  const bool is_limited = timeout_s > 0;
  if (!is_marked(1)) {
    return passed_s > (is_limited ? std::min(timeout_s, kLongestStart_s) : kLongestStart_s)
               ? kUnbegun
               : "";
  }
  const bool is_alone = is_marked(4) && alone_s > kLongestMeeting_s;
  // A rank has a time-out of its own, which ends it before.
  return is_alone || (is_limited && passed_s > 1.2 * timeout_s + 5) ? kUnmet : "";
}

/// How a worker ended.
struct WorkerEnd {
  int status = 0;  ///< as of waitpid()
  double after_s = 0;
  std::string late;  ///< what_is_late(), for which it was ended here; empty: it was not
};

/// Waits until the ranks of a launcher have met, and for its end where they do not.
std::optional<WorkerEnd> end_before_meeting(double timeout_s) {
  using Clock = std::chrono::steady_clock;
  constexpr double kLongestPause_s =
      1;  // more passes where this process was stopped, as its ranks were
  WorkerEnd end;
  double alone_s = 0;
  timespec arrival = last_arrival();
  for (auto last = Clock::now(); !is_marked(0); std::this_thread::sleep_for(kPause)) {
    const auto now = Clock::now();
    const double pause_s = std::min(
        std::chrono::duration<double>(now - std::exchange(last, now)).count(), kLongestPause_s);
    const timespec newest = last_arrival();
    const bool is_new = newest.tv_sec != arrival.tv_sec || newest.tv_nsec != arrival.tv_nsec;
    arrival = newest;
    alone_s = is_new ? 0 : alone_s + pause_s;
    end.after_s += pause_s;
    if (::waitpid(worker, &end.status, WNOHANG) == worker) return end;
    end.late = what_is_late(end.after_s, alone_s, timeout_s);
    if (end.late.empty()) continue;
    end.status = end_launcher();
    return end;
  }
  return std::nullopt;
}

/// Starts the worker and waits for its end. `watched_s`: the time-out of a launcher whose start is
/// watched, 0 where it has none. `output`: of a launcher; `stops_unread`: ranks stop where nobody reads it.
WorkerEnd end_of_worker(const std::vector<std::string>& words,
                        const std::optional<double>& watched_s = {},
                        ForwardedOutput* output = nullptr, bool stops_unread = false) {
  const pid_t guard = ::getpid();
  {
    const SignalsBlocked blocked;
    worker = ::fork();
    KUAFU_REQUIRE(worker >= 0, "cannot start a process: ", std::strerror(errno));
    if (worker > 0) blocked.handle();
    if (worker == 0) ::signal(SIGUSR1, SIG_IGN);  // until the run listens
  }
  if (worker == 0) be_worker(words, guard, output);
  if (output != nullptr) {
    output->begin([stops_unread] {
      if (!stops_unread) return;
      note(SIGPIPE);
      ::kill(worker, SIGUSR2);
    });
  }
  if (watched_s) {
    if (const auto end = end_before_meeting(*watched_s)) return *end;
  }
  WorkerEnd end;
  while (::waitpid(worker, &end.status, 0) < 0 && errno == EINTR) {
  }
  return end;
}

/// Two runs that write one document at once would each tell the end of the other: the second is
/// refused before it touches it.
FileClaim claim_document(const std::string& json) {
  const bool is_rank_0 = launched_rank().value_or(LaunchedRank{}).rank == 0;
  return {"--json", is_rank_0 ? json : ""};
}

}  // namespace

void write_failure(const WorkerCall& call, const std::string& status, const std::string& reason) {
  if (call.json.empty()) return;
  const auto or_null = [](bool is_known, Json value) { return is_known ? value : Json(nullptr); };
  const Json document = {{"status", status},
                         {"reason", reason},
                         {"plan", nullptr},
                         {"plan_hash", nullptr},
                         {"world", or_null(!call.world.empty(), call.world)},
                         {"ranks", or_null(call.ranks > 0, call.ranks)}};
  write(document, call.json);
}

int run_guarded(const std::vector<std::string>& words, const WorkerCall& call, Guarded what) {
  const FileClaim claim = claim_document(call.json);
  const Version before = version_of(call.json);
  is_launcher = call.world == worlds::kMpi && !launched_rank();
  std::optional<LaunchFolders> folders;
  if (!is_launcher) {
    remove_orphaned_folders();  // of launchers that were killed
  } else {
    folders.emplace();
    hand_on_terminal();
    listening = ::memfd_create("kuafu-ranks-listen", MFD_CLOEXEC);
    ::setenv(kListeningVariable, text("/proc/", ::getpid(), "/fd/", listening).c_str(), 1);
  }
  const KeptResults kept;
  std::optional<double> watched_s;
  if (is_launcher && listening >= 0 && starts_here()) watched_s = call.timeout_s;
  std::optional<ForwardedOutput> output;
  if (is_launcher) output.emplace();
  const WorkerEnd end =
      end_of_worker(words, watched_s, output ? &*output : nullptr, what == Guarded::kForward);
  if (output) {
    output->finish();
    if (!output->is_whole()) std::cout.setstate(std::ios::badbit);  // the command tells it
  }
  const int status = end.status;
  const auto place = launched_rank();
  const std::string who = place ? text("rank ", place->rank, ": its worker ") : "the worker ";
  const std::string written = status_of(call.json, before);
  if (what == Guarded::kForward) {
    if (const auto code = code_of_stop(status, call, written)) return *code;
  }
  const Json results = kept.read();
  const bool is_of_verdict = WIFEXITED(status) && WEXITSTATUS(status) == kBad;
  const bool is_bad =
      status != 0 && (written == "ok" || (written == "different" && !is_of_verdict));
  if (is_bad || !results.is_null()) {
    if (const auto code = keep_results(call, results, who + describe_end(status))) return *code;
  }
  // Rank 0 writes the document of a run that ends well; wrong usage has none.
  const bool is_rank_0 = !place || place->rank == 0;
  if (received != 0) {
    if (const auto code = code_of_signal(status, written)) {
      const Failure stopped{"interrupted", reason_of_signal(), kStopped};
      // A launcher ends with this code where its ranks were killed by SIGINT, too.
      const bool is_told =
          is_launcher ? is_marked(5) : WIFEXITED(status) && WEXITSTATUS(status) == kStopped;
      if (*code != kStopped || is_told || !written.empty() || !is_rank_0) return *code;
      return report_failure(call, stopped, written);
    }
  }
  if (!end.late.empty()) {
    const bool is_timeout = call.timeout_s > 0 && end.after_s > call.timeout_s;
    const std::string why = text("mpirun was ended after ", print_seconds(end.after_s), " ",
                                 end.late, room_of_launcher(), limit_of_memory());
    return report_failure(
        call, {is_timeout ? "timeout" : "failed", why, is_timeout ? kTooLate : kBad}, written);
  }
  if (WIFSIGNALED(status))
    return report_failure(call, {.reason = who + describe_end(status)}, written);
  const int code = WEXITSTATUS(status);
  // A launcher that was signalled hands the signal on, and ends with 1 whatever its ranks say.
  if (is_launcher && code == kBad && written == "interrupted") return kStopped;
  const bool is_told =
      code == 0 ? !is_rank_0 || written == "ok"
                : code == kMisused || code == kUnwritten || (!written.empty() && written != "ok");
  const std::string of_launcher = reason_of_launcher(code, call, written);
  if (!of_launcher.empty()) {
    return report_failure(call, {.reason = of_launcher, .code = call.json.empty() ? code : kBad},
                          written);
  }
  if (call.json.empty() || is_device(call.json) || is_told) return code;
  Failure failure{.reason = text(who, describe_end(status),
                                 written.empty() ? " without writing " + call.json
                                                 : " after its document said " + written,
                                 limit_of_memory())};
  if (code == kNoMemory) failure = {"out_of_memory", who + "got no more memory", kNoMemory};
  return report_failure(call, failure, written);
}

int run_conformance(const std::vector<std::string>& words, const std::string& json) {
  const FileClaim claim = claim_document(json);
  const Version before = version_of(json);
  const KeptResults kept;
  const int status = end_of_worker(words).status;
  if (!WIFSIGNALED(status)) return WEXITSTATUS(status);
  const bool is_stopped = received != 0;  // before the worker listened
  const std::string how = "the worker " + describe_end(status);
  std::cerr << "kuafu: " << (is_stopped ? "interrupted: " : "failed: ") << how << std::endl;
  if (status_of(json, before) == "unfinished") {
    Json document = Json::parse(read_file(json, "document"));
    for (const Json& line : kept.lines()) {
      if (line.contains("under_way")) {
        document["under_way"] = line["under_way"];
        continue;
      }
      Json& count = document[line["ok"] == true ? "passed" : "failed"];
      count = count.get<int64_t>() + 1;
      document["findings"].push_back(line);
    }
    document["status"] = is_stopped ? "interrupted" : "crashed";
    document["reason"] = how;
    write(document, json);
  }
  return is_stopped ? kStopped : kBad;
}

}  // namespace kuafu
