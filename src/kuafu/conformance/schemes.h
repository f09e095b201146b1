// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "kuafu/engine/registries.h"

// What every tensor-parallel scheme must do, in or out of tree, as a library: tests and `kuafu
// conformance` run the same bodies. Nothing here asserts; a check returns what it found.
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

struct Finding {
  std::string check = {};   ///< name of the check
  std::string scheme = {};  ///< mode of the plan
  std::string mesh = {};    ///< "x2 x y2 x z2"
  std::string shape = {};   ///< extents checked
  bool is_ok = false;
  std::string detail = {};  ///< the first thing that was wrong, and where; empty if is_ok
};

class Subject;
class Notes;

/// One fact about a scheme. The body runs on thread ranks of its own and notes what it sees.
struct Check {
  std::string name;
  std::string fact;
  std::function<void(const Subject& subject, const LayerShape& shape, Notes& notes)> body;
};

/// layouts, products, gradients, traffic, shards, layers, worlds, training, refusal.
const std::vector<Check>& scheme_checks();

/// Every placing of `mode` on the given rank counts, a depth for each that gives other axes.
/// Sizes that the mode cannot arrange are left out.
std::vector<SchemeCase> cases_of(const Registries& registries, const std::string& mode,
                                 const std::vector<int64_t>& sizes);

/// Two shapes that the case's layouts divide: one of several elements a shard, one as narrow as can
/// be. The vocabulary divides in neither, where it is sharded at all.
std::vector<LayerShape> shapes_of(const Registries& registries, const SchemeCase& where);

/// One check of one case, once a shape. An exception of the scheme is a finding, not the end.
std::vector<Finding> run_check(const Check& check, const Registries& registries,
                               const SchemeCase& where);

}  // namespace kuafu::conformance
