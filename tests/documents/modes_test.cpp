// SPDX-License-Identifier: Apache-2.0
//
// Every sequence mode keeps documents apart: on thread ranks against attention by definition, in f64.
#include <gtest/gtest.h>

#include <torch/csrc/autograd/autograd.h>

#include "kuafu/base/suggest.h"
#include "kuafu/mesh/parts.h"
#include "kuafu/parallel/sequence/interface.h"
#include "tests/documents/naive.h"
#include "tests/support/ranks.h"

namespace kuafu {
namespace {

struct Setting {
  const char* mode;
  int64_t ranks, sequence, heads, kv_heads;
  Recompute recompute = Recompute::kNone;

  std::string name() const { return text(mode, " n", ranks, " S", sequence, " N", heads); }
};

/// What a rank's tokens came to, less what they should.
void expect_by_definition(const Setting& s) {
  SCOPED_TRACE(s.name());
  const auto rows = tests::two_rows(s.sequence);
  const Tensor q = tests::some_heads(s.heads, s.sequence, 4, 1),
               k = tests::some_heads(s.kv_heads, s.sequence, 4, 2),
               v = tests::some_heads(s.kv_heads, s.sequence, 4, 3),
               dout = tests::some_heads(s.heads, s.sequence, 4, 4);
  const tests::Attended e = tests::attended(q, k, v, dout, tests::hidden_of(rows, 0));
  Registry<MakeAttention> modes("sequence mode");
  register_sequence_modes(modes);
  tests::run_ranks(static_cast<int>(s.ranks), [&](Communicator& world) {
    tests::MeshRank me({{"sequence", s.ranks}}, world);
    const auto mode = modes.find(s.mode)({me.mesh, s.sequence, s.recompute});
    ASSERT_TRUE(mode->knows_documents());
    const Part p = nth_part(s.sequence, s.ranks, world.rank());
    std::vector<int64_t> places = mode->order();
    for (int64_t i = std::ssize(places); i < s.sequence; ++i) places.push_back(i);
    const Tensor mine = at::tensor(places, at::kLong).narrow(0, p.offset, p.extent);
    const auto leaf = [&](const Tensor& t) { return t.index_select(2, mine).requires_grad_(true); };
    const Tensor my_q = leaf(q), my_k = leaf(k), my_v = leaf(v);
    const Tensor out = mode->attend_documents(my_q, my_k, my_v, tests::first_of(rows, 0));
    torch::autograd::backward({out}, {dout.index_select(2, mine)});
    // Chains of sums of at most S terms, over the heads of a group, one more a block.
    const double tolerance =
        16 * 0x1.0p-52 * static_cast<double>(s.sequence * s.heads / s.kv_heads + s.ranks);
    const auto check = [&](const Tensor& got, const Tensor& expected, const char* what) {
      const double error = (got - expected.index_select(2, mine)).abs().max().item<double>();
      EXPECT_LE(error, tolerance * expected.abs().max().item<double>())
          << what << ", rank " << world.rank();
    };
    check(out.detach(), e.out, "out");
    check(my_q.grad(), e.dq, "dq");
    check(my_k.grad(), e.dk, "dk");
    check(my_v.grad(), e.dv, "dv");
  });
}

TEST(DocumentsOfSequenceModes, AreKeptApartOnAnyRanksAndLengths) {
  for (const char* mode : {"ring", "ring-zigzag", "ulysses", "all-gather"}) {
    for (const auto& [ranks, sequence] :
         {std::pair{1, 7}, {2, 9}, {2, 16}, {3, 13}, {5, 5}, {5, 17}}) {
      expect_by_definition({mode, ranks, sequence, 2 * ranks, ranks});
    }
    expect_by_definition({mode, 3, 13, 6, 3, Recompute::kSelective});
  }
  for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective}) {
    expect_by_definition({"none", 1, 13, 4, 2, recompute});
  }
}

}  // namespace
}  // namespace kuafu
