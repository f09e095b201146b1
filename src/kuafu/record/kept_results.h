// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "kuafu/record/files.h"
#include "kuafu/record/json.h"

namespace kuafu {

/// The document of a run while it is certified, held by the process that waits for its end: a crash,
/// a signal or an exit() costs it the certificate alone. One that a process before holds already is
/// left to it: under a launcher each rank is waited for too. Or lines, of what a document that is
/// written now and then does not have yet.
class KeptResults {
 public:
  KeptResults();
  ~KeptResults();
  KeptResults(const KeptResults&) = delete;
  KeptResults& operator=(const KeptResults&) = delete;

  /// Null: the run was not being certified when it ended, or somebody else holds it.
  Json read() const;
  /// What add() gave since the last forget().
  std::vector<Json> lines() const;

  /// What is held, as who gave it or another process of the same holder sees it; null: nothing, or nobody holds it.
  static Json held();
  /// Gives a document to who holds it; false where nobody does, as on another machine.
  static bool keep(const Json& document);
  static void add(const Json& line);
  /// The run tells it itself.
  static void forget();

 private:
  File file_;
};

}  // namespace kuafu
