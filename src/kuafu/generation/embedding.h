// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "kuafu/engine/engine.h"

namespace kuafu {

/// Which of a text's last hidden states make its embedding.
enum class Pooling : uint8_t {
  kMean,   ///< the mean over all its tokens
  kFirst,  ///< that of the first token
};

/// What is to be embedded, the same on all ranks but for on_batch.
struct TextsToEmbed {
  std::vector<std::vector<int64_t>> texts = {};  ///< each of 1 to model.sequence tokens
  Pooling pooling = Pooling::kMean;
  bool is_unit = false;  ///< scaled to a length of 1
  /// Asked on rank 0 after each forward: why the rest is left, a number of the caller's; 0: it goes on.
  std::function<int64_t(size_t done)> on_batch = {};
};

/// Vectors of texts.
struct Embedded {
  std::vector<std::vector<double>> vectors =
      {};  ///< in the order of the texts, on rank 0; empty: not done
  int64_t forwards = 0;
  int64_t stopped = 0;  ///< what on_batch said
};

/// The plan as an embedding runs it: no dropout, an optimizer that keeps nothing. Throws ConfigError for
/// another model than a BERT.
Plan plan_of_embedding(Plan plan);

/// Texts of one length go forward together, train.batch at a time, without padding: every token of a
/// BERT sees every other. Collective. Throws ConfigError where the plan takes no sequence but one of
/// model.sequence, and a text is shorter. @pre the engine's plan is one of plan_of_embedding()
Embedded embed(Engine& engine, Communicator& world, const TextsToEmbed& what);

/// foretell_alike() of its forwards, of texts of at most `longest` tokens.
void foretell_embedding(Engine& engine, const Registries& registries, int rank,
                        bool has_parameters_on_disk, int64_t longest);

}  // namespace kuafu
