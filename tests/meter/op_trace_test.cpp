// SPDX-License-Identifier: Apache-2.0
#include "kuafu/meter/op_trace.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>
#include <thread>

#include "kuafu/meter/op_kinds.h"

namespace kuafu {
namespace {

/// The ops of `body`, a line each.
std::vector<std::string> ops_of(const std::function<void()>& body) {
  TraceRecorder recorder(TraceRecorder::Clock::kNone);
  {
    const OpTraceScope traced(recorder);
    body();
  }
  std::vector<std::string> lines;
  for (const TraceRecord& r : recorder.trace().records) {
    if (r.kind == TraceKind::kOp) lines.push_back(recorder.trace().describe(r));
  }
  return lines;
}
using Lines = std::vector<std::string>;

/// The same on data and on meta.
void expect_ops(const Lines& lines, const std::function<void(at::TensorOptions)>& body) {
  for (const at::Device device : {at::Device(at::kCPU), at::Device(at::kMeta)}) {
    EXPECT_EQ(ops_of([&] { body(at::TensorOptions(at::kFloat).device(device)); }), lines) << device;
  }
}

TEST(OpTrace, BooksBytesByTheKindOfAnOp) {
  expect_ops(
      {"op aten::zeros (), fill, 0 FLOPs, 24 bytes", "op aten::ones (), fill, 0 FLOPs, 12 bytes",
       "op aten::add (f32 2x3, f32 3), elementwise, 0 FLOPs, 60 bytes",
       "op aten::add_ (f32 2x3, f32 2x3), elementwise, 0 FLOPs, 72 bytes",
       "op aten::copy_ (f32 2x3, f32 3), copy, 0 FLOPs, 36 bytes",
       "op aten::_to_copy (f32 2x3), copy, 0 FLOPs, 72 bytes",
       "op aten::cat (f32 2x3, f32 2x3), copy, 0 FLOPs, 96 bytes",
       "op aten::sum (f32 4x3), reduction, 0 FLOPs, 52 bytes",
       "op aten::zero_ (f32 2x3), fill, 0 FLOPs, 24 bytes"},
      [](at::TensorOptions on) {
        const at::Tensor x = at::zeros({2, 3}, on), row = at::ones({3}, on);
        at::Tensor y = x + row;
        y += x;
        y.copy_(row);
        y.to(at::kDouble);
        at::cat({x, y}).sum();
        y.zero_();
      });
}

TEST(OpTrace, AGatherReadsWhatItTakes) {
  const at::Tensor table = at::zeros({1000, 2}, at::kFloat), rows = at::full({3}, 7, at::kLong);
  EXPECT_EQ(ops_of([&] { at::index_select(table, 0, rows); }),
            Lines{"op aten::index_select (f32 1000x2, i64 3), gather, 0 FLOPs, 72 bytes"});
  // Indices come as a list of which some are none.
  EXPECT_EQ(ops_of([&] {
              at::index(table, {std::nullopt, rows.remainder(2)});
            }).back(),
            "op aten::index (f32 1000x2, i64 3), gather, 0 FLOPs, 24024 bytes");
}

// Views tell nothing, and what is made of others is told by them: a reshape that copies is a copy.
TEST(OpTrace, TellsOpsThatMoveDataAlone) {
  expect_ops({"op aten::zeros (), fill, 0 FLOPs, 24 bytes",
              "op aten::clone (f32 3x2), copy, 0 FLOPs, 48 bytes",
              "op aten::clone (f32 3x2), copy, 0 FLOPs, 48 bytes"},
             [](at::TensorOptions on) {
               const at::Tensor x = at::zeros({2, 3}, on);
               x.reshape({6}).view({3, 2}).contiguous().to(at::kFloat).flatten();
               x.t().contiguous();
               x.t().flatten();
             });
}

TEST(OpTrace, NestedScopesGiveTheOuterOneBack) {
  const at::Tensor x = at::zeros({2});
  TraceRecorder inner(TraceRecorder::Clock::kNone);
  const Lines outer = ops_of([&] {
    x.add(1);
    {
      const OpTraceScope traced(inner);
      x.mul(2);
    }
    x.sub(1);
  });
  ASSERT_EQ(outer.size(), 2U);
  EXPECT_EQ(inner.trace().records.size(), 1U);
}

// Autograd's engine sets the state of its threads anew for each node.
TEST(OpTrace, TellsOpsOfTheBackward) {
  const at::Tensor x = at::ones({2, 3}).requires_grad_();
  const at::Tensor y = x.exp().sum();
  EXPECT_EQ(ops_of([&] { y.backward(); }),
            (Lines{"op aten::ones_like (f32), fill, 0 FLOPs, 4 bytes",
                   "op aten::mul (f32 2x3, f32 2x3), elementwise, 0 FLOPs, 72 bytes"}));
}

TEST(OpTrace, OneOpScopeIsOneOp) {
  const at::Tensor x = at::zeros({2});
  EXPECT_EQ(ops_of([&] {
              const OneOpScope load("load", x);
              x.add(1).mul(2);
            }),
            Lines{"op load (f32 2), load, 0 FLOPs, 8 bytes"});
}

TEST(OpTrace, IsOfItsThreadAndItsScope) {
  const at::Tensor x = at::zeros({2});
  const Lines lines = ops_of([&] {
    std::thread([&] { x.add(1); }).join();
    x.mul(2);
  });
  x.sub(1);
  EXPECT_EQ(lines, Lines{"op aten::mul (f32 2), elementwise, 0 FLOPs, 16 bytes"});
}

TEST(OpTrace, AnOpThatThrowsLeavesTheNextOnesTold) {
  const Lines lines = ops_of([] {
    EXPECT_ANY_THROW(at::zeros({2}).add(at::zeros({3})));
    at::zeros({4});
  });
  EXPECT_EQ(lines.back(), "op aten::zeros (), fill, 0 FLOPs, 16 bytes");
}

// The watch names what has no row in the table of kinds.
TEST(OpTrace, OpsThatNothingBooksAreNamed) {
  TraceRecorder recorder;
  {
    const OpTraceScope traced(recorder);
    at::erfinv(at::zeros({2, 3}));
    at::erfinv(at::zeros({2, 3})).add_(1);
  }
  EXPECT_EQ(unbooked_ops(recorder.trace()), (Lines{"aten::erfinv (f32 2x3)"}));
}

// An own op that forgets its formula, unless it has nothing to do.
TEST(OpTrace, OwnOpsThatBookNothingAreNamed) {
  TraceRecorder t;
  const auto gelu = [&t](const char* shape) {
    t.op({.name = t.name_of("kuafu::gelu"),
          .shape = t.shape_of(shape),
          .kind = kind_of_op("kuafu::gelu")});
  };
  gelu("f32 4x0");
  gelu("f32 0");
  gelu("f32 0, f64 3");
  gelu("f32 4x8");
  t.work(0, 256, kNoFlags);
  EXPECT_EQ(unbooked_ops(t.trace()), Lines{});
  gelu("f32 4x10");
  gelu("f32 10, f32 0");  // an empty one behind it excuses nothing
  EXPECT_EQ(unbooked_ops(t.trace()),
            (Lines{"kuafu::gelu (f32 10, f32 0)", "kuafu::gelu (f32 4x10)"}));
}

}  // namespace
}  // namespace kuafu
