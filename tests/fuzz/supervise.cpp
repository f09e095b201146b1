// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/supervise.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <functional>

#include "kuafu/base/errors.h"
#include "tests/fuzz/mutate.h"

namespace kuafu::fuzz {
namespace {

constexpr int kFound = 3;  ///< exit code of a child that has a finding

/// What a child tells while it runs, in memory that both see.
struct Shared {
  uint64_t at = 0, values = 0, refused = 0;
  char wrong[512] = {};
};

class SharedMemory {
 public:
  SharedMemory()
      : at_(::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
                   0)) {
    KUAFU_CHECK(at_ != MAP_FAILED, "no shared memory");
    new (at_) Shared();
  }
  ~SharedMemory() { ::munmap(at_, sizeof(Shared)); }
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;
  Shared& operator*() const { return *static_cast<Shared*>(at_); }

 private:
  void* at_;
};

void answer(const Target& target, const std::string& bytes, unsigned limit_s, Shared& shared) {
  ::alarm(limit_s);
  try {
    (answer_of(target, bytes) == Answer::kValue ? shared.values : shared.refused) += 1;
  } catch (const Finding& e) {
    std::strncpy(shared.wrong, e.what(), sizeof(shared.wrong) - 1);
    ::_exit(kFound);
  }
  ::alarm(0);
}

/// Runs `body` in a child; why it ended other than by itself, or empty.
std::string in_child(const std::function<void(Shared&)>& body, const SharedMemory& memory) {
  const pid_t child = ::fork();
  KUAFU_CHECK(child >= 0, "cannot fork");
  if (child == 0) {
    body(*memory);
    ::_exit(0);  // the folders of the targets are the parent's to remove
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return "";
  if (WIFEXITED(status) && WEXITSTATUS(status) == kFound) return (*memory).wrong;
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM) return "hang";
  return WIFSIGNALED(status) ? text("signal ", WTERMSIG(status))
                             : text("exit code ", WEXITSTATUS(status), " (a sanitizer's report)");
}

}  // namespace

ReaderOutcome run_range(const Target& target, const Range& range, unsigned limit_s) {
  const SharedMemory memory;
  const std::string wrong = in_child(
      [&](Shared& shared) {
        for (shared.at = range.begin; shared.at < range.end; ++shared.at) {
          answer(target, mutated(target.valid, range.seed, shared.at), limit_s, shared);
        }
      },
      memory);
  const Shared& shared = *memory;
  return {wrong.empty() ? range.end : shared.at + 1, shared.values, shared.refused, wrong};
}

std::string wrong_with(const Target& target, const std::string& bytes, unsigned limit_s) {
  const SharedMemory memory;
  return in_child([&](Shared& shared) { answer(target, bytes, limit_s, shared); }, memory);
}

std::string minimised(const Target& target, const std::string& bytes, const std::string& wrong,
                      unsigned limit_s) {
  constexpr int kMostTries = 400;
  const auto kind = [](const std::string& text) { return text.substr(0, 40); };
  std::string best = bytes;
  int tries = 0;
  for (size_t part = best.size() / 2; part > 0 && tries < kMostTries; part /= 2) {
    for (size_t at = 0; at < best.size() && tries < kMostTries;) {
      std::string shorter = best;
      shorter.erase(at, part);
      ++tries;
      if (kind(wrong_with(target, shorter, limit_s)) == kind(wrong)) {
        best = shorter;
      } else {
        at += part;
      }
    }
  }
  return best;
}

}  // namespace kuafu::fuzz
