// SPDX-License-Identifier: Apache-2.0
#include "app/worker/jobs.h"

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <iostream>
#include <map>
#include <vector>

#include "app/worker/exit_code.h"
#include "app/worker/messages.h"
#include "kuafu/base/errors.h"
#include "kuafu/record/files.h"

namespace kuafu {
namespace {

using std::chrono::steady_clock;

constexpr std::array kEnding = {SIGINT, SIGTERM, SIGHUP};
volatile sig_atomic_t received = 0;  // written by the handler only

/// While it stands these signals are noted, and end nothing.
class Noted {
 public:
  Noted() {
    received = 0;
    struct sigaction action {};
    action.sa_handler = [](int number) { received = number; };
    for (size_t i = 0; i < kEnding.size(); ++i) ::sigaction(kEnding[i], &action, &before_[i]);
  }
  ~Noted() {
    for (size_t i = 0; i < kEnding.size(); ++i) ::sigaction(kEnding[i], &before_[i], nullptr);
  }
  Noted(const Noted&) = delete;
  Noted& operator=(const Noted&) = delete;

 private:
  std::array<struct sigaction, kEnding.size()> before_{};
};

/// A process that takes numbers and answers each.
struct Process {
  pid_t id = -1;
  File line;
  int64_t number = -1;  ///< of the piece in hand; -1: none
  steady_clock::time_point begin = {};
};

/// An answer begins with one of these.
constexpr char kDone = 'd', kUnwrittenFile = 'u';

std::string answer_to(const Jobs& jobs, int64_t number) {
  try {
    return kDone + jobs.work(number);
  } catch (const Unwritten& e) {
    return kUnwrittenFile + std::string(e.what());
  }
}

[[noreturn]] void serve(const File& line, const Jobs& jobs) {
  try {
    while (const auto number = receive(line)) {
      if (!send(line, answer_to(jobs, std::stoll(*number)))) break;
    }
  } catch (const std::exception& e) {
    std::cerr << "kuafu: " << e.what() << std::endl;
    ::_exit(1);
  } catch (...) {  // nothing of this process is to be destroyed: its parent has it too
    ::_exit(1);
  }
  ::_exit(0);
}

class Pool {
 public:
  explicit Pool(const Jobs& jobs) : jobs_(jobs), next_(jobs.first), taken_(jobs.first) {}
  // An exception leaves nobody behind: a closed line ends its process after its piece.
  ~Pool() {
    for (Process& p : processes_) {
      p.line.close();
      if (p.id > 0) ::kill(p.id, SIGTERM);
      reap(p);
    }
  }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int run() {
    processes_.resize(static_cast<size_t>(jobs_.jobs));
    for (Process& p : processes_) {
      if (!start_next(p)) break;
    }
    while (taken_ < next_ && received == 0) {
      std::vector<pollfd> lines;
      for (const Process& p : processes_) {
        lines.push_back({p.number < 0 ? -1 : p.line.descriptor(), POLLIN, 0});
      }
      // A signal may come between the look at it and the wait.
      constexpr int kLongest_ms = 500;
      if (::poll(lines.data(), lines.size(), kLongest_ms) < 0 && errno != EINTR) break;
      for (size_t i = 0; i < lines.size(); ++i) {
        if (lines[i].revents != 0 && received == 0) finish(processes_[i]);
      }
    }
    if (received != 0) return received;            // a terminal told the processes too
    for (Process& p : processes_) p.line.close();  // ends it
    for (Process& p : processes_) reap(p);
    processes_.clear();
    return 0;
  }

 private:
  bool start_next(Process& p) {
    if (is_over_ || !jobs_.is_wanted(next_)) {
      is_over_ = true;
      return false;
    }
    if (p.id < 0) start(p);
    p.number = next_++;
    p.begin = steady_clock::now();
    send(p.line, text(p.number));
    return true;
  }

  void start(Process& p) {
    auto [ours, theirs] = make_line();
    const pid_t owner = ::getpid();
    p.id = ::fork();
    KUAFU_REQUIRE(p.id >= 0, "--jobs ", jobs_.jobs, ": no more processes: ", std::strerror(errno));
    if (p.id == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != owner) ::_exit(0);
      for (const int number : kEnding) ::signal(number, SIG_DFL);
      ours.close();
      for (Process& other : processes_) other.line.close();
      serve(theirs, jobs_);
    }
    p.line = std::move(ours);
  }

  void finish(Process& p) {
    const auto words = receive(p.line);
    if (words && words->front() == kUnwrittenFile) throw Unwritten(words->substr(1));
    done_[p.number] = {words ? words->substr(1) : text("the process ", ended(reap(p))), !words,
                       std::chrono::duration<double>(steady_clock::now() - p.begin).count()};
    p.number = -1;
    for (auto at = done_.find(taken_); at != done_.end(); at = done_.find(taken_)) {
      const Answer answer = at->second;
      done_.erase(at);
      jobs_.take(taken_++, answer);
    }
    start_next(p);
  }

  static int reap(Process& p) {
    int status = 0;
    if (p.id > 0) ::waitpid(p.id, &status, 0);
    p.id = -1;
    p.line.close();
    return status;
  }

  const Jobs& jobs_;
  std::vector<Process> processes_;
  int64_t next_, taken_;  ///< numbers: to give out, and to take
  bool is_over_ = false;
  std::map<int64_t, Answer> done_;  ///< before their turn
};

}  // namespace

int run_jobs(const Jobs& jobs) {
  const Noted noted;
  return Pool(jobs).run();
}

int tell_interrupted(int signal, const std::string& what) {
  std::cerr << "kuafu: interrupted: signal " << signal << " (" << ::strsignal(signal) << ") "
            << what << std::endl;
  return kInterrupted;
}

}  // namespace kuafu
