// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

namespace kuafu::test {

/// What a finished program left.
struct Output {
  int code = -1;  ///< exit status; 128 + signal where one killed it
  std::string out, err;
  double wall_s = 0;
};

/// A program started beside the test; its output goes to files.
class Process {
 public:
  using Environment = std::vector<std::pair<std::string, std::string>>;

  explicit Process(const std::vector<std::string>& words, const Environment& environment = {});
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  void signal(int number) const;
  Output wait();

 private:
  pid_t process_ = -1;
  std::string out_path_, err_path_;
  double began_s_ = 0;
};

/// Path of a program or library of this build: "kuafu", "fake-worker".
std::string built(const std::string& name);

/// `kuafu` with these arguments, to its end.
Output front(const std::vector<std::string>& arguments,
             const Process::Environment& environment = {});

/// Processes whose command line has `words`, this one aside.
std::vector<pid_t> processes_with(const std::string& words);

/// Asks every few milliseconds until `condition` holds; false after ten seconds.
template <class Condition>
bool eventually(Condition condition);

void pause_ms(int milliseconds);

template <class Condition>
bool eventually(Condition condition) {
  for (int i = 0; i < 1000; ++i) {
    if (condition()) return true;
    pause_ms(10);
  }
  return false;
}

}  // namespace kuafu::test
