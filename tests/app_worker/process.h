// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "kuafu/record/files.h"
#include "kuafu/record/json.h"

// Starting programs and looking at how they end.
namespace kuafu::tests {

using Arguments = std::vector<std::string>;

/// How a program ended.
struct Ended {
  int code = -1;       ///< exit code; -signal where a signal ended it
  std::string output;  ///< stdout and stderr
  double seconds = 0;
  int64_t peak_bytes = 0;  ///< largest resident set of the process itself
};

/// A program under way. Its whole process group is killed with it.
class Child {
 public:
  /// `environment` is added to this process's own.
  Child(const Arguments& command, const std::map<std::string, std::string>& environment = {});
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  int pid() const { return pid_; }
  /// What it has written so far.
  std::string output() const;
  /// Waits; after `limit` the program is killed and the code is -9.
  Ended wait(std::chrono::seconds limit = std::chrono::seconds(120));

 private:
  int pid_ = -1;
  File out_;
  std::chrono::steady_clock::time_point start_;
};

/// A folder of its own for one test, removed at its end.
class Folder {
 public:
  Folder();
  ~Folder();
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string path(const std::string& name) const { return path_ + "/" + name; }
  /// Writes a file and returns its path.
  std::string write(const std::string& name, const std::string& content) const;

 private:
  std::string path_;
};

/// The file of a target of this build: "bin/kuafu-worker".
std::string built(const std::string& file);

/// Processes whose environment holds NAME=value.
std::vector<int> processes_with(const std::string& name, const std::string& value);

/// Polls `holds` until it does, for at most `limit`.
bool eventually(const std::function<bool()>& holds, std::chrono::seconds limit);

/// kuafu-worker run PLAN --json FILE and more.
struct Ran : Ended {
  Json document;  ///< null where none was written
};
Ran run_worker(const std::string& plan, const Arguments& more = {}, const Arguments& launcher = {});

/// The same of any program of this build that understands it, such as "bin/kuafu".
Ran run_program(const std::string& program, const std::string& plan, const Arguments& more,
                const Arguments& launcher, const std::map<std::string, std::string>& environment);

/// {"parallel.data=2"} -> --set parallel.data=2, behind `more`.
Arguments set(const Arguments& settings, Arguments more = {});

/// What `kuafu-worker explain` prints of kSmallPlan with more options; its exit code must be `code`.
std::string explained(const Arguments& more, int code);

/// All bytes of a file, and its lines; empty where there is none.
std::string content_of(const std::string& file);
std::vector<std::string> lines_of(const std::string& file);

/// `kuafu run` of kSmallPlan with more options.
Ran run_front(const Arguments& more);

/// Starts so many MPI ranks of what follows.
Arguments mpirun(int ranks);

/// A small plan on synthetic data: 2 layers, hidden 32, 4 heads, sequence 16, batch 8, 3 steps,
/// f32.
inline constexpr const char* kSmallPlan = R"([model]
layers = 2
hidden = 32
heads = 4
vocab = 64
sequence = 16
[data]
kind = "synthetic"
[train]
batch = 8
steps = 3
validation_batches = 1
)";

}  // namespace kuafu::tests
