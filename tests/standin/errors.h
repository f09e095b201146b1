// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <initializer_list>
#include <string>

namespace kuafu::standin {

/// The words of the E that a run ends with, soon: nothing hangs.
template <class E>
std::string error_of(const std::function<void()>& run) {
  const auto start = std::chrono::steady_clock::now();
  std::string what = "no error";
  try {
    run();
  } catch (const E& e) {
    what = e.what();
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
  return what;
}

inline void expect_contains(const std::string& message, std::initializer_list<const char*> parts) {
  for (const char* part : parts) {
    EXPECT_NE(message.find(part), std::string::npos) << "\"" << part << "\" is not in: " << message;
  }
}

}  // namespace kuafu::standin
