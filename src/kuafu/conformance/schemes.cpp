// SPDX-License-Identifier: Apache-2.0
#include "kuafu/conformance/schemes.h"

#include <algorithm>
#include <exception>
#include <numeric>
#include <set>

#include "kuafu/conformance/subject.h"
#include "kuafu/engine/plain_words.h"
#include "kuafu/parallel/tensor/axis_types.h"

namespace kuafu::conformance {
namespace {

/// What the extents must be multiples of; v: the ranks a vocabulary is dealt out to.
LayerShape units_of(const TensorParallel& tp) {
  const Mesh& mesh = tp.mesh();
  const auto parts = [&](std::initializer_list<Axes> dims) {
    int64_t unit = 1;
    for (const Axes& axes : dims) unit = std::lcm(unit, mesh.size(axes));
    return unit;
  };
  const Layout outer = tp.activation(Stream::kOuter), inner = tp.activation(Stream::kInner);
  const Layout expand = tp.weight(Role::kExpand), contract = tp.weight(Role::kContract);
  return {.b = parts({outer.dims[0], inner.dims[0]}),
          .s = parts({outer.dims[1], inner.dims[1]}),
          .h = parts({outer.dims[2], expand.dims[0], contract.dims[1]}),
          .f = parts({inner.dims[2], expand.dims[1], contract.dims[0]}),
          .v = parts({contract.dims[0], inner.dims[2]})};
}

/// The layouts are printed and indexed by everything else: they are looked at first.
void check_layout(const Layout& layout, size_t dims, const Mesh& mesh, const std::string& what,
                  Notes& notes) {
  notes.expect(layout.dims.size() == dims, what, " has ", layout.dims.size(), " dims, expected ",
               dims);
  std::set<std::string> seen;
  for (const std::string& name : layout.all_axes()) {
    const auto is_it = [&](const Axis& axis) { return axis.name == name; };
    const auto& axes = mesh.axes();
    notes.expect(std::any_of(axes.begin(), axes.end(), is_it), what, " names the axis ", name,
                 ", which the mesh lacks");
    notes.expect(seen.insert(name).second, what, " names the axis ", name, " twice");
  }
}

}  // namespace

void check_layouts(const Subject& subject, const LayerShape&, Notes& notes) {
  int64_t ranks = 1;
  for (const Axis& axis : subject.axes()) ranks *= axis.size;
  notes.expect(ranks == subject.ranks(), "the mode arranges ", subject.ranks(), " ranks on ",
               subject.mesh(), ", which has ", ranks);
  const Mesh mesh(subject.axes(), 0);
  const auto tp = subject.make(mesh);
  check_layout(tp->activation(Stream::kOuter), 3, mesh, "the outer activation", notes);
  check_layout(tp->activation(Stream::kInner), 3, mesh, "the inner activation", notes);
  check_layout(tp->weight(Role::kExpand), 2, mesh, "the expand weight", notes);
  check_layout(tp->weight(Role::kContract), 2, mesh, "the contract weight", notes);
}

void check_types(const Subject& subject, const LayerShape&, Notes& notes) {
  try {
    check_axis_types(subject.registries().tensor.find(subject.where().mode), subject.axes());
  } catch (const WrongAxes& e) {
    notes.fail(e.what());
  }
}

std::string to_string(const LayerShape& e) {
  return text("B ", e.b, ", S ", e.s, ", H ", e.h, ", F ", e.f, ", V ", e.v);
}

const std::vector<Check>& scheme_checks() {
  static const std::vector<Check> checks = {
      {"layouts", "layouts name axes of the mesh, each once", check_layouts, Shapes::kSmall},
      {"types", "what is declared follows from the products: no sum is missing or left over",
       check_types, Shapes::kSmall},
      {"products", "the three products equal the serial ones", check_products},
      {"half",
       "the three products in bf16 and f16 equal the serial ones of the same rounded inputs",
       check_half, Shapes::kSmall},
      {"gradients", "gradients apart have the bits of gradients together, run after run",
       check_gradients},
      {"traffic", "elements received equal cost(), product by product, and embedding_cost()",
       check_traffic},
      {"shards", "scatter then gather of every tensor is exact", check_shards},
      {"layers", "what models are made of equals serial: values, input and parameter gradients",
       check_layers},
      {"worlds", "the simulated world counts the bytes, FLOPs and peak of thread ranks",
       check_worlds},
      {"training", "losses, gradients and updates of a GPT equal the oracle's, in f64 and f32",
       check_training, Shapes::kSmall},
      {"refusal", "shapes that do not divide are refused before any communication", check_refusal,
       Shapes::kSmall},
  };
  return checks;
}

std::vector<SchemeCase> cases_of(const Registries& registries, const std::string& mode,
                                 const std::vector<int64_t>& sizes) {
  const TensorScheme& scheme = registries.tensor.find(mode);
  std::vector<SchemeCase> cases;
  for (const int64_t size : sizes) {
    std::vector<std::vector<Axis>> seen;
    for (int64_t depth = 1; depth <= size; ++depth) {
      try {
        const std::vector<Axis> axes = scheme.mode.axes(size, depth);
        if (std::find(seen.begin(), seen.end(), axes) != seen.end()) continue;
        seen.push_back(axes);
        cases.push_back({mode, size, depth});
      } catch (const Refused&) {  // this scheme has no such arrangement
      }
    }
  }
  return cases;
}

std::vector<LayerShape> shapes_of(const Registries& registries, const SchemeCase& where,
                                  Shapes shapes) {
  const Subject subject(registries, where);
  const Mesh mesh(subject.axes(), 0);
  const LayerShape unit = units_of(*subject.make(mesh));
  // A width of two or less would leave a norm nothing but rounding to compare.
  const LayerShape wide = {.b = multiple(unit.b, 4),
                           .s = multiple(unit.s, 6),
                           .h = multiple(unit.h, 24),
                           .f = multiple(unit.f, 36),
                           .v = 29 % unit.v == 0 && unit.v > 1 ? 31 : 29};
  const LayerShape narrow = {.b = unit.b,
                             .s = unit.s,
                             .h = multiple(unit.h, 5),
                             .f = multiple(unit.f, 7),
                             .v = unit.v + 1};
  if (shapes == Shapes::kSmall) return {wide, narrow};
  // Every rank holds whole activations and logits to compare: where many ranks share sequence and
  // features, or sequence and vocabulary, what would pass 32 MiB of f64 is as long as asked in all,
  // not in each shard.
  const auto times = [&](const LayerShape& n) -> LayerShape {
    constexpr int64_t kMost = int64_t{1} << 22;
    LayerShape e = {unit.b * n.b, unit.s * n.s, unit.h * n.h, unit.f * n.f, unit.v * n.v + 1};
    if (e.b * e.s * std::max(e.h, e.f) > kMost) e.s = multiple(unit.s, n.s);
    if (e.b * e.s * e.v > kMost) e.v = multiple(unit.v, n.v) + 1;
    if (e.b * e.s * e.v > kMost) e.s = multiple(unit.s, n.s);
    return e;
  };
  return {wide, narrow, times({.b = 65, .s = 1, .h = 5, .f = 7, .v = 127}),
          times({.b = 1, .s = 130, .h = 7, .f = 5, .v = 64}),
          times({.b = 1, .s = 64, .h = 64, .f = 64, .v = 65}),
          times({.b = 2, .s = 3, .h = 127, .f = 256, .v = 2}),
          times({.b = 3, .s = 65, .h = 96, .f = 130, .v = 128}),
          // each dim as long as real runs have it, by itself: a shard costs little
          times({.b = 513, .s = 2, .h = 3, .f = 4, .v = 3}),
          times({.b = 1, .s = 2049, .h = 4, .f = 3, .v = 2}),
          times({.b = 2, .s = 1, .h = 1025, .f = 3, .v = 2}),
          times({.b = 1, .s = 3, .h = 3, .f = 4097, .v = 2}),
          times({.b = 1, .s = 2, .h = 3, .f = 3, .v = 50257})};
}

std::vector<Finding> run_check(const Check& check, const Registries& registries,
                               const SchemeCase& where, Shapes shapes, const Tell& tell) {
  Findings findings(tell);
  Finding blank{.kind = "scheme", .name = where.mode, .check = check.name};
  try {
    const Subject subject(registries, where);
    blank.where = subject.mesh();
    const Shapes both = check.shapes == Shapes::kSmall ? Shapes::kSmall : shapes;
    for (const LayerShape& shape : shapes_of(registries, where, both)) {
      blank.shape = to_string(shape);
      findings.run(blank, [&](Notes& n) { check.body(subject, shape, n); });
    }
  } catch (const std::exception& error) {
    blank.detail = text("threw: ", plain_words(error));
    findings.add(blank);
  }
  return std::move(findings).all();
}

std::vector<Finding> check_scheme(const Registries& registries, const std::string& mode,
                                  const std::vector<int64_t>& sizes, const Tell& tell) {
  const std::vector<SchemeCase> cases = cases_of(registries, mode, sizes);
  KUAFU_REQUIRE(!cases.empty(), "tensor mode \"", mode,
                "\" arranges none of --sizes; give one that it does (`kuafu list tensor` says what "
                "it is)");
  Findings findings;
  for (const SchemeCase& where : cases) {
    for (const Check& check : scheme_checks()) {
      findings.add(run_check(check, registries, where, Shapes::kAll, tell));
    }
    if (findings.has_failed()) break;
  }
  return std::move(findings).all();
}

}  // namespace kuafu::conformance
