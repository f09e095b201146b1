// SPDX-License-Identifier: Apache-2.0
#include "app/kuafu/forwarded_output.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "kuafu/base/errors.h"

namespace kuafu {
namespace {

constexpr int kPauseMs = 100;  // between looks at whether the child is there

/// The error that kept some of it from being written; 0 for none.
int write_on(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(STDOUT_FILENO, bytes.data(), bytes.size());
    if (written < 0 && errno != EINTR) return errno;
    if (written > 0) bytes.remove_prefix(static_cast<size_t>(written));
  }
  return 0;
}

}  // namespace

ForwardedOutput::ForwardedOutput() {
  std::array<int, 2> ends{};
  KUAFU_REQUIRE(::pipe2(ends.data(), O_CLOEXEC) == 0, "cannot make a pipe: ", std::strerror(errno));
  in_ = File(ends[0]);
  out_ = File(ends[1]);
}

ForwardedOutput::~ForwardedOutput() { finish(); }

void ForwardedOutput::be_writer() const { ::dup2(out_.descriptor(), STDOUT_FILENO); }

void ForwardedOutput::begin(std::function<void()> on_closed) {
  out_.close();
  ::signal(SIGPIPE, SIG_IGN);  // an error of write()
  thread_ = std::thread([this, on_closed = std::move(on_closed)] { forward(on_closed); });
}

void ForwardedOutput::finish() {
  has_ended_ = true;
  if (thread_.joinable()) thread_.join();
}

// Ends with the child where something that it has left keeps the pipe open.
void ForwardedOutput::forward(const std::function<void()>& on_closed) {
  std::array<char, 4096> bytes{};
  while (true) {
    const bool is_last_look = has_ended_;
    pollfd ready{.fd = in_.descriptor(), .events = POLLIN, .revents = 0};
    if (::poll(&ready, 1, kPauseMs) <= 0) {
      if (is_last_look) return;
      continue;
    }
    const ssize_t count = ::read(in_.descriptor(), bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return;
    if (!is_whole_) continue;
    const int error = write_on({bytes.data(), static_cast<size_t>(count)});
    is_whole_ = error == 0;
    if (error == EPIPE) on_closed();
  }
}

}  // namespace kuafu
