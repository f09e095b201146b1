// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <typeinfo>
#include <vector>

namespace kuafu {

/// What `body` throws; fails the test where it throws nothing or another type than E.
template <class E, class Body>
std::string message_of(const Body& body) {
  try {
    body();
  } catch (const E& error) {
    EXPECT_TRUE(typeid(error) == typeid(E)) << "a subclass of the expected type: " << error.what();
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another type of error: " << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return {};
}

/// Every part occurs in the message.
inline void expect_says(const std::string& message, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    EXPECT_NE(message.find(part), std::string::npos) << "no <" << part << "> in: " << message;
  }
}

}  // namespace kuafu
