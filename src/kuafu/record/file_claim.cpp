// SPDX-License-Identifier: Apache-2.0
#include "kuafu/record/file_claim.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <filesystem>
#include <system_error>
#include <thread>

#include "kuafu/base/errors.h"
#include "kuafu/base/xxh64.h"

namespace kuafu {

FileClaim::FileClaim(std::string_view option, const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (path.empty() || (fs::exists(path, error) && !fs::is_regular_file(path, error))) return;
  // A relative name that is not there yet would stay one.
  const std::string whole = fs::absolute(path, error).string();
  const std::string file = fs::weakly_canonical(whole, error).string();
  const std::string name = "kuafu-file-" + hash_digits(error ? whole : file);
  sockaddr_un at{};
  at.sun_family = AF_UNIX;  // a name without a file, which ends with its socket
  std::copy(name.begin(), name.end(), at.sun_path + 1);
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  claim_ = File(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!claim_.is_open()) return;
  for (int waited = 0; ::bind(claim_.descriptor(), reinterpret_cast<sockaddr*>(&at), size) != 0;) {
    if (errno != EADDRINUSE) return;
    KUAFU_REQUIRE(++waited < 30, option, " ", path, ": another run writes it; give ",
                  "another name, or wait until that run has ended");
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

}  // namespace kuafu
