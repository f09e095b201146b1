// SPDX-License-Identifier: Apache-2.0
#include "app/worker/mpi_ranks.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <thread>

#include "app/worker/document.h"
#include "app/worker/messages.h"
#include "kuafu/base/build_folders.h"
#include "kuafu/engine/proof/certificate_text.h"
#include "kuafu/record/json_text.h"

namespace kuafu {
namespace {

using std::chrono::steady_clock;

constexpr int64_t kPlansOfRanks = 100;
constexpr int kLongestStart_ms = 120'000;
constexpr auto kLongestEnd = std::chrono::seconds(10);

/// A name without a file, which ends with its socket.
File open_door(const std::string& name) {
  sockaddr_un at{};
  at.sun_family = AF_UNIX;
  std::copy(name.begin(), name.end(), at.sun_path + 1);
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  File door(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  const bool is_open = door.is_open() &&
                       ::bind(door.descriptor(), reinterpret_cast<sockaddr*>(&at), size) == 0 &&
                       ::listen(door.descriptor(), 256) == 0;
  KUAFU_REQUIRE(is_open, "no socket for MPI ranks: ", std::strerror(errno));
  return door;
}

[[noreturn]] void be_launcher(const std::vector<std::string>& words, int output, pid_t owner) {
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);  // mpirun then ends its ranks
  if (::getppid() != owner) ::_exit(1);
  const int input = ::open("/dev/null", O_RDONLY);
  ::dup2(input, STDIN_FILENO);
  ::dup2(output, STDOUT_FILENO);
  ::dup2(output, STDERR_FILENO);
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  ::execv(arguments[0], arguments.data());
  ::_exit(127);
}

/// Names this process and, once it has ended, no other.
File handle_of(pid_t process) {
  return File(static_cast<int>(::syscall(SYS_pidfd_open, process, 0)));
}

/// Until a line has something to read.
void wait_until(steady_clock::time_point end, std::vector<pollfd>& lines) {
  while (true) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(end - steady_clock::now());
    if (left.count() <= 0) throw RankLost("MPI ranks that do not end");
    if (::poll(lines.data(), lines.size(), static_cast<int>(left.count())) > 0) return;
  }
}

/// Throws what a rank threw.
[[noreturn]] void rethrow(const Json& error) {
  const std::string what = error.at("what"), type = error.at("error");
  if (type == "out_of_memory") {
    throw OutOfMemory(error.at("rank"), error.at("requested"), error.at("live"),
                      error.at("budget"));
  }
  if (type == "refused") throw Refused(what);
  if (type == "unsaved") throw SaveFailed(what);
  if (type == "config") throw ConfigError(what);
  throw Error(what);
}

}  // namespace

void MpiRanks::prepare(int64_t ranks) {
  const auto started = static_cast<int64_t>(ranks_.size());
  if (num_plans_ == kPlansOfRanks || ranks > started) stop();
  if (launcher_ < 0) start(std::max(options_.ranks, ranks));
  ++num_plans_;
}

void MpiRanks::start(int64_t ranks) {
  static int num_started = 0;
  const std::string name = text("kuafu-ranks-", ::getpid(), "-", num_started++);
  const File door = open_door(name);
  std::vector<std::string> words = {
      text(build_info::kSourceDir, "/scripts/mpirun.sh"),       "--exec", "-n", text(ranks),
      std::filesystem::read_symlink("/proc/self/exe").string(), "ranks",  name};
  if (options_.collectives == MpiCollectives::kNative) {
    words.insert(words.end(), {"--mpi-collectives", "native"});
  }
  for (const std::string& plugin : options_.plugins) {
    words.insert(words.end(), {"--plugin", plugin});
  }
  output_ = File(::memfd_create("output", MFD_CLOEXEC));
  const pid_t owner = ::getpid();
  launcher_ = ::fork();
  KUAFU_REQUIRE(launcher_ >= 0, "no process for mpirun: ", std::strerror(errno));
  if (launcher_ == 0) be_launcher(words, output_.descriptor(), owner);
  ranks_.resize(static_cast<size_t>(ranks));
  try {
    accept_ranks(door);
  } catch (...) {
    stop();
    throw;
  }
}

void MpiRanks::accept_ranks(const File& door) {
  for (size_t met = 0; met < ranks_.size(); ++met) {
    pollfd waiting{door.descriptor(), POLLIN, 0};
    KUAFU_REQUIRE(::poll(&waiting, 1, kLongestStart_ms) > 0,
                  "MPI ranks do not start: ", last_words());
    File line(::accept4(door.descriptor(), nullptr, nullptr, SOCK_CLOEXEC));
    ucred who{};
    socklen_t size = sizeof who;
    ::getsockopt(line.descriptor(), SOL_SOCKET, SO_PEERCRED, &who, &size);
    const auto rank = receive(line);
    KUAFU_REQUIRE(rank.has_value(), "an MPI rank ended at its start: ", last_words());
    ranks_.at(std::stoul(*rank)) = {std::move(line), handle_of(who.pid)};
  }
}

std::vector<RankResult> MpiRanks::run(const Plan& plan, const TrialOptions& options) const {
  const auto n = static_cast<size_t>(num_ranks(plan));
  KUAFU_REQUIRE(n <= ranks_.size(), "a plan of ", n, " ranks; there are ", ranks_.size());
  const SaveOptions& save = options.checkpoint;
  const std::string words = json_line({{"plan", to_toml(plan)},
                                       {"is_certified", options.is_certified},
                                       {"checkpoint", save.folder},
                                       {"every", save.every},
                                       {"from", save.from},
                                       {"resumes", save.resumes}});
  // All ranks of MPI make the plan's world together.
  for (const Rank& rank : ranks_) {
    if (!send(rank.line, words)) throw RankDied("an MPI rank has ended: " + last_words());
  }
  std::vector<RankResult> results(n);
  Certificate certificate;
  std::vector<pollfd> lines;
  for (size_t r = 0; r < n; ++r) lines.push_back({ranks_[r].line.descriptor(), POLLIN, 0});
  const auto end = steady_clock::now() + options.timeout;
  for (size_t left = n; left > 0; --left) {
    wait_until(end, lines);
    const auto ready = std::find_if(lines.begin(), lines.end(),
                                    [](const pollfd& line) { return line.revents != 0; });
    const auto r = static_cast<size_t>(ready - lines.begin());
    lines[r].fd = -1;
    const auto answer = receive(ranks_[r].line);
    if (!answer) throw RankDied(text("the process of rank ", r, " ended: ", last_words()));
    const Json j = Json::parse(*answer);
    if (j.contains("error")) rethrow(j);
    results[r] = rank_result_from(j.at("result"));
    results[r].skipped = j.at("skipped").get<std::vector<int64_t>>();
    if (r == 0) certificate = certificate_from(j.at("certificate"));
  }
  for (RankResult& result : results) result.certificate = certificate;
  return results;
}

std::string MpiRanks::last_words() const {
  std::string words(64 << 10, '\0');
  const off_t size = ::lseek(output_.descriptor(), 0, SEEK_CUR);
  const off_t from = std::max<off_t>(0, size - static_cast<off_t>(words.size()));
  const ssize_t n = ::pread(output_.descriptor(), words.data(), words.size(), from);
  words.resize(static_cast<size_t>(std::max<ssize_t>(n, 0)));
  return words.empty() ? "it printed nothing" : words;
}

void MpiRanks::stop() {
  for (const Rank& rank : ranks_) {
    if (rank.process.is_open()) {
      ::syscall(SYS_pidfd_send_signal, rank.process.descriptor(), SIGKILL, nullptr, 0);
    }
  }
  ranks_.clear();
  num_plans_ = 0;
  if (launcher_ < 0) return;
  ::kill(launcher_, SIGTERM);
  const auto end = steady_clock::now() + kLongestEnd;
  while (::waitpid(launcher_, nullptr, WNOHANG) == 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    if (steady_clock::now() > end) ::kill(launcher_, SIGKILL);
  }
  launcher_ = -1;
}

}  // namespace kuafu
