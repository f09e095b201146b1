// SPDX-License-Identifier: Apache-2.0
#include "app/worker/messages.h"

#include <sys/socket.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "kuafu/base/errors.h"

namespace kuafu {
namespace {

constexpr size_t kLongest = 128 << 10;  ///< bytes; below the least buffer that Linux gives sockets

}  // namespace

std::pair<File, File> make_line() {
  int ends[2];
  KUAFU_REQUIRE(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0,
                "no line between processes: ", std::strerror(errno));
  return {File(ends[0]), File(ends[1])};
}

bool send(const File& line, const std::string& message) {
  const size_t n = std::min(message.size(), kLongest);
  ssize_t sent = 0;
  do {
    sent = ::send(line.descriptor(), message.data(), n, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent >= 0;
}

std::optional<std::string> receive(const File& line) {
  std::string message(kLongest, '\0');
  ssize_t n = 0;
  do {
    n = ::recv(line.descriptor(), message.data(), message.size(), 0);
  } while (n < 0 && errno == EINTR);
  if (n <= 0) return {};
  message.resize(static_cast<size_t>(n));
  return message;
}

std::string ended(int status) {
  return WIFSIGNALED(status) ? text("was ended by signal ", WTERMSIG(status))
                             : text("ended with ", WEXITSTATUS(status));
}

}  // namespace kuafu
