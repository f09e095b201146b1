// SPDX-License-Identifier: Apache-2.0
#include "kuafu/base/kernel_choice.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "kuafu/base/errors.h"
#include "tests/base/messages.h"

namespace kuafu {
namespace {

TEST(KernelChoice, IsOneOfTwoWordsOfTheEnvironment) {
  ::unsetenv("KUAFU_KERNELS");
  EXPECT_EQ(kernel_choice(), KernelChoice::kOwn);
  for (const KernelChoice choice : {KernelChoice::kOwn, KernelChoice::kAten}) {
    ::setenv("KUAFU_KERNELS", std::string(to_string(choice)).c_str(), 1);
    EXPECT_EQ(kernel_choice(), choice);
  }
  ::setenv("KUAFU_KERNELS", "attn", 1);
  expect_says(message_of<ConfigError>([] { kernel_choice(); }),
              {"KUAFU_KERNELS", "\"attn\"", "\"own\" or \"aten\"", "nearest: \"aten\""});
  ::unsetenv("KUAFU_KERNELS");
}

}  // namespace
}  // namespace kuafu
