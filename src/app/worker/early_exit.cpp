// SPDX-License-Identifier: Apache-2.0
//
// exit() runs destructors and then the handler that is registered here, on the thread that called it, while
// other ranks compute with what is destroyed; _exit() and _Exit() run nothing. So the program has its own of
// all three, which plug-ins and libraries find before the C library's.

#include "app/worker/early_exit.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <iostream>
#include <mutex>
#include <utility>

#include "app/worker/options.h"
#include "kuafu/base/errors.h"
#include "kuafu/base/suggest.h"

namespace kuafu {
namespace {

using Report = std::function<int(const std::string& what)>;

// The end of a process has no argument to carry them.
std::atomic<const Report*> watching = nullptr;
std::atomic<pid_t> watched_process = 0;
thread_local int rank_of_thread = -1;
std::atomic<const std::vector<std::string>*> unfinished_with = nullptr;  // plug-ins
std::atomic<bool> is_any_thread_meant = false;
thread_local bool is_working_thread = false;
std::atomic<pid_t> working_process = 0;

[[noreturn]] void leave(int status) {
  while (true) ::syscall(SYS_exit_group, status);
}

// A forked child ends as it likes.
void note_unfinished(const char* call, int status) {
  if (working_process.load() != ::getpid()) return;
  if (!is_working_thread && !is_any_thread_meant.load()) return;
  const std::vector<std::string>* given = unfinished_with.exchange(nullptr);
  if (given == nullptr) return;
  const std::vector<std::string>& plugins = *given;
  std::cerr << "kuafu: failed: something called " << call << "(" << status
            << ") before the work was done"
            << (plugins.empty() ? "" : "; plug-ins given: " + join(plugins)) << std::endl;
  leave(kFailed);
}

// Only the first rank is heard; the others wait for the end of the process. A thread that is no
// rank is the MPI library's, told that the run is over: destructors must not run under the ranks'
// feet.
void note_exit(const char* call, int status) {
  const Report* report = watching.load();
  if (report == nullptr) return note_unfinished(call, status);
  if (watched_process.load() != ::getpid()) return;
  if (rank_of_thread < 0) leave(status);
  static std::mutex first;
  first.lock();
  leave((*report)(
      text("rank ", rank_of_thread, " called ", call, "(", status, ") in the middle of the run")));
}

void watch_exits() {
  static const int registered =
      ::on_exit([](int status, void*) { note_exit("exit", status); }, nullptr);
  static const int registered_quick = ::at_quick_exit([] { note_exit("quick_exit", 0); });
  KUAFU_CHECK(registered == 0 && registered_quick == 0, "no handler for exit");
}

}  // namespace

ExitWatch::ExitWatch(Report report) : report_(std::move(report)) {
  watch_exits();
  watched_process = ::getpid();
  watching = &report_;
}

ExitWatch::~ExitWatch() { watching = nullptr; }

UnfinishedWork::UnfinishedWork(const std::vector<std::string>& plugins, Threads threads) {
  watch_exits();
  is_working_thread = true;
  is_any_thread_meant = threads == Threads::kAll;
  working_process = ::getpid();
  unfinished_with = &plugins;
}

UnfinishedWork::~UnfinishedWork() { unfinished_with = nullptr; }

WatchedRank::WatchedRank(int rank) { rank_of_thread = rank; }
WatchedRank::~WatchedRank() { rank_of_thread = -1; }
void work_for_rank_0() { rank_of_thread = 0; }

void end_process(int code) { leave(code); }

}  // namespace kuafu

extern "C" [[noreturn]] void exit(int status) {
  kuafu::note_exit("exit", status);
  const auto real = reinterpret_cast<void (*)(int)>(::dlsym(RTLD_NEXT, "exit"));
  if (real != nullptr) real(status);
  kuafu::leave(status);
}

extern "C" [[noreturn]] void _exit(int status) {
  kuafu::note_exit("_exit", status);
  kuafu::leave(status);
}

extern "C" [[noreturn]] void _Exit(int status) {
  kuafu::note_exit("_Exit", status);
  kuafu::leave(status);
}
