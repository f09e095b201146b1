// SPDX-License-Identifier: Apache-2.0
#include "tests/app/process.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <thread>

#include "kuafu/base/errors.h"
#include "tests/record/support.h"

namespace kuafu::test {
namespace {

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::string temporary_file() {
  std::string pattern = (std::filesystem::temp_directory_path() / "kuafu-out-XXXXXX").string();
  const int file = ::mkstemp(pattern.data());
  KUAFU_CHECK(file >= 0, "no temporary file at ", pattern);
  ::close(file);
  return pattern;
}

}  // namespace

Process::Process(const std::vector<std::string>& words, const Environment& environment)
    : out_path_(temporary_file()), err_path_(temporary_file()), began_s_(now_s()) {
  process_ = ::fork();
  KUAFU_CHECK(process_ >= 0, "cannot start a process");
  if (process_ > 0) return;
  for (const auto& [name, value] : environment) ::setenv(name.c_str(), value.c_str(), 1);
  ::dup2(::open(out_path_.c_str(), O_WRONLY), 1);
  ::dup2(::open(err_path_.c_str(), O_WRONLY), 2);
  std::vector<char*> pointers;
  for (const auto& word : words) pointers.push_back(const_cast<char*>(word.c_str()));
  pointers.push_back(nullptr);
  ::execvp(pointers[0], pointers.data());
  ::_exit(127);
}

Process::~Process() {
  if (process_ > 0) {
    ::kill(process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
  }
  ::unlink(out_path_.c_str());
  ::unlink(err_path_.c_str());
}

void Process::signal(int number) const { ::kill(process_, number); }

Output Process::wait() {
  int status = 0;
  ::waitpid(process_, &status, 0);
  process_ = -1;
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return {code, read_text(out_path_), read_text(err_path_), now_s() - began_s_};
}

std::string built(const std::string& name) {
  const auto folder = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  return (folder / name).lexically_normal().string();
}

Output front(const std::vector<std::string>& arguments, const Process::Environment& environment) {
  std::vector<std::string> words = {built("kuafu")};
  words.insert(words.end(), arguments.begin(), arguments.end());
  return Process(words, environment).wait();
}

std::vector<pid_t> processes_with(const std::string& words) {
  std::vector<pid_t> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const pid_t process = std::atoi(entry.path().filename().c_str());
    if (process <= 0 || process == ::getpid()) continue;
    if (read_text(entry.path() / "cmdline").find(words) != std::string::npos)
      found.push_back(process);
  }
  return found;
}

void pause_ms(int milliseconds) {
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
}

}  // namespace kuafu::test
