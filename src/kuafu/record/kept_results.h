// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kuafu/record/files.h"
#include "kuafu/record/json.h"

namespace kuafu {

/// The document of a run while it is certified, held by the process that waits for its end: a crash,
/// a signal or an exit() costs it the certificate alone. One that a process before holds already is
/// left to it: under a launcher each rank is waited for too.
class KeptResults {
 public:
  KeptResults();
  ~KeptResults();
  KeptResults(const KeptResults&) = delete;
  KeptResults& operator=(const KeptResults&) = delete;

  /// Null: the run was not being certified when it ended, or somebody else holds it.
  Json read() const;

  /// Gives a document to who holds it; does nothing where nobody does, as on another machine.
  static void keep(const Json& document);
  /// The run tells it itself.
  static void forget();

 private:
  File file_;
};

}  // namespace kuafu
