// SPDX-License-Identifier: Apache-2.0
#include "app/kuafu/programs.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "kuafu/base/build_folders.h"
#include "kuafu/base/build_info.h"
#include "kuafu/base/errors.h"
#include "kuafu/base/suggest.h"
#include "kuafu/base/units.h"
#include "kuafu/record/files.h"

namespace kuafu {
namespace {

std::vector<char*> pointers(const std::vector<std::string>& words) {
  std::vector<char*> out;
  for (const auto& word : words) out.push_back(const_cast<char*>(word.c_str()));
  out.push_back(nullptr);
  return out;
}

std::string in_source(const std::string& path) {
  return std::string(build_info::kSourceDir) + "/" + path;
}

/// Runs a program that says nothing. Its exit status, as of run_and_wait().
int run_silently(const std::vector<std::string>& words) {
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  for (const int output : {STDOUT_FILENO, STDERR_FILENO}) {
    ::posix_spawn_file_actions_addopen(&actions, output, "/dev/null", O_WRONLY, 0);
  }
  pid_t process = 0;
  const int result = ::posix_spawnp(&process, words.front().c_str(), &actions, nullptr,
                                    pointers(words).data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  int status = 0;
  while (result == 0 && ::waitpid(process, &status, 0) < 0 && errno == EINTR) {
  }
  if (result != 0) return 127;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/// A program that is loaded into too little memory ends before its first line, without a cause.
void require_memory_for(const std::string& worker) {
  for (const auto& [kind, option] : {std::pair{RLIMIT_AS, "-v"}, {RLIMIT_DATA, "-d"}}) {
    rlimit limit{};
    if (::getrlimit(kind, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) continue;
    if (run_silently({worker, "list", "--names"}) == 0) return;
    throw TooLittleMemory(text("out of memory: ", worker, " cannot be loaded in ",
                               print_bytes(static_cast<int64_t>(limit.rlim_cur)), " (ulimit ",
                               option, " ", limit.rlim_cur / 1024,
                               "); allow more, or none: ulimit ", option, " unlimited"));
  }
}

/// With fewer, libraries and launchers end in words of their own.
void require_open_files() {
  constexpr rlim_t kFewest = 64;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  KUAFU_REQUIRE(limit.rlim_cur >= kFewest, "a process may have ", limit.rlim_cur,
                " files open here (ulimit -n); Kuafu needs ", kFewest, " or more: ulimit -n 1024");
}

/// With less, ranks crash in LibTorch without a word of why: threads have a stack of this size too.
void require_stack() {
  constexpr rlim_t kLeast = rlim_t{256} << 10;
  rlimit limit{};
  if (::getrlimit(RLIMIT_STACK, &limit) != 0) return;
  KUAFU_REQUIRE(limit.rlim_cur >= kLeast, "a thread may have a stack of ",
                print_bytes(static_cast<int64_t>(limit.rlim_cur)),
                " here (ulimit -s); Kuafu needs ", print_bytes(kLeast), " or more: ulimit -s 8192");
}

}  // namespace

std::string worker_path() {
  require_open_files();
  require_stack();
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::string worker = (self.parent_path() / "kuafu-worker").string();
  KUAFU_REQUIRE(::access(worker.c_str(), X_OK) == 0, worker, " is not there",
                build_info::kTorch.found
                    ? ": build it (ninja kuafu-worker), or run the whole build"
                    : text(": this build has no LibTorch (", build_info::kTorch.detail, ")"));
  require_memory_for(worker);
  return worker;
}

std::vector<std::string> mpi_launcher() {
  const std::string script = in_source("scripts/mpirun.sh");
  if (::access(script.c_str(), X_OK) != 0) return {"mpirun"};
  return {script, "--exec"};
}

std::vector<std::string> python_script(const std::string& script, std::string& why_not) {
  const char* given = std::getenv("KUAFU_PYTHON");
  const std::string python = given != nullptr ? given : in_source(".venv/bin/python");
  const std::string path = in_source(script);
  if (given == nullptr && ::access(python.c_str(), X_OK) != 0) {
    why_not = text(python, " is not there (scripts/setup.sh makes it; or set KUAFU_PYTHON)");
    return {};
  }
  if (::access(path.c_str(), R_OK) != 0) {
    why_not = text(path, " is not there");
    return {};
  }
  return {python, path};
}

std::string baselines_folder() { return in_source("baselines"); }

void become(const std::vector<std::string>& words) {
  ::execvp(words.front().c_str(), pointers(words).data());
  throw ConfigError(text("cannot start ", words.front(), ": ", std::strerror(errno)));
}

int run_and_wait(const std::vector<std::string>& words) {
  pid_t process = 0;
  const int result = ::posix_spawnp(&process, words.front().c_str(), nullptr, nullptr,
                                    pointers(words).data(), environ);
  KUAFU_REQUIRE(result == 0, "cannot start ", words.front(), ": ", std::strerror(result));
  int status = 0;
  while (::waitpid(process, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::string output_of(const std::vector<std::string>& words) {
  int ends[2];
  KUAFU_REQUIRE(::pipe2(ends, O_CLOEXEC) == 0, "cannot make a pipe: ", std::strerror(errno));
  const File read(ends[0]);
  File write(ends[1]);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, write.descriptor(), STDOUT_FILENO);
  pid_t process = 0;
  const int result = ::posix_spawnp(&process, words.front().c_str(), &actions, nullptr,
                                    pointers(words).data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  KUAFU_REQUIRE(result == 0, "cannot start ", words.front(), ": ", std::strerror(result));
  write = File();
  std::string out;
  std::array<char, 4096> buffer{};
  for (ssize_t got = 1; got != 0;) {
    got = ::read(read.descriptor(), buffer.data(), buffer.size());
    if (got < 0 && errno != EINTR) break;
    if (got > 0) out.append(buffer.data(), static_cast<size_t>(got));
  }
  int status = 0;
  while (::waitpid(process, &status, 0) < 0 && errno == EINTR) {
  }
  KUAFU_REQUIRE(WIFEXITED(status) && WEXITSTATUS(status) == 0, join(words, " "), " failed");
  return out;
}

std::string first_line_of(const std::string& command) {
  FILE* pipe = ::popen((command + " 2>/dev/null").c_str(), "r");
  if (pipe == nullptr) return "";
  std::array<char, 512> buffer{};
  std::string line;
  if (std::fgets(buffer.data(), buffer.size(), pipe) != nullptr) line = buffer.data();
  while (std::fgets(buffer.data(), buffer.size(), pipe) != nullptr) {
  }
  const int status = ::pclose(pipe);
  if (status != 0) return "";
  line.erase(line.find_last_not_of(" \n\r") + 1);
  return line;
}

}  // namespace kuafu
