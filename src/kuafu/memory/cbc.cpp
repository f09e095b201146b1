// SPDX-License-Identifier: Apache-2.0
#include <coin/Cbc_C_Interface.h>
#include <coin/Clp_C_Interface.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <string>

#include "kuafu/base/errors.h"
#include "kuafu/memory/linear_program.h"
#include "kuafu/memory/optimum.h"

namespace kuafu::memory {
namespace {

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// x in [0, 1] for each column.
struct Box {
  explicit Box(const LinearProgram& program)
      : lower(program.cost.size(), 0), upper(lower.size(), 1) {}
  std::vector<double> lower, upper;
};

int columns_of(const LinearProgram& program) { return static_cast<int>(program.cost.size()); }
int rows_of(const LinearProgram& program) { return static_cast<int>(program.least.size()); }

/// Segments that a solution of the program keeps; whatever is between 0 and 1 leaves.
std::vector<bool> kept_by(const double* x, const Segments& all) {
  // Both solvers hold a whole number for one within 1e-6 of it.
  std::vector<bool> out(all.segments.size());
  for (size_t i = 0; i < out.size(); ++i) out[i] = x[i] < 1e-6;
  return out;
}

/// The relaxation by CLP: its bound, and its solution with what is in parts not kept.
void relax(const UseTrace& trace, const Segments& all, const LinearProgram& program, Optimum& out) {
  const std::unique_ptr<Clp_Simplex, decltype(&Clp_deleteModel)> model(Clp_newModel(),
                                                                       Clp_deleteModel);
  const Box box(program);
  Clp_setLogLevel(model.get(), 0);
  Clp_loadProblem(model.get(), columns_of(program), rows_of(program), program.start.data(),
                  program.row.data(), program.value.data(), box.lower.data(), box.upper.data(),
                  program.cost.data(), program.least.data(), nullptr);
  Clp_initialSolve(model.get());
  KUAFU_CHECK(Clp_status(model.get()) == 0, "CLP ended with status ", Clp_status(model.get()));
  out.relaxed = static_cast<double>(program.unit) *
                    bound_by_prices(program, Clp_dualRowSolution(model.get())) +
                static_cast<double>(all.fixed);
  out.bound = out.relaxed;
  out.is_kept = kept_by(Clp_primalColumnSolution(model.get()), all);
  out.bytes = cost_of(trace, all, out.is_kept);
}

/// Whether no whole number of units lies between the bound and the bytes.
bool closes(const LinearProgram& program, const Optimum& out) {
  const auto unit = static_cast<double>(program.unit);
  return std::ceil(out.bound / unit) * unit >= static_cast<double>(out.bytes);
}

/// The integer program by CBC, begun with the choice in `out`.
void search(const UseTrace& trace, const Segments& all, const LinearProgram& program,
            double seconds, Optimum& out) {
  const std::unique_ptr<Cbc_Model, decltype(&Cbc_deleteModel)> model(Cbc_newModel(),
                                                                     Cbc_deleteModel);
  const Box box(program);
  Cbc_loadProblem(model.get(), columns_of(program), rows_of(program), program.start.data(),
                  program.row.data(), program.value.data(), box.lower.data(), box.upper.data(),
                  program.cost.data(), program.least.data(), nullptr);
  for (int j = 0; j < columns_of(program); ++j) Cbc_setInteger(model.get(), j);
  Cbc_setLogLevel(model.get(), 0);
  // CBC 2.10.8 with its preprocessing has called a choice the best that costs a byte too much.
  Cbc_setParameter(model.get(), "preprocess", "off");
  Cbc_setParameter(model.get(), "timeMode", "elapsed");  // else seconds of this process's threads
  Cbc_setMaximumSeconds(model.get(), seconds);
  Cbc_setAllowableGap(model.get(), 0);
  Cbc_setAllowableFractionGap(model.get(), 0);
  Cbc_solve(model.get());
  const double* best = Cbc_bestSolution(model.get());
  if (best != nullptr) {
    const std::vector<bool> is_kept = kept_by(best, all);
    const int64_t bytes = cost_of(trace, all, is_kept);
    if (bytes <= out.bytes) {
      out.bytes = bytes;
      out.is_kept = is_kept;
    }
  }
  // Where bytes are many units, a solver's tolerance is more than one of them: its best is then a
  // little less than what any choice costs, and proves that much.
  const bool is_ended = Cbc_isProvenOptimal(model.get()) != 0;
  const double said = is_ended ? std::round(Cbc_getObjValue(model.get()))
                               : Cbc_getBestPossibleObjValue(model.get());
  const double said_bytes =
      said * static_cast<double>(program.unit) + static_cast<double>(all.fixed);
  KUAFU_CHECK(said_bytes <= static_cast<double>(out.bytes),
              "CBC says that no choice costs less than ", said_bytes,
              " bytes, and there is one of ", out.bytes);
  out.bound = std::max(out.bound, said_bytes);
}

}  // namespace

double least_bytes_bound(const UseTrace& trace, int64_t budget) {
  check(trace);
  check_fits(trace, budget);
  const Segments all = segments_of(trace, budget);
  Optimum out;
  relax(trace, all, program_of(trace, all), out);
  return out.relaxed;
}

Optimum least_bytes(const UseTrace& trace, int64_t budget, const SearchLimits& limits) {
  check(trace);
  check_fits(trace, budget);
  const std::chrono::steady_clock::time_point begin = std::chrono::steady_clock::now();
  const Segments all = segments_of(trace, budget);
  const LinearProgram program = program_of(trace, all);
  Optimum out;
  relax(trace, all, program, out);
  if (!closes(program, out)) {
    search(trace, all, program, std::max(0.0, limits.seconds - seconds_since(begin)), out);
  }
  out.is_proven = closes(program, out);
  if (out.is_proven) out.bound = static_cast<double>(out.bytes);
  out.seconds = seconds_since(begin);
  return out;
}

bool has_optimum() { return true; }

}  // namespace kuafu::memory
