// SPDX-License-Identifier: Apache-2.0
#include "kuafu/experiment/child.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <cerrno>

#include "kuafu/base/errors.h"
#include "tests/record/support.h"

namespace kuafu {
namespace {

using End = ChildResult::End;

/// Runs a shell line; its output and errors stay in `folder`.
ChildResult run(
    const test::TemporaryFolder& folder, const std::string& line, double timeout_s,
    const std::function<bool()>& tick = [] { return true; }) {
  return run_child({{"sh", "-c", line}, folder / "out", folder / "err", timeout_s}, tick);
}

TEST(Child, TellsItsExitCode) {
  const test::TemporaryFolder folder;
  const ChildResult result = run(folder, "echo said; echo complained >&2; exit 7", 60);
  EXPECT_EQ(result.end, End::kExited);
  EXPECT_EQ(result.code, 7);
  EXPECT_EQ(test::read_text(folder / "out"), "said\n");
  EXPECT_EQ(test::read_text(folder / "err"), "complained\n");
}

TEST(Child, TellsTheSignalThatKilledIt) {
  const test::TemporaryFolder folder;
  const ChildResult result = run(folder, "kill -SEGV $$", 60);
  EXPECT_EQ(result.end, End::kSignalled);
  EXPECT_EQ(result.code, SIGSEGV);
}

TEST(Child, TellsThatAProgramIsMissing) {
  const test::TemporaryFolder folder;
  const ChildResult result =
      run_child({{folder / "nothing"}, folder / "out", folder / "err", 60}, [] { return true; });
  EXPECT_EQ(result.end, End::kNotStarted);
  EXPECT_EQ(result.code, ENOENT);
}

TEST(Child, EndsWithItsTime) {
  const test::TemporaryFolder folder;
  const ChildResult result = run(folder, "sleep 1000", 0.2);
  EXPECT_EQ(result.end, End::kTimedOut);
  EXPECT_GE(result.wall_s, 0.2);
  EXPECT_LT(result.wall_s, 10);
}

TEST(Child, EndsWhenItsOwnerSaysSo) {
  const test::TemporaryFolder folder;
  EXPECT_EQ(run(folder, "sleep 1000", 60, [] { return false; }).end, End::kCancelled);
}

TEST(Child, TakesItsDescendantsWithItHoweverTheyHid) {
  const test::TemporaryFolder folder;
  const std::string daemon = folder / "daemon";
  const std::string line = "setsid sh -c 'echo $$ > " + daemon + "; exec sleep 1000' & " +
                           "while [ ! -s " + daemon + " ]; do sleep 0.01; done";
  for (const char* ending : {"; exit 0", "; kill -9 $$", "; sleep 1000"}) {
    test::write_text(daemon, "");
    run(folder, line + ending, 2);
    const pid_t process = std::stoi(test::read_text(daemon));
    EXPECT_EQ(::kill(process, 0), -1) << "after \"" << ending << "\"";
    EXPECT_EQ(errno, ESRCH);
  }
}

TEST(Child, ReadsNothingFromTheTerminal) {
  const test::TemporaryFolder folder;
  EXPECT_EQ(run(folder, "cat", 60).end, End::kExited);
}

}  // namespace
}  // namespace kuafu
