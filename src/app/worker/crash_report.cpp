// SPDX-License-Identifier: Apache-2.0
//
// The handler runs where the process crashed: it takes no memory and no lock, and reads texts that
// were ready before.

#include "app/worker/crash_report.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstring>

#include "kuafu/base/errors.h"
#include "kuafu/base/suggest.h"

namespace kuafu {
namespace {

struct Crash {
  int number;
  const char* words;
};

constexpr std::array kCrashes = {Crash{SIGSEGV, "SIGSEGV, a wrong access to memory"},
                                 Crash{SIGBUS, "SIGBUS, a wrong access to memory"},
                                 Crash{SIGILL, "SIGILL, an instruction that is none"},
                                 Crash{SIGFPE, "SIGFPE, arithmetic such as a division by zero"},
                                 Crash{SIGABRT, "SIGABRT, a call of abort()"}};

constexpr size_t kStack = size_t{64} << 10;

// A handler has no argument to carry them.
std::atomic<const char*> plugins_given = nullptr;
std::atomic<const char*> under_way = nullptr;
std::atomic<pid_t> watched = 0;
std::atomic_flag is_told = ATOMIC_FLAG_INIT;

/// One line; what does not fit is cut.
class Line {
 public:
  void add(const char* words) {
    if (words == nullptr) return;
    const size_t fits = std::min(std::strlen(words), text_.size() - size_);
    std::memcpy(text_.data() + size_, words, fits);
    size_ += fits;
  }
  void write() const {
    // What standard error does not take nobody can be told.
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text_.data(), size_);
  }

 private:
  std::array<char, 4096> text_;
  size_t size_ = 0;
};

void tell(int number) {
  Line line;
  line.add("kuafu: the program crashed (");
  for (const Crash& crash : kCrashes) {
    if (crash.number == number) line.add(crash.words);
  }
  line.add(")");
  line.add(under_way.load());
  line.add(plugins_given.load());
  line.add("\n");
  line.write();
}

void on_crash(int number) {
  if (watched.load() == ::getpid()) {
    while (is_told.test_and_set()) ::pause();  // another thread tells, and ends the process
    tell(number);
  }
  ::signal(number, SIG_DFL);
  ::raise(number);  // once this handler has returned
}

}  // namespace

CrashReport::CrashReport(const std::vector<std::string>& plugins)
    : plugins_(plugins.empty() ? "" : text("; plug-ins given: ", join(plugins))), stack_(kStack) {
  plugins_given = plugins_.c_str();
  watched = ::getpid();
  const stack_t stack{.ss_sp = stack_.data(), .ss_flags = 0, .ss_size = stack_.size()};
  ::sigaltstack(&stack, nullptr);
  struct sigaction action {};
  action.sa_handler = on_crash;
  action.sa_flags = SA_ONSTACK;
  for (const Crash& crash : kCrashes) ::sigaction(crash.number, &action, nullptr);
}

CrashReport::~CrashReport() {
  for (const Crash& crash : kCrashes) ::signal(crash.number, SIG_DFL);
  const stack_t none{.ss_sp = nullptr, .ss_flags = SS_DISABLE, .ss_size = 0};
  ::sigaltstack(&none, nullptr);
  plugins_given = nullptr;
}

void note_under_way(const std::string& what) {
  // A handler may read the one before while the next is made, and behind the destructors of an exit().
  static auto& kept = *new std::array<std::string, 2>;
  static size_t next = 0;
  kept[next] = " in the middle of: " + what;
  under_way = kept[next].c_str();
  next = 1 - next;
}

}  // namespace kuafu
