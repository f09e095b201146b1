// SPDX-License-Identifier: Apache-2.0
#include "app/worker/stop_signals.h"

#include <signal.h>

#include <array>

namespace kuafu {
namespace {

constexpr std::array kStopping = {SIGINT, SIGTERM, SIGHUP, SIGUSR2};

std::atomic<Requests*> asked = nullptr;
std::atomic<int> signal_received = 0;

void handle(int number, void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  ::sigaction(number, &action, nullptr);
}

void on_signal(int number) {
  Requests* const requests = asked.load();
  if (requests == nullptr) return;
  if (number == SIGUSR1) {
    requests->save();
    return;
  }
  signal_received = number;
  requests->stop(Stop::kSignal);
  for (const int stopping : kStopping) handle(stopping, SIG_DFL);  // the next one ends the process
}

}  // namespace

StopSignals::StopSignals(Requests& requests) {
  asked = &requests;
  for (const int number : kStopping) handle(number, on_signal);
  handle(SIGUSR1, on_signal);
}

StopSignals::~StopSignals() {
  for (const int number : kStopping) handle(number, SIG_DFL);
  handle(SIGUSR1, SIG_IGN);  // too late to save again; nothing to die of
  asked = nullptr;
}

int StopSignals::received() { return signal_received; }

}  // namespace kuafu
