// SPDX-License-Identifier: Apache-2.0
#include "tests/comm/conformance_suite.h"
#include "tests/standin/backends.h"

namespace kuafu::conformance {
namespace {

INSTANTIATE_TEST_SUITE_P(Communicator, Conformance, testing::ValuesIn(cases_of(nccl_backends())),
                         name_of);

}  // namespace
}  // namespace kuafu::conformance
