// SPDX-License-Identifier: Apache-2.0
#include "kuafu/base/xxh64.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

namespace kuafu {
namespace {

std::string hash_of(const std::string& words) {
  return hex_digits(xxh64({reinterpret_cast<const uint8_t*>(words.data()), words.size()}));
}

// Values of the reference implementation (xxhsum -H64).
TEST(Xxh64, IsTheFunctionOfThatName) {
  EXPECT_EQ(hash_of(""), "ef46db3751d8e999");
  EXPECT_EQ(hash_of("a"), "d24ec4f1a98c6e5b");
  EXPECT_EQ(hash_of("abc"), "44bc2cf5ad770999");
  EXPECT_EQ(hash_of("The quick brown fox jumps over the lazy dog"), "0b242d361fda71bc");
}

TEST(Xxh64, SeesEveryByteAndTheLength) {
  std::set<std::string> seen;
  for (size_t size = 0; size <= 67; ++size) seen.insert(hash_of(std::string(size, '\0')));
  EXPECT_EQ(seen.size(), 68u);
  for (size_t at = 0; at < 67; ++at) {
    std::string one(67, '\0');
    one[at] = 1;
    EXPECT_TRUE(seen.insert(hash_of(one)).second) << at;
  }
}

}  // namespace
}  // namespace kuafu
