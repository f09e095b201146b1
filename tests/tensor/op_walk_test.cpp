// SPDX-License-Identifier: Apache-2.0
//
// Walks every op that is registered: meta gives the CPU's shapes, strides, types and bytes, and the
// portable kernels, which CUDA uses, give the CPU's numbers.
#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>

#include <set>

#include "kuafu/base/kernel_choice.h"
#include "kuafu/meter/book.h"
#include "tests/tensor/op_cases.h"
#include "tests/tensor/support.h"

namespace kuafu {
namespace {

using testing::all_cases;
using testing::call;
using testing::Case;
using testing::mapped;
using testing::Stack;
using testing::tensors_of;

Stack to_meta(const Stack& stack) {
  return mapped(stack, [](const Tensor& t) {
    return at::empty_strided(t.sizes(), t.strides(), t.options().device(at::kMeta));
  });
}

TEST(OpWalk, MissesNoRegisteredOp) {
  std::set<std::string> registered, walked;
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (name.name.starts_with("kuafu::")) registered.insert(name.name);
  }
  for (const Case& c : all_cases()) walked.insert("kuafu::" + c.op);
  EXPECT_EQ(registered, walked);
}

TEST(OpWalk, MetaHasTheShapesStridesTypesAndBytesOfTheCpu) {
  for (const Case& c : all_cases()) {
    for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
      const std::string what = c.op + " " + c10::toString(type);
      const auto cpu = call("kuafu::" + c.op, c.arguments(type));
      const auto meta = call("kuafu::" + c.op, to_meta(c.arguments(type)));
      ASSERT_EQ(cpu.size(), meta.size()) << what;
      for (size_t i = 0; i < cpu.size(); ++i) {
        EXPECT_TRUE(meta[i].is_meta()) << what;
        EXPECT_EQ(cpu[i].sizes(), meta[i].sizes()) << what << " tensor " << i;
        EXPECT_EQ(cpu[i].strides(), meta[i].strides()) << what << " tensor " << i;
        EXPECT_EQ(cpu[i].scalar_type(), meta[i].scalar_type()) << what << " tensor " << i;
      }
    }
  }
}

TEST(OpWalk, ResultsOwnExactlyTheirBytes) {
  for (const Case& c : all_cases()) {
    for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
      const Stack arguments = c.arguments(type);
      const size_t inputs = call("kuafu::" + c.op, arguments).size();
      const auto tensors = call("kuafu::" + c.op, arguments);
      const size_t given = tensors_of(arguments).size();
      for (size_t i = 0; i < inputs - given; ++i) {
        EXPECT_EQ(tensors[i].storage().nbytes(), tensors[i].nbytes()) << c.op << " result " << i;
      }
    }
  }
}

/// All but the updates whose twins are formulas of their rules (tests/optim/formulas_test.cpp).
std::vector<Case> cases_with_twins() {
  std::vector<Case> cases = all_cases();
  std::erase_if(cases, [](const Case& c) {
    return std::set<std::string>{"adam", "adamw",      "sgd",        "nesterov",  "lars",
                                 "lamb", "lars_norms", "lamb_norms", "layer_step"}
        .contains(c.op);
  });
  return cases;
}

TEST(OpWalk, PortableKernelsEqualTheCpuKernels) {
  for (const Case& c : cases_with_twins()) {
    for (const at::ScalarType type : {at::kDouble, at::kFloat}) {
      const std::string what = c.op + " " + c10::toString(type);
      const auto cpu = call("kuafu::" + c.op, c.arguments(type));
      const auto portable = call("kuafu_portable::" + c.op, c.arguments(type));
      ASSERT_EQ(cpu.size(), portable.size()) << what;
      // Sums of at most 36 terms of magnitude up to 8, rounded at each.
      const double eps = type == at::kDouble ? 0x1.0p-52 : 0x1.0p-23;
      for (size_t i = 0; i < cpu.size(); ++i) {
        EXPECT_EQ(cpu[i].scalar_type(), portable[i].scalar_type()) << what;
        testing::expect_close(cpu[i], portable[i], 36 * 8 * 4 * eps, what);
      }
    }
  }
}

// With KUAFU_KERNELS=aten every op is its twin, to the bit; the loops round differently somewhere.
// Attention is ATen's either way, a kernel for CPUs.
TEST(OpWalk, TheEnvironmentChoosesTheKernelsOfTheCpu) {
  int64_t others = 0;
  for (const Case& c : cases_with_twins()) {
    if (c.op == "attention" || c.op == "attention_backward") continue;
    for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
      const auto cpu = call("kuafu::" + c.op, c.arguments(type));
      const auto twin = call("kuafu_portable::" + c.op, c.arguments(type));
      for (size_t i = 0; i < cpu.size(); ++i) others += cpu[i].equal(twin[i]) ? 0 : 1;
    }
  }
  EXPECT_EQ(others == 0, kernel_choice() == KernelChoice::kAten) << others << " tensors differ";
}

TEST(OpWalk, ScratchIsGivenBackAndNeverInThePeak) {
  for (const Case& c : all_cases()) {
    const Stack arguments = c.arguments(at::kFloat);
    RankBook book(0);
    const BookScope scope(&book);
    call("kuafu::" + c.op, arguments);
    const BytesByCategory live = book.live_by_category();
    for (const int64_t bytes : live) EXPECT_EQ(bytes, 0) << c.op;
  }
}

}  // namespace
}  // namespace kuafu
