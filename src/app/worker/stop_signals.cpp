// SPDX-License-Identifier: Apache-2.0
#include "app/worker/stop_signals.h"

#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <array>

#include "kuafu/base/launcher.h"

namespace kuafu {
namespace {

constexpr std::array kStopping = {SIGINT, SIGTERM, SIGHUP, SIGUSR2};

std::atomic<Requests*> asked = nullptr;
std::atomic<int> signal_received = 0;
std::atomic<int64_t> received_at_ns = 0;
pid_t parent = 0;  // of the process that listens

/// A terminal, `timeout` and a launcher send a signal to all processes of a group, and each of those
/// that passes signals on sends it once more: within that time it is the same one.
constexpr int64_t kSameSignalNs = 500'000'000;

int64_t now_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

void handle(int number, void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  ::sigaction(number, &action, nullptr);
}

/// s that a process has for its step and a checkpoint once nobody waits for it any more.
constexpr unsigned kOrphanGrace = 120;

void on_signal(int number) {
  Requests* const requests = asked.load();
  if (requests == nullptr) return;
  if (number == SIGUSR1) {
    requests->save();
    return;
  }
  if (signal_received == 0) {
    received_at_ns = now_ns();
    signal_received = number;
    requests->stop(Stop::kSignal);
    if (::getppid() != parent) ::alarm(kOrphanGrace);  // which ends it
  } else if (now_ns() - received_at_ns > kSameSignalNs) {
    handle(number, SIG_DFL);
    ::raise(number);  // blocked until this returns; then it ends the process
  }
}

}  // namespace

StopSignals::StopSignals(Requests& requests) {
  asked = &requests;
  parent = ::getppid();
  for (const int number : kStopping) handle(number, on_signal);
  handle(SIGUSR1, on_signal);
  // One that a launcher got before its ranks listened may have been lost on its way to them.
  if (signal_received == 0 && signal_of_launcher() != 0) on_signal(SIGUSR2);
}

StopSignals::~StopSignals() {
  for (const int number : kStopping) handle(number, SIG_DFL);
  handle(SIGUSR1, SIG_IGN);  // too late to save again; nothing to die of
  asked = nullptr;
}

int StopSignals::received() { return signal_received; }

}  // namespace kuafu
