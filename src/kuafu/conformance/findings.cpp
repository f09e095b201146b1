// SPDX-License-Identifier: Apache-2.0
#include "kuafu/conformance/findings.h"

#include <exception>

#include "kuafu/conformance/samples.h"
#include "kuafu/engine/plain_words.h"

namespace kuafu::conformance {

void Notes::fail(const std::string& what) {
  const std::lock_guard lock(mutex_);
  if (first_.empty()) first_ = what.empty() ? "failed" : what;
}

std::string Notes::first() const {
  const std::lock_guard lock(mutex_);
  return first_;
}

void Notes::expect_close(const Tensor& mine, const Tensor& expected, double limit,
                         const std::string& what) {
  const double error = relative_error(mine, expected);
  expect(error <= limit, what, ": relative error ", error, ", tolerance ", limit);
}

void Notes::expect_same(const Tensor& mine, const Tensor& expected, const std::string& what) {
  expect(is_same(mine, expected), what, ": bits differ, relative error ",
         relative_error(mine, expected));
}

void Findings::begin(const Finding& blank) const {
  if (tell_.begins) tell_.begins(blank);
}

Finding Findings::run(const Finding& blank, const std::function<void(Notes& notes)>& body) {
  begin(blank);
  add(found(blank, body));
  return all_.back();
}

Finding Findings::run_or_refuse(const Finding& blank,
                                const std::function<void(Notes& notes)>& body) {
  begin(blank);
  add(found_or_refused(blank, body));
  return all_.back();
}

void Findings::add(Finding finding) {
  has_failed_ = has_failed_ || !finding.is_ok;
  all_.push_back(std::move(finding));
  if (tell_.ended) tell_.ended(all_.back());
}

void Findings::add(std::vector<Finding> told) {
  for (Finding& finding : told) {
    has_failed_ = has_failed_ || !finding.is_ok;
    all_.push_back(std::move(finding));
  }
}

Finding found(Finding blank, const std::function<void(Notes& notes)>& body) {
  Notes notes;
  try {
    body(notes);
  } catch (const std::exception& error) {
    notes.fail(text("threw: ", plain_words(error)));
  } catch (...) {
    notes.fail("threw something that is no std::exception");
  }
  blank.detail = notes.first();
  blank.is_ok = blank.detail.empty();
  return blank;
}

Finding found_or_refused(Finding blank, const std::function<void(Notes& notes)>& body) {
  std::string refusal;
  Finding f = found(blank, [&](Notes& notes) {
    try {
      body(notes);
    } catch (const Refused& error) {
      refusal = error.what();
      notes.expect(!refusal.empty(), "refused without a reason");
    }
  });
  if (f.is_ok) f.refusal = refusal;
  return f;
}

}  // namespace kuafu::conformance
