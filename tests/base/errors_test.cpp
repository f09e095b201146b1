// SPDX-License-Identifier: Apache-2.0
#include "kuafu/base/errors.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>

#include "kuafu/base/dtype.h"
#include "kuafu/base/reason.h"
#include "tests/base/messages.h"

namespace kuafu {
namespace {

TEST(Errors, RequireThrowsWhatTheCallerCanFix) {
  const int given = 3;
  const auto message =
      message_of<ConfigError>([&] { KUAFU_REQUIRE(given == 2, "given ", given, "; allowed: 2"); });
  EXPECT_EQ(message, "given 3; allowed: 2");
}

TEST(Errors, CheckNamesConditionFileAndLine) {
  const int operand = 3;
  const auto message =
      message_of<InternalError>([&] { KUAFU_CHECK(operand == 2, "operand ", operand); });
  expect_says(message, {"internal error: operand 3", "operand == 2 is false", "errors_test.cpp:"});
}

TEST(Errors, OutOfMemoryCarriesItsNumbers) {
  const OutOfMemory error(2, 100, 900, 950);
  EXPECT_EQ(error.requested, 100);
  expect_says(error.what(), {"rank 2", "asked for 100 bytes", "900 live", "budget 950"});
}

TEST(DType, ReadsBackWhatItPrints) {
  for (const DType type : {DType::kF64, DType::kF32, DType::kBF16, DType::kF16, DType::kI64,
                           DType::kI32, DType::kU8}) {
    EXPECT_EQ(dtype_from(to_string(type)), type);
  }
}

TEST(DType, RefusesUnknownNamesWithTheList) {
  expect_says(message_of<ConfigError>([] { dtype_from("float"); }),
              {"\"float\"", "f64, f32, bf16"});
}

TEST(DType, HasTheSizesOfTheFormats) {
  EXPECT_EQ(size_of(DType::kF64), 8);
  EXPECT_EQ(size_of(DType::kF32), 4);
  EXPECT_EQ(size_of(DType::kBF16), 2);
  EXPECT_EQ(size_of(DType::kF16), 2);
  EXPECT_EQ(size_of(DType::kI64), 8);
  EXPECT_EQ(size_of(DType::kI32), 4);
  EXPECT_EQ(size_of(DType::kU8), 1);
}

TEST(Reason, OfAnyLengthIsCut) {
  const std::string said = reason_of(Error(std::string(5'000'000, 'x')));
  EXPECT_EQ(said, std::string(2000, 'x') + "... (4998000 more characters)");
}

TEST(Reason, OfTooManyOpenFilesNamesTheLimit) {
  expect_says(reason_of(Error(text("cannot make a pipe: ", std::strerror(EMFILE)))),
              {"cannot make a pipe", "`ulimit -n`"});
}

}  // namespace
}  // namespace kuafu
