// SPDX-License-Identifier: Apache-2.0
#include "kuafu/record/certificate_words.h"

#include <gtest/gtest.h>

namespace kuafu {
namespace {

Json certificate_of(const char* verdict, double error) {
  return {{"native",
           {{"verdict", verdict},
            {"update_error", error},
            {"update_bound", 9e-7},
            {"loss_error", 1e-9},
            {"loss_bound", 1e-6},
            {"worst", "w, step 2"}}}};
}

TEST(CertificateWords, TellWhatIsNearestToItsBound) {
  EXPECT_EQ(words_of_native(certificate_of("equal", 3e-7)),
            "update error 3.00e-07 of 9.00e-07 (w, step 2)");
  EXPECT_EQ(words_of_native(certificate_of("different", 3e-3)),
            "update error 0.00300 of 9.00e-07 (w, step 2)");
}

// Refuted by other bits: what is printed does not look like the cause.
TEST(CertificateWords, SayWhereARefutedPartIsWithinItsBounds) {
  EXPECT_EQ(words_of_native(certificate_of("different", 3e-7)),
            "though within bounds: update error 3.00e-07 of 9.00e-07 (w, step 2)");
}

}  // namespace
}  // namespace kuafu
