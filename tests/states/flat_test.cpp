// SPDX-License-Identifier: Apache-2.0
#include "kuafu/states/bucket.h"

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "kuafu/base/errors.h"

namespace kuafu {
namespace {

Param make(const std::string& name, const Shape& shape, Axes shards = {}, Axes grad_axes = {},
           at::ScalarType type = at::kFloat) {
  Param p;
  p.name = name;
  p.global = p.padded = shape;
  p.layout = Layout::replicated(shape.size());
  p.layout.dims[0] = std::move(shards);
  p.grad_axes = std::move(grad_axes);
  p.value = at::ones(shape, at::TensorOptions(type)).requires_grad_(true);
  return p;
}

FlatRules sharded(int64_t bytes) { return {.bucket_bytes = bytes, .is_sharded = true}; }

// Awkward counts: parts are equal, nothing overlaps, padding is below what alignment and division
// need.
TEST(FlatBuckets, OfAnyNumberOfPartsHoldEveryElementOnce) {
  for (const int64_t n : {1, 2, 3, 5, 7, 64}) {
    const Mesh mesh({{"data", n}}, 0);
    std::vector<Param> params;
    for (const Shape& shape : {Shape{1}, Shape{3, 5}, Shape{17}, Shape{16}, Shape{7, 11}}) {
      params.push_back(make(text("p", params.size()), shape));
    }
    Group group{"block", {}};
    for (Param& p : params) group.params.push_back(&p);
    for (const int64_t bytes : {1, 100, 1 << 20}) {
      int64_t seen = 0;
      for (const FlatBucket& b : make_buckets(group, mesh, sharded(bytes))) {
        EXPECT_EQ(std::ssize(b.ends), n);
        int64_t end = 0;
        for (const FlatSlot& slot : b.slots) {
          EXPECT_GE(slot.offset, end);
          EXPECT_LT(slot.offset, end + 16) << "64 bytes of f32";
          EXPECT_EQ(slot.offset % 16, 0);
          EXPECT_EQ(slot.extent, slot.param->value.numel());
          end = slot.offset + slot.extent;
          ++seen;
        }
        EXPECT_GE(b.elements(), end);
        EXPECT_LT(b.elements(), end + n);
        EXPECT_TRUE(b.slots.size() == 1 || end * 4 <= bytes);
      }
      EXPECT_EQ(seen, 5) << n << " parts, buckets of " << bytes;
    }
  }
}

TEST(FlatBuckets, KeepApartWhatIsSummedOverOtherAxesOrOfAnotherType) {
  const Mesh mesh({{"replica", 2}, {"expert", 2}, {"tensor", 3}}, 5,
                  {{"data", {"replica", "expert"}}});
  std::vector<Param> params;
  params.push_back(make("weight", {4, 4}, {"tensor"}));
  params.push_back(make("norm", {4}, {}, {"tensor"}));
  params.push_back(make("expert", {4, 4}, {"expert"}));
  params.push_back(make("half", {4}, {}, {}, at::kBFloat16));
  params.push_back(make("bias", {4}));
  params.push_back(make("own", {4}, {"replica", "expert"}));
  Group group{"block", {}};
  for (Param& p : params) group.params.push_back(&p);
  const auto buckets = make_buckets(group, mesh, sharded(1 << 20));
  ASSERT_EQ(buckets.size(), 5u);
  const Axes tensor = {"tensor"}, data = {"data"}, replica = {"replica"}, none;
  EXPECT_EQ(buckets[0].slots.size(), 2u);  // weight, bias
  EXPECT_EQ(buckets[0].slots[1].param, &params[4]);
  EXPECT_EQ(buckets[0].replicas, data);
  EXPECT_EQ(buckets[0].ends.size(), 4u);
  EXPECT_EQ(buckets[1].scheme_axes, tensor);
  EXPECT_EQ(buckets[2].replicas, replica);
  EXPECT_EQ(buckets[2].ends.size(), 2u);
  EXPECT_EQ(buckets[3].slots[0].param, &params[3]);
  EXPECT_EQ(buckets[4].replicas, none);
  EXPECT_FALSE(buckets[4].is_split());
}

TEST(FlatBuckets, TakeGradientsAndNoteWhichWereThere) {
  const Mesh mesh({{"data", 5}}, 0);
  std::vector<Param> params;
  params.push_back(make("a", {3}));
  params.push_back(make("unused", {2}));
  params.push_back(make("b", {2, 2}));
  Group group{"block", {&params[0], &params[1], &params[2]}};
  const FlatBucket b = make_buckets(group, mesh, sharded(1 << 20))[0];
  params[0].value.mutable_grad() = at::full({3}, 2.0);
  params[2].value.mutable_grad() = at::full({2, 2}, 3.0);
  std::vector<bool> used(3);
  const Tensor flat = take_gradients(b, used);
  const std::vector<bool> expected = {true, false, true};
  EXPECT_EQ(used, expected);
  EXPECT_EQ(flat.numel(), b.elements());
  EXPECT_EQ(flat.sum().item<double>(), 3 * 2 + 4 * 3);  // zero elsewhere
  EXPECT_EQ(in_shape(b.slots[0], flat).sum().item<double>(), 6);
  EXPECT_EQ(in_shape(b.slots[2], flat).sum().item<double>(), 12);
  for (const Param& p : params) EXPECT_FALSE(p.value.grad().defined()) << p.name;
}

TEST(FlatBuckets, RefuseAGradientThatOneReplicaAloneHas) {
  const Param p = make("blocks.1.idle", {2});
  EXPECT_NO_THROW(check_unused(p, at::zeros({2})));
  try {
    check_unused(p, at::ones({2}));
    FAIL() << "replicas that use different parameters were not noticed";
  } catch (const InternalError& e) {
    EXPECT_NE(std::string(e.what()).find("blocks.1.idle"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace kuafu
