// SPDX-License-Identifier: Apache-2.0
#include "kuafu/experiment/child.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "kuafu/base/errors.h"
#include "kuafu/record/files.h"

namespace kuafu {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kTickMs = 100;
constexpr std::array kResetSignals = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE, SIGXFSZ};

struct Pipe {
  File read, write;
};

Pipe make_pipe() {
  int ends[2];
  KUAFU_REQUIRE(::pipe2(ends, O_CLOEXEC) == 0, "cannot make a pipe: ", std::strerror(errno));
  return {File(ends[0]), File(ends[1])};
}

/// Parent of a process; 0 where it is gone. The name in /proc/<pid>/stat may hold any character, so
/// the fields are counted from its last parenthesis.
pid_t parent_of(pid_t process) {
  char path[32], line[512];
  std::snprintf(path, sizeof path, "/proc/%d/stat", process);
  const File file(::open(path, O_RDONLY | O_CLOEXEC));
  if (!file.is_open()) return 0;
  const ssize_t n = ::read(file.descriptor(), line, sizeof line - 1);
  if (n <= 0) return 0;
  line[n] = '\0';
  const char* end_of_name = std::strrchr(line, ')');
  char state = 0;
  int parent = 0;
  if (end_of_name == nullptr || std::sscanf(end_of_name + 1, " %c %d", &state, &parent) != 2)
    return 0;
  return parent;
}

void kill_children() {
  DIR* processes = ::opendir("/proc");
  if (processes == nullptr) return;
  while (const dirent* entry = ::readdir(processes)) {
    const pid_t process = std::atoi(entry->d_name);
    if (process > 0 && parent_of(process) == ::getpid()) ::kill(process, SIGKILL);
  }
  ::closedir(processes);
}

/// Kills children until none is left. Whatever a killed child leaves behind becomes a child of this
/// process, which is a subreaper, and is met in the next round.
void end_descendants() {
  while (true) {
    kill_children();
    if (::waitpid(-1, nullptr, 0) < 0 && errno == ECHILD) return;
  }
}

[[noreturn]] void become(const ChildCommand& command, const File& failure) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() == 1) ::_exit(127);
  for (const int number : kResetSignals) ::signal(number, SIG_DFL);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  const int input = ::open("/dev/null", O_RDONLY);
  const int output = ::open(command.output_path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  const int error = ::open(command.error_path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  if (input >= 0 && output >= 0 && error >= 0 && ::dup2(input, 0) >= 0 && ::dup2(output, 1) >= 0 &&
      ::dup2(error, 2) >= 0) {
    std::vector<char*> words;
    for (const auto& word : command.words) words.push_back(const_cast<char*>(word.c_str()));
    words.push_back(nullptr);
    ::execvp(words[0], words.data());
  }
  const int reason = errno;
  const ssize_t written = ::write(failure.descriptor(), &reason, sizeof reason);
  ::_exit(written == sizeof reason ? 127 : 126);
}

/// The guard: starts the program, waits for its end, its time or its owner's death, cleans up.
class Guard {
 public:
  Guard(const ChildCommand& command, File life) : command_(command), life_(std::move(life)) {}

  ChildResult run() {
    ::setpgid(0, 0);
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
    for (const int number : kResetSignals) ::signal(number, SIG_IGN);
    sigset_t child_ended;
    ::sigemptyset(&child_ended);
    ::sigaddset(&child_ended, SIGCHLD);
    ::sigprocmask(SIG_BLOCK, &child_ended, nullptr);
    ended_ = File(::signalfd(-1, &child_ended, SFD_CLOEXEC | SFD_NONBLOCK));
    const Clock::time_point begin = Clock::now();
    ChildResult result = start_and_wait(begin);
    result.wall_s = std::chrono::duration<double>(Clock::now() - begin).count();
    end_descendants();
    return result;
  }

 private:
  ChildResult start_and_wait(Clock::time_point begin) {
    Pipe failure = make_pipe();
    child_ = ::fork();
    if (child_ == 0) become(command_, failure.write);
    if (child_ < 0) return {ChildResult::End::kNotStarted, errno, 0};
    failure.write.close();
    int reason = 0;
    if (::read(failure.read.descriptor(), &reason, sizeof reason) == sizeof reason) {
      return {ChildResult::End::kNotStarted, reason, 0};
    }
    const auto deadline = begin + std::chrono::duration<double>(command_.timeout_s);
    while (true) {
      int status = 0;
      if (::waitpid(child_, &status, WNOHANG) == child_) return ended(status);
      const double left_s = std::chrono::duration<double>(deadline - Clock::now()).count();
      if (left_s <= 0) return {ChildResult::End::kTimedOut, 0, 0};
      pollfd events[2] = {{life_.descriptor(), POLLIN, 0}, {ended_.descriptor(), POLLIN, 0}};
      const int wait_ms = static_cast<int>(std::min(left_s, 3600.0) * 1000) + 1;
      if (::poll(events, 2, wait_ms) <= 0) continue;
      if (events[0].revents != 0) return {ChildResult::End::kCancelled, 0, 0};
      signalfd_siginfo drained;
      while (::read(ended_.descriptor(), &drained, sizeof drained) == sizeof drained) {
      }
    }
  }

  static ChildResult ended(int status) {
    if (WIFSIGNALED(status)) return {ChildResult::End::kSignalled, WTERMSIG(status), 0};
    return {ChildResult::End::kExited, WEXITSTATUS(status), 0};
  }

  const ChildCommand& command_;
  File life_;   ///< readable once the owner closes its end or dies
  File ended_;  ///< readable when a child ended
  pid_t child_ = -1;
};

void reap(pid_t process) {
  while (::waitpid(process, nullptr, 0) < 0 && errno == EINTR) {
  }
}

}  // namespace

ChildResult run_child(const ChildCommand& command, const std::function<bool()>& tick) {
  KUAFU_CHECK(!command.words.empty(), "no program to run");
  Pipe life = make_pipe(), answer = make_pipe();
  const pid_t guard = ::fork();
  KUAFU_REQUIRE(guard >= 0, "cannot start a process: ", std::strerror(errno));
  if (guard == 0) {
    life.write.close();
    answer.read.close();
    ChildResult result;
    try {
      result = Guard(command, std::move(life.read)).run();
    } catch (const Error&) {
      result.end = ChildResult::End::kNotStarted;
    }
    const ssize_t written = ::write(answer.write.descriptor(), &result, sizeof result);
    ::_exit(written == sizeof result ? 0 : 1);
  }
  life.read.close();
  answer.write.close();
  while (true) {
    pollfd event{answer.read.descriptor(), POLLIN, 0};
    if (::poll(&event, 1, kTickMs) > 0) break;
    if (life.write.is_open() && !tick()) life.write.close();
  }
  ChildResult result;
  const ssize_t n = ::read(answer.read.descriptor(), &result, sizeof result);
  reap(guard);
  return n == sizeof result ? result : ChildResult{};
}

}  // namespace kuafu
