// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "kuafu/checkpoint/checkpoint.h"

namespace kuafu {

// One plain safetensors file of a model's whole tensors, for other programs (docs/checkpoint.md):
// named as in checkpoints, without optimizer state. Tensors pass one by one: an
// export holds one at a time, an import reads one more ahead.

/// Metadata of such a file: kFormat, the model's keys as JSON, the steps of the run it is from.
namespace weights {
inline constexpr const char* kFormatKey = "format";
inline constexpr const char* kFormat = "kuafu weights 1";
inline constexpr const char* kModelKey = "model";
inline constexpr const char* kStepKey = "step";
/// A string of a checkpoint's state that says: weights alone, where a run may begin.
inline constexpr const char* kStateKey = "weights_only";
}  // namespace weights

/// A model's tensors, wherever they come from. Several ranks may read at once.
struct NamedWeights {
  std::string path;
  std::vector<TensorBytes> tensors;  ///< without their data
  /// The elements of a box of a tensor into `out`, row by row. Whatever the file's order, no more than
  /// 1 MiB, or one of its rows, is held; of a checkpoint the piece that it is read from.
  std::function<void(const std::string& name, const Slice& box, char* out)> read;
  /// Of the model, and not there: a head that was left out. They keep their first values.
  std::vector<std::string> absent = {};
};

/// Names of a checkpoint's tensors without what an optimizer of that kind keeps of them, in order.
std::vector<std::string> weight_names(const Checkpoint& from, const std::string& optimizer);

/// Writes them into one file, whole, in the type they were saved in. The file gets its name when it
/// is complete. Returns its bytes of data. Throws ConfigError as Checkpoint::read does, and where
/// it cannot be written.
int64_t export_weights(const Checkpoint& from, const std::vector<std::string>& names,
                       const Metadata& metadata, const std::string& file);

/// Throws ConfigError naming the first element of a file's tensor that is no number or infinite:
/// "blocks.0.bias is infinite or no number at [3]". `bytes` are the tensor's from that row of dim 0 on.
void require_finite(const Safetensors& from, const std::string& name, std::span<const char> bytes,
                    int64_t first_row = 0);

/// Writes them as the checkpoint of step 0 in folder `root`, whose state is `state`: one is read while the one before it is written. Throws ConfigError for what the folder has wrong,
/// and what reading throws; then there is no checkpoint.
void import_weights(const NamedWeights& from, const Metadata& state, const std::string& root);

}  // namespace kuafu
