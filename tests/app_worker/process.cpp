// SPDX-License-Identifier: Apache-2.0
#include "tests/app_worker/process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "kuafu/base/errors.h"

namespace kuafu::tests {
namespace {

std::string contents(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  KUAFU_REQUIRE(value != nullptr, name, " is not set; run the test through ctest");
  return value;
}

}  // namespace

Child::Child(const Arguments& command, const std::map<std::string, std::string>& environment) {
  std::string name = std::filesystem::temp_directory_path() / "kuafu-output-XXXXXX";
  out_ = File(::mkostemp(name.data(), O_CLOEXEC));
  KUAFU_REQUIRE(out_.is_open(), "cannot make ", name);
  ::unlink(name.c_str());  // however this test ends
  const int out = out_.descriptor();
  std::vector<char*> argv;
  for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  start_ = std::chrono::steady_clock::now();
  pid_ = ::fork();
  if (pid_ == 0) {
    ::setpgid(0, 0);
    ::dup2(out, 1);
    ::dup2(out, 2);
    for (const auto& [key, value] : environment) ::setenv(key.c_str(), value.c_str(), 1);
    ::execvp(argv[0], argv.data());
    ::_exit(127);
  }
  KUAFU_REQUIRE(pid_ > 0, "cannot fork");
}

Child::~Child() {
  if (pid_ > 0) {
    ::kill(-pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
}

std::string Child::output() const { return contents(text("/proc/self/fd/", out_.descriptor())); }

Ended Child::wait(std::chrono::seconds limit) {
  Ended ended;
  int status = 0;
  rusage usage{};
  while (::wait4(pid_, &status, WNOHANG, &usage) == 0) {
    if (std::chrono::steady_clock::now() - start_ > limit) ::kill(-pid_, SIGKILL);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  ended.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  ended.code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  ended.peak_bytes = int64_t{usage.ru_maxrss} * 1024;
  ended.output = output();
  pid_ = -1;
  return ended;
}

Folder::Folder() {
  std::string name = std::filesystem::temp_directory_path() / "kuafu-test-XXXXXX";
  KUAFU_REQUIRE(::mkdtemp(name.data()) != nullptr, "cannot make ", name);
  path_ = name;
}

Folder::~Folder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string Folder::write(const std::string& name, const std::string& content) const {
  std::ofstream(path(name)) << content;
  return path(name);
}

std::string built(const std::string& file) { return environment("KUAFU_BINARY_DIR") + "/" + file; }

std::vector<int> processes_with(const std::string& name, const std::string& value) {
  const std::string end(1, '\0'), wanted = end + name + "=" + value + end;
  std::vector<int> found;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", ignored)) {
    const std::string pid = entry.path().filename();
    if (pid.find_first_not_of("0123456789") != std::string::npos) continue;
    const std::string variables = contents(entry.path() / "environ");  // empty for a zombie
    if ((end + variables).find(wanted) != std::string::npos) found.push_back(std::stoi(pid));
  }
  return found;
}

bool eventually(const std::function<bool()>& holds, std::chrono::seconds limit) {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (!holds()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return true;
}

Ran run_worker(const std::string& plan, const Arguments& more, const Arguments& launcher) {
  return run_program("bin/kuafu-worker", plan, more, launcher, {});
}

Ran run_program(const std::string& program, const std::string& plan, const Arguments& more,
                const Arguments& launcher, const std::map<std::string, std::string>& environment) {
  const Folder folder;
  const std::string json = folder.path("document.json");
  Arguments command = launcher;
  for (const std::string& word : {built(program), std::string("run"),
                                  folder.write("plan.toml", plan), std::string("--json"), json}) {
    command.push_back(word);
  }
  command.insert(command.end(), more.begin(), more.end());
  Child child(command, environment);
  Ran ran;
  static_cast<Ended&>(ran) = child.wait();
  const std::string text = contents(json);
  if (!text.empty()) ran.document = Json::parse(text);
  return ran;
}

Arguments mpirun(int ranks) {
  return {environment("KUAFU_SOURCE_DIR") + "/scripts/mpirun.sh", "-n", std::to_string(ranks)};
}

Arguments set(const Arguments& settings, Arguments more) {
  for (const std::string& s : settings) more.insert(more.end(), {"--set", s});
  return more;
}

std::string explained(const Arguments& more, int code) {
  const Folder folder;
  Arguments words = {built("bin/kuafu-worker"), "explain", folder.write("plan.toml", kSmallPlan)};
  words.insert(words.end(), more.begin(), more.end());
  const Ended ended = Child(words).wait();
  EXPECT_EQ(ended.code, code) << ended.output;
  return ended.output;
}

std::string content_of(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::vector<std::string> lines_of(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

Ran run_front(const Arguments& more) { return run_program("bin/kuafu", kSmallPlan, more, {}, {}); }

}  // namespace kuafu::tests
