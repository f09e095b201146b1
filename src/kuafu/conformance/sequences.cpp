// SPDX-License-Identifier: Apache-2.0
//
// Sequence modes against attention over the whole sample.

#include "kuafu/conformance/sequences.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <numeric>

#include "kuafu/comm/simulated.h"
#include "kuafu/comm/worlds.h"
#include "kuafu/conformance/mesh_rank.h"
#include "kuafu/conformance/samples.h"
#include "kuafu/conformance/trial_runs.h"
#include "kuafu/conformance/whole_attention.h"
#include "kuafu/mesh/parts.h"
#include "kuafu/meter/book.h"
#include "kuafu/plan/kind_names.h"

namespace kuafu::conformance {
namespace {

constexpr int64_t kSeqDim = 2;  // of (B, N, S, D)

/// For n ranks; the first three are small, the others go beyond 64 in one dim or more.
std::vector<AttentionShape> attention_shapes(int64_t n, Shapes shapes) {
  std::vector<AttentionShape> all = {
      {2, 2 * n, n, 4, 3 * n + 1}, {1, n, 1, 3, n}, {2, 3, 1, 4, 2 * n + 1}};
  if (shapes == Shapes::kSmall) return all;
  all.insert(all.end(), {{65, n, n, 4, 2 * n},
                         {1, n, n, 8, 65 * n + 1},
                         {1, n, n, 128, 4 * n},
                         {1, 66 * n, n, 3, 2 * n},
                         {1, 2 * n, 2 * n, 65, 64 * n},
                         {513, n, n, 2, n},
                         {1, n, n, 2, 513 * n + 1}});
  return all;
}

/// A mode on one rank.
class AttendingRank {
 public:
  AttendingRank(const Registries& registries, const std::string& mode, int64_t ranks,
                const Attended& a, Communicator& world)
      : me_({{"sequence", ranks}}, world),
        attended_(a),
        mode_(registries.sequence.find(mode)({me_.mesh, a.shape.sequence, a.recompute})) {}

  /// The part of a whole tensor that this rank holds.
  Tensor mine(const Tensor& t) const {
    const Part p =
        nth_part(attended_.shape.sequence, me_.mesh.size("sequence"), me_.mesh.coord("sequence"));
    const std::vector<int64_t> order = mode_->order();
    if (order.empty()) return t.narrow(kSeqDim, p.offset, p.extent);
    const std::vector<int64_t> places(order.begin() + p.offset,
                                      order.begin() + p.offset + p.extent);
    return t.index_select(kSeqDim, at::tensor(places, at::kLong).to(t.device()));
  }

  /// Forward and backward; bytes received in each.
  AttentionResult run() {
    const AttentionInputs in(attended_);
    const auto leaf = [&](const Tensor& t) {
      const Tensor part = mine(t).transpose(1, 2).contiguous().transpose(1, 2);
      return part.to(attended_.dtype).requires_grad_(true);
    };
    const Tensor q = leaf(in.q), k = leaf(in.k), v = leaf(in.v);
    me_.ledger.clear();
    const Tensor out = attended_.is_inside_documents
                           ? mode_->attend_documents(q, k, v, documents_of(attended_.shape))
                           : mode_->attend(q, k, v, attended_.shape.mask);
    forward_bytes_ = me_.received();
    torch::autograd::backward({out}, {mine(in.dout).to(attended_.dtype)});
    backward_bytes_ = me_.received() - forward_bytes_;
    return {out.detach(), q.grad(), k.grad(), v.grad()};
  }

  const AttentionParallel& mode() const { return *mode_; }
  int64_t forward_bytes() const { return forward_bytes_; }
  int64_t backward_bytes() const { return backward_bytes_; }

 private:
  MeshRank me_;
  Attended attended_;
  std::unique_ptr<AttentionParallel> mode_;
  int64_t forward_bytes_ = 0, backward_bytes_ = 0;
};

/// A mode on its ranks.
struct Sequenced {
  const Registries& registries;
  std::string mode;
  int64_t ranks;

  std::unique_ptr<AttentionParallel> made(const AttentionShape& shape) const {
    const Mesh mesh({{"sequence", ranks}}, 0);
    return registries.sequence.find(mode)({mesh, shape.sequence, Recompute::kNone});
  }
  void on_ranks(const Attended& a, const std::function<void(AttendingRank&, int rank)>& f) const {
    run_on_threads(static_cast<int>(ranks),
                   [&](Communicator& world) {
                     AttendingRank rank(registries, mode, ranks, a, world);
                     f(rank, world.rank());
                   },
                   {.timeout = std::chrono::seconds(60)});
  }
};

/// Every mask, and documents where the mode knows them.
std::vector<Attended> masks_of(const Sequenced& s, const AttentionShape& shape,
                               at::ScalarType dtype = at::kDouble) {
  std::vector<Attended> all;
  for (const Mask mask : {Mask::kCausal, Mask::kNone}) {
    all.push_back({.shape = shape, .dtype = dtype});
    all.back().shape.mask = mask;
  }
  if (s.made(shape)->knows_documents()) {
    all.push_back(all.front());
    all.back().is_inside_documents = true;
  }
  return all;
}

/// An attention with each choice of what may be kept of it.
std::vector<Attended> kept_of(Attended a) {
  std::vector<Attended> all;
  for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective}) {
    a.recompute = recompute;
    all.push_back(a);
  }
  return all;
}

std::vector<Attended> settings_of(const Sequenced& s, const AttentionShape& shape) {
  std::vector<Attended> all;
  for (const Attended& masked : masks_of(s, shape)) {
    for (const Attended& a : kept_of(masked)) all.push_back(a);
  }
  return all;
}

void check_order(const AttentionParallel& mode, int64_t sequence, Notes& notes) {
  std::vector<int64_t> order = mode.order();
  if (order.empty()) return;
  std::sort(order.begin(), order.end());
  std::vector<int64_t> places(static_cast<size_t>(sequence));
  std::iota(places.begin(), places.end(), 0);
  notes.expect(order == places, "order() is no permutation of the ", sequence, " positions");
}

/// Errors are relative to the largest sum of absolute terms: of a first token's dq all cancels.
void expect_attention(const Sequenced& s, const Attended& a, const WholeAttention& whole,
                      double limit, Notes& notes) {
  s.on_ranks(a, [&](AttendingRank& rank, int r) {
    check_order(rank.mode(), a.shape.sequence, notes);
    const AttentionResult got = rank.run();
    const auto expect = [&](const char* what, Tensor AttentionResult::*part) {
      const Tensor difference = (got.*part).to(at::kDouble) - rank.mine(whole.values.*part);
      const double error = difference.numel() == 0 ? 0 : difference.abs().max().item<double>();
      const double bound = limit * (whole.terms.*part).max().item<double>();
      notes.expect(error <= bound, what, " of ", a.name(), " attention on rank ", r, " of ",
                   s.ranks, ": error ", error, ", tolerance ", bound);
    };
    expect("output", &AttentionResult::out);
    expect("gradient of the queries", &AttentionResult::dq);
    expect("gradient of the keys", &AttentionResult::dk);
    expect("gradient of the values", &AttentionResult::dv);
  });
}

void expect_all_attention(const Sequenced& s, const AttentionShape& shape, at::ScalarType dtype,
                          double limit, Notes& notes) {
  for (const Attended& masked : masks_of(s, shape, dtype)) {
    const WholeAttention whole = whole_attention(masked);
    for (const Attended& a : kept_of(masked)) expect_attention(s, a, whole, limit, notes);
  }
}

/// Chains of sums of at most S terms (scores D, softmax S, gradients S N / Nkv), and one more a rank.
void check_attention(const Sequenced& s, const AttentionShape& shape, Notes& notes) {
  const auto length = static_cast<double>(shape.sequence * (shape.heads / shape.kv_heads) +
                                          shape.head_dim + s.ranks);
  expect_all_attention(s, shape, at::kDouble, 16 * kEps * length, notes);
}

/// Inputs are rounded to 8 bits alike; weights, result and each gradient are rounded to 8 bits once or
/// twice, sums are f32: a few halves of 2^-8.
void check_half(const Sequenced& s, const AttentionShape& shape, Notes& notes) {
  expect_all_attention(s, shape, at::kBFloat16, 4 * 0x1.0p-8, notes);
}

void check_bits(const Sequenced& s, const AttentionShape& shape, Notes& notes) {
  for (const Attended& a : settings_of(s, shape)) {
    s.on_ranks(a, [&](AttendingRank& rank, int) {
      const AttentionResult one = rank.run(), two = rank.run();
      notes.expect_same(two.out, one.out, "second output");
      notes.expect_same(two.dq, one.dq, "second gradient of the queries");
      notes.expect_same(two.dk, one.dk, "second gradient of the keys");
      notes.expect_same(two.dv, one.dv, "second gradient of the values");
    });
  }
}

void check_attention_traffic(const Sequenced& s, const AttentionShape& shape, Notes& notes) {
  for (const Attended& a : settings_of(s, shape)) {
    s.on_ranks(a, [&](AttendingRank& rank, int r) {
      rank.run();
      const AttentionCost cost = rank.mode().cost(a.shape);
      const int64_t forward = rank.forward_bytes() / 8, backward = rank.backward_bytes() / 8;
      notes.expect(forward == cost.forward, a.name(), " forward on rank ", r, " receives ", forward,
                   " elements, its cost says ", cost.forward);
      notes.expect(backward == cost.backward, a.name(), " backward on rank ", r, " receives ",
                   backward, " elements, its cost says ", cost.backward);
    });
  }
}

struct AttentionCounts {
  std::map<std::string, AxisLedger> axes;
  int64_t flops = 0, recomputed = 0, peak = 0;
};

AttentionCounts count_attention(const Sequenced& s, const Attended& a, Communicator& world,
                                at::Device device) {
  RankBook book(world.rank());
  const BookScope booked(&book);
  MeshRank me({{"sequence", s.ranks}}, world);
  const auto mode = s.registries.sequence.find(s.mode)({me.mesh, a.shape.sequence, a.recompute});
  const int64_t tokens = nth_part(a.shape.sequence, s.ranks, world.rank()).extent;
  const CategoryScope scope(Category::kActivation);
  const auto leaf = [&](int64_t heads) {
    const Tensor t = at::zeros({a.shape.batch, tokens, heads, a.shape.head_dim},
                               at::TensorOptions(at::kFloat).device(device));
    return t.transpose(1, 2).requires_grad_(true);
  };
  const Tensor q = leaf(a.shape.heads), k = leaf(a.shape.kv_heads), v = leaf(a.shape.kv_heads);
  const Tensor first =
      at::zeros({a.shape.batch, a.shape.sequence}, at::TensorOptions(at::kLong).device(device));
  const Tensor out = a.is_inside_documents ? mode->attend_documents(q, k, v, first)
                                           : mode->attend(q, k, v, a.shape.mask);
  torch::autograd::backward({out}, {at::ones_like(out)});
  return {me.ledger.axes(), book.flops(), book.flops_recomputed(), book.peak()};
}

void check_attention_worlds(const Sequenced& s, const AttentionShape& shape, Notes& notes) {
  for (const Attended& a : settings_of(s, shape)) {
    std::vector<AttentionCounts> real(static_cast<size_t>(s.ranks));
    run_on_threads(static_cast<int>(s.ranks), [&](Communicator& world) {
      real[static_cast<size_t>(world.rank())] = count_attention(s, a, world, compute_device());
    });
    SimulatedWorld simulated(static_cast<int>(s.ranks));
    for (int r = 0; r < s.ranks; ++r) {
      const auto world = simulated.communicator(r);
      const AttentionCounts mine = count_attention(s, a, *world, at::kMeta);
      const AttentionCounts& threads = real[static_cast<size_t>(r)];
      const std::string where = text(" of ", a.name(), " attention on rank ", r);
      notes.expect(mine.axes == threads.axes, "traffic", where, ": simulated is another");
      notes.expect(mine.flops == threads.flops && mine.recomputed == threads.recomputed, "FLOPs",
                   where, ": simulated ", mine.flops, " and ", mine.recomputed,
                   " recomputed, threads ", threads.flops, " and ", threads.recomputed);
      notes.expect(mine.peak == threads.peak, "peak bytes", where, ": simulated ", mine.peak,
                   ", threads ", threads.peak);
    }
  }
}

/// A GPT of the shape's sequence and heads, in f32, with an f64 twin.
void check_attention_training(const Sequenced& s, const AttentionShape& shape, Notes& notes) {
  std::vector<std::pair<const char*, bool>> settings = {
      {"none", false}, {"selective", false}, {"full", false}};
  if (s.made(shape)->knows_documents()) settings.emplace_back("none", true);
  for (const auto& [recompute, is_inside_documents] : settings) {
    const Plan plan =
        placed_plan(s.registries, {{"model.layers", "1"},
                                   {"model.hidden", text(shape.heads * shape.head_dim)},
                                   {"model.heads", text(shape.heads)},
                                   {"model.kv_heads", text(shape.kv_heads)},
                                   {"model.vocab", "67"},
                                   {"model.sequence", text(shape.sequence)},
                                   {"model.dropout", "0.1"},
                                   {"parallel.sequence.mode", s.mode},
                                   {"parallel.sequence.size", text(s.ranks)},
                                   {"memory.recompute", recompute},
                                   {"data.document_mask", is_inside_documents ? "true" : "false"},
                                   {"train.batch", text(shape.batch)},
                                   {"train.steps", "3"}});
    expect_certified(plan, s.registries, notes);
  }
}

struct SequenceCheck {
  const char* name;
  void (*body)(const Sequenced& s, const AttentionShape& shape, Notes& notes);
  Shapes shapes = Shapes::kAll;
};

constexpr SequenceCheck kSequenceChecks[] = {
    {"attention", check_attention},       {"bits", check_bits, Shapes::kSmall},
    {"traffic", check_attention_traffic}, {"half", check_half},
    {"worlds", check_attention_worlds},   {"training", check_attention_training, Shapes::kSmall},
};

std::vector<Finding> run_one(const SequenceCheck& check, const Sequenced& s, Shapes shapes,
                             const Tell& tell) {
  Findings findings(tell);
  const Shapes both = check.shapes == Shapes::kSmall ? Shapes::kSmall : shapes;
  for (const AttentionShape& shape : attention_shapes(s.ranks, both)) {
    const Finding blank{.kind = "sequence",
                        .name = s.mode,
                        .check = check.name,
                        .where = text("sequence", s.ranks),
                        .shape = to_string(shape)};
    findings.run_or_refuse(blank, [&](Notes& notes) {
      s.made(shape)->check(shape.heads, shape.kv_heads);
      check.body(s, shape, notes);
    });
  }
  return std::move(findings).all();
}

}  // namespace

std::vector<std::string> sequence_checks() {
  std::vector<std::string> names;
  for (const SequenceCheck& check : kSequenceChecks) names.emplace_back(check.name);
  return names;
}

std::vector<Finding> run_sequence_check(const std::string& check, const Registries& registries,
                                        const std::string& mode, int64_t ranks, Shapes shapes,
                                        const Tell& tell) {
  registries.sequence.find(mode);  // throws NotFound
  std::vector<Finding> all;
  for (const SequenceCheck& c : kSequenceChecks) {
    if (check != c.name) continue;
    all = run_one(c, {registries, mode, ranks}, shapes, tell);
  }
  return all;
}

std::vector<Finding> check_sequence(const Registries& registries, const std::string& mode,
                                    const std::vector<int64_t>& sizes, const Tell& tell) {
  Findings findings;
  for (const int64_t ranks : sizes) {
    if (mode == sequence_modes::kNone && ranks > 1) continue;
    for (const std::string& check : sequence_checks()) {
      findings.add(run_sequence_check(check, registries, mode, ranks, Shapes::kAll, tell));
    }
    if (findings.has_failed()) break;
  }
  std::vector<Finding> all = std::move(findings).all();
  KUAFU_REQUIRE(!all.empty(), "sequence mode \"none\" keeps sequences whole on one rank; give ",
                "--sizes 1");
  return all;
}

}  // namespace kuafu::conformance
