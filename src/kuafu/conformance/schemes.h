// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "kuafu/conformance/findings.h"
#include "kuafu/engine/registries.h"

// What every tensor-parallel scheme must do, in or out of tree, as a library: tests and `kuafu
// conformance` run the same bodies.
namespace kuafu::conformance {

/// Where a scheme is put: a mode of the plan on `size` ranks.
struct SchemeCase {
  std::string mode;
  int64_t size = 1, depth = 1;
  bool operator==(const SchemeCase&) const = default;
};

/// Global extents of the layers under check: batch, sequence, hidden, inner width, vocabulary.
struct LayerShape {
  int64_t b = 1, s = 1, h = 1, f = 1, v = 1;
};
/// "B 8, S 6, H 24, F 36, V 29"
std::string to_string(const LayerShape& shape);

class Subject;

/// One fact about a scheme. The body runs on thread ranks of its own and notes what it sees.
struct Check {
  std::string name;
  std::string fact;
  std::function<void(const Subject& subject, const LayerShape& shape, Notes& notes)> body;
  Shapes shapes = Shapes::kAll;
};

/// layouts, types, products, half, gradients, traffic, shards, layers, worlds, training, refusal.
const std::vector<Check>& scheme_checks();

/// Every placing of `mode` on the given rank counts, a depth for each that gives other axes.
/// Sizes that the mode cannot arrange are left out.
std::vector<SchemeCase> cases_of(const Registries& registries, const std::string& mode,
                                 const std::vector<int64_t>& sizes);

/// Shapes that the case's layouts divide. The first two are small: one of several elements a shard,
/// one as narrow as can be. In the others each dim of a shard has 64 elements and more at least once,
/// and numbers beside powers of two. The vocabulary divides in none, where it is sharded at all.
std::vector<LayerShape> shapes_of(const Registries& registries, const SchemeCase& where,
                                  Shapes shapes = Shapes::kAll);

/// One check of one case, once a shape, as far as both `shapes` and the check go. An exception of the
/// scheme is a finding, not the end.
std::vector<Finding> run_check(const Check& check, const Registries& registries,
                               const SchemeCase& where, Shapes shapes = Shapes::kAll,
                               const Tell& tell = {});

/// Everything about one scheme on the given rank counts, up to the first that fails. Throws ConfigError
/// where it takes none.
std::vector<Finding> check_scheme(const Registries& registries, const std::string& mode,
                                  const std::vector<int64_t>& sizes, const Tell& tell = {});

}  // namespace kuafu::conformance
