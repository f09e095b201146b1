// SPDX-License-Identifier: Apache-2.0
//
// A small GPT under a scheme: certified against one rank, and refused where shapes do not divide.

#include <algorithm>
#include <numeric>
#include <optional>

#include "kuafu/conformance/subject.h"
#include "kuafu/conformance/trial_runs.h"
#include "kuafu/engine/engine.h"

namespace kuafu::conformance {
namespace {

struct Extents {
  int64_t batch, sequence, heads, hidden, vocab;
};

/// A GPT whose widths the scheme divides: heads by the inner axes, H and 4 H by the weights'.
Extents extents_of(const Subject& subject, const LayerShape& e) {
  const Mesh mesh(subject.axes(), 0);
  const auto tp = subject.make(mesh);
  const int64_t heads = mesh.size(tp->activation(Stream::kInner).dims[2]);
  const int64_t unit = std::lcm(mesh.size(tp->weight(Role::kExpand).dims[1]),
                                mesh.size(tp->weight(Role::kContract).dims[0]));
  return {e.b, e.s, heads, multiple(std::lcm(std::lcm(unit, heads), e.h), e.h), e.v};
}

Plan plan_of(const Subject& subject, const Extents& e, const char* type = "f64",
             int64_t steps = 3) {
  const TensorModes modes = subject.registries().tensor_modes();
  const std::string toml =
      text("[model]\nlayers = 1\nhidden = ", e.hidden, "\nheads = ", e.heads, "\nvocab = ", e.vocab,
           "\nsequence = ", e.sequence, "\ndropout = 0.1\ndtype = \"", type,
           "\"\n[parallel.tensor]\nmode = \"", subject.where().mode,
           "\"\nsize = ", subject.where().size, "\ndepth = ", subject.where().depth,
           "\n[optimizer]\nlr = 0.01\nclip = 0.5\n[data]\nkind = \"synthetic\"\n[train]\nbatch = ",
           e.batch, "\nsteps = ", steps, "\nvalidation_batches = 0\n");
  return resolve(parse_plan(toml, "conformance", subject.registries().choices()), subject.ranks(),
                 modes);
}

/// Tries to place a plan that the scheme does not divide; what it used of the wire is noted.
void expect_refused(const Subject& subject, const Extents& e, const std::string& what,
                    Notes& notes) {
  std::optional<Plan> plan;
  try {
    plan = plan_of(subject, e);
  } catch (const Refused&) {
    return;  // when the plan is read
  }
  const auto data = made_up_data(*plan);
  subject.on_threads([&](Communicator& world) {
    Ledger of_world, of_mesh;
    world.meter(&of_world, "world");
    bool is_refused = false;
    try {
      Engine engine(*plan, subject.registries(), world, *data, {.ledger = &of_mesh});
    } catch (const Refused&) {
      is_refused = true;
    }
    notes.expect(is_refused, what, " is not refused");
    for (const Ledger* ledger : {&of_world, &of_mesh}) {
      for (const auto& [axis, entry] : ledger->axes()) {
        notes.expect(
            !is_refused || std::accumulate(entry.calls.begin(), entry.calls.end(), int64_t{0}) == 0,
            what, " is refused after communication on ", axis);
      }
    }
  });
}

}  // namespace

void check_training(const Subject& subject, const LayerShape& shape, Notes& notes) {
  // A run long enough for what goes wrong late, in the type of most runs, and nothing in it small.
  constexpr int64_t kSteps = 12, kWide = 72;
  Extents wide = extents_of(subject, shape);
  wide.hidden = multiple(wide.hidden, kWide);
  wide.sequence = multiple(wide.sequence, kWide);
  wide.vocab += kWide;
  const Plan plan = plan_of(subject, wide, "f32", kSteps);
  std::set<std::string> unbooked;
  const Certificate c = trained(plan, subject.registries(), true, &unbooked)[0].certificate;
  notes.expect(c.verdict == "equal" && c.level == "full", c.level, ", twin ", c.describe(),
               "; native ", c.native.describe());
  expect_booked(unbooked, notes);
}

void check_refusal(const Subject& subject, const LayerShape& shape, Notes& notes) {
  const Mesh mesh(subject.axes(), 0);
  const auto tp = subject.make(mesh);
  const Extents legal = extents_of(subject, shape);
  const auto parts = [&](Stream s, size_t dim) { return mesh.size(tp->activation(s).dims[dim]); };
  for (const Stream s : {Stream::kOuter, Stream::kInner}) {
    Extents e = legal;
    e.batch += parts(s, 0) > 1;
    if (e.batch % parts(s, 0) != 0) expect_refused(subject, e, text("batch ", e.batch), notes);
    e = legal;
    e.sequence += parts(s, 1) > 1;
    if (e.sequence % parts(s, 1) != 0) {
      expect_refused(subject, e, text("sequence ", e.sequence), notes);
    }
  }
  if (legal.heads > 1) {
    Extents e = legal;
    e.heads = 1;
    expect_refused(subject, e, "one head", notes);
  }
  // One more column a head is the next width that the heads themselves divide.
  Extents e = legal;
  e.hidden += e.heads;
  for (const Axes& axes :
       {tp->activation(Stream::kOuter).dims[2], tp->weight(Role::kExpand).dims[0],
        tp->weight(Role::kContract).dims[1]}) {
    if (e.hidden % mesh.size(axes) == 0) continue;
    return expect_refused(subject, e, text("hidden ", e.hidden), notes);
  }
}

}  // namespace kuafu::conformance
