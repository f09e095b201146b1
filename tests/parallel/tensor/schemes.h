// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "kuafu/parallel/tensor/interface.h"

// The table that every conformance body of tensor-parallel schemes runs over. A new scheme adds its
// rows here and is tested.
namespace kuafu::tests {

struct SchemeCase {
  std::string mode;
  int64_t size = 1, depth = 1;

  std::vector<Axis> axes() const { return builtin_tensor_modes().at(mode).axes(size, depth); }
  std::unique_ptr<TensorParallel> make(const Mesh& mesh) const {
    Registry<TensorScheme> schemes("tensor mode");
    register_tensor_schemes(schemes);
    return schemes.find(mode).make(mesh);
  }
  int ranks() const { return static_cast<int>(size); }
};

inline std::ostream& operator<<(std::ostream& out, const SchemeCase& c) {
  return out << c.mode << " on " << c.size << (c.depth > 1 ? ", depth " : "")
             << (c.depth > 1 ? std::to_string(c.depth) : "");
}

inline const std::vector<SchemeCase>& scheme_cases() {
  static const std::vector<SchemeCase> cases = {
      {"none", 1},    {"1d", 1},      {"1d", 2},      {"1d", 3},      {"1d", 4},
      {"1d-sp", 1},   {"1d-sp", 2},   {"1d-sp", 3},   {"2d", 1},      {"2d", 4},
      {"2d", 9},      {"2.5d", 1, 1}, {"2.5d", 4, 1}, {"2.5d", 8, 2}, {"2.5d", 12, 3},
      {"2.5d", 3, 3}, {"3d", 1},      {"3d", 8},      {"3d", 27},
  };
  return cases;
}

/// "2.5d" -> "m2p5d_12x3": names that GoogleTest and CTest take.
inline std::string name_of(const SchemeCase& c) {
  std::string name = "m";
  for (const char ch : c.mode) name += ch == '.' ? 'p' : ch == '-' ? '_' : ch;
  return name + "_" + std::to_string(c.size) + "x" + std::to_string(c.depth);
}

}  // namespace kuafu::tests
