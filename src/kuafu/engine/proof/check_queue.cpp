// SPDX-License-Identifier: Apache-2.0
#include "kuafu/engine/proof/check_queue.h"

#include <algorithm>
#include <exception>
#include <system_error>
#include <utility>

#include <ATen/Parallel.h>

#include "kuafu/engine/plain_words.h"
#include "kuafu/oracle/oracle.h"

namespace kuafu {
namespace {

void (*start_of_checks)() = nullptr;

std::string verdict_so_far(const Proof& proof) {
  return proof.verdict == "equal" && !proof.holds() ? "different" : proof.verdict;
}

/// An error of the reference, or of a plug-in's formula, is no rank's fault and costs no results: it
/// is the reason why nothing is proven.
Proof run_check(const CheckQueue::Check& check, const std::string& told) {
  Proof part;
  part.verdict = told;
  if (!check || told == "not_run") return part;
  try {
    check(part);
  } catch (const oracle::WrongRoutes& error) {
    part.refute(error.what());
  } catch (const std::exception& error) {
    part.give_up(words_of_oracle(error));
  } catch (...) {
    part.give_up(kNoException);
  }
  return part;
}

}  // namespace

void set_start_of_checks(void (*start)()) { start_of_checks = start; }

CheckQueue::CheckQueue(int64_t threads)
    : threads_(static_cast<size_t>(std::max<int64_t>(threads, 1))) {}

void CheckQueue::add(Proof& to, const Check& check, std::vector<std::string> refutations,
                     bool runs_beside_others) {
  while (pending_.size() >= threads_) take_first();
  if (!runs_beside_others) finish();
  const std::string told = verdict_so_far(to);
  const auto alone = [check, told] { return run_check(check, told); };
  const auto beside = [alone] {
    at::init_num_threads();  // one, as ranks have
    if (start_of_checks != nullptr) start_of_checks();
    return alone();
  };
  std::future<Proof> found;
  if (runs_beside_others && threads_ > 1) {
    try {
      found = std::async(std::launch::async, beside);
    } catch (const std::system_error&) {  // no thread to be had
    }
  }
  const bool is_beside = found.valid();
  if (!is_beside) found = std::async(std::launch::deferred, alone);
  pending_.push_back({&to, check, told, std::move(found), std::move(refutations)});
  if (!is_beside) finish();
}

void CheckQueue::finish() {
  while (!pending_.empty()) take_first();
}

bool CheckQueue::has_room(std::chrono::seconds patience) {
  while (pending_.size() >= threads_) {
    if (!is_first_done(patience)) return false;
    take_first();
  }
  return true;
}

bool CheckQueue::is_finished(std::chrono::seconds patience) {
  while (!pending_.empty()) {
    if (!is_first_done(patience)) return false;
    take_first();
  }
  return true;
}

bool CheckQueue::is_first_done(std::chrono::seconds patience) const {
  return pending_.front().found.wait_for(patience) != std::future_status::timeout;
}

// Later ones wait for what the first measures.
void CheckQueue::take_first() {
  Pending first = std::move(pending_.front());
  pending_.pop_front();
  Proof found = first.found.get();
  const std::string before = verdict_so_far(*first.to);
  if (before == "different" && first.told != before) found = run_check(first.check, before);
  if (before != "not_run") first.to->take(found);
  for (const std::string& words : first.refutations) first.to->refute(words);
}

}  // namespace kuafu
