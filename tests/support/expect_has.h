// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <string>

namespace kuafu::test {

/// A message or page has these words.
inline void expect_has(const std::string& whole, const std::string& part) {
  EXPECT_NE(whole.find(part), std::string::npos) << "no \"" << part << "\" in: " << whole;
}

}  // namespace kuafu::test
