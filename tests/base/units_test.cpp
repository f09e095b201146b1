// SPDX-License-Identifier: Apache-2.0
#include "kuafu/base/units.h"

#include <gtest/gtest.h>

#include <limits>

#include "kuafu/base/counts.h"
#include "kuafu/base/errors.h"
#include "tests/base/messages.h"

namespace kuafu {
namespace {

TEST(ParseBytes, KnowsDecimalAndBinaryUnits) {
  EXPECT_EQ(parse_bytes("6 GB"), 6'000'000'000);
  EXPECT_EQ(parse_bytes("512 MiB"), 512ll * 1024 * 1024);
  EXPECT_EQ(parse_bytes("3kB"), 3000);
  EXPECT_EQ(parse_bytes("3 KiB"), 3072);
  EXPECT_EQ(parse_bytes("2 TB"), 2'000'000'000'000);
  EXPECT_EQ(parse_bytes("2 tib"), 2ll << 40);
  EXPECT_EQ(parse_bytes(" 17 B "), 17);
  EXPECT_EQ(parse_bytes("4096"), 4096);
}

TEST(ParseBytes, RoundsFractionsDownToWholeBytes) {
  EXPECT_EQ(parse_bytes("1.5 GiB"), 1'610'612'736);
  EXPECT_EQ(parse_bytes("0.0019 kB"), 1);
}

TEST(ParseBytes, IsExactUpToTheLargestInteger) {
  EXPECT_EQ(parse_bytes("9223372036854775807"), std::numeric_limits<int64_t>::max());
  expect_says(message_of<ConfigError>([] { parse_bytes("9223372036854775808"); }), {"too large"});
  expect_says(message_of<ConfigError>([] { parse_bytes("9 000 000 TB"); }), {"no size"});
  expect_says(message_of<ConfigError>([] { parse_bytes("10000000 TB"); }), {"too large"});
}

TEST(ParseBytes, RefusesWhatIsNoSize) {
  for (const char* size : {"", "GB", "six GB", "6 XB", "-6 GB", "nan GB", "inf", "6 GB/s", "1e"}) {
    expect_says(message_of<ConfigError>([&] { parse_bytes(size); }),
                {std::string("\"") + size + "\"", "KiB, MiB", "\"6 GB\""});
  }
}

TEST(PrintBytes, HasThreeDigits) {
  EXPECT_EQ(print_bytes(0), "0 B");
  EXPECT_EQ(print_bytes(1023), "1023 B");
  EXPECT_EQ(print_bytes(1024), "1 KiB");
  EXPECT_EQ(print_bytes(1536), "1.5 KiB");
  EXPECT_EQ(print_bytes(512ll << 20), "512 MiB");
  EXPECT_EQ(print_bytes((1ll << 30) - 1), "1 GiB");
  EXPECT_EQ(print_bytes(-2048), "-2 KiB");
  EXPECT_EQ(print_bytes(std::numeric_limits<int64_t>::max()), "8 EiB");
}

TEST(PrintCount, HasThreeDigits) {
  EXPECT_EQ(print_count(0), "0");
  EXPECT_EQ(print_count(768), "768");
  EXPECT_EQ(print_count(999.6), "1 k");
  EXPECT_EQ(print_count(119296), "119 k");
  EXPECT_EQ(print_count(1.5437e12, "FLOP"), "1.54 TFLOP");
  EXPECT_EQ(print_count(12, "FLOP"), "12 FLOP");
}

TEST(PrintSeconds, PicksTheUnit) {
  EXPECT_EQ(print_seconds(0), "0 s");
  EXPECT_EQ(print_seconds(0.0132), "13.2 ms");
  EXPECT_EQ(print_seconds(1.5e-6), "1.5 us");
  EXPECT_EQ(print_seconds(2e-9), "2 ns");
  EXPECT_EQ(print_seconds(0.9999), "1 s");
  EXPECT_EQ(print_seconds(59.9), "59.9 s");
  EXPECT_EQ(print_seconds(125), "2 min 5 s");
  EXPECT_EQ(print_seconds(7260), "2 h 1 min");
  EXPECT_EQ(print_seconds(-0.5), "-500 ms");
}

TEST(Counts, ThatGrowBeyondTheirTypeAreRefused) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(product_of_counts({2, 3, 0, kMost}, "FLOPs"), 0);
  EXPECT_EQ(product_of_counts({kMost, 1}, "FLOPs"), kMost);
  EXPECT_THROW(product_of_counts({int64_t{1} << 32, int64_t{1} << 31}, "FLOPs"), Refused);
  int64_t sum = kMost - 1;
  add_to_count(sum, int64_t{1}, "FLOPs");
  EXPECT_EQ(sum, kMost);
  EXPECT_THROW(add_to_count(sum, int64_t{1}, "FLOPs"), Refused);
}

}  // namespace
}  // namespace kuafu
