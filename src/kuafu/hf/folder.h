// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kuafu/checkpoint/safetensors.h"
#include "kuafu/hf/config.h"

namespace kuafu::hf {

/// A model as `save_pretrained` of `transformers` leaves it, opened for reading:
///
///     config.json
///     model.safetensors                   or  model.safetensors.index.json
///                                             model-00001-of-00002.safetensors ...
class Folder {
 public:
  /// Opens all files and holds their tensors to the config: none is missing but whole parts of a BERT's
  /// heads, none is too many, every one has its shape, and all have one type. Throws ConfigError with file
  /// and tensor.
  explicit Folder(const std::string& path);

  const Config& config() const { return config_; }
  DType type() const { return type_; }  ///< of the weights
  /// Ours, in order of their names.
  const std::vector<Mapped>& tensors() const { return tensors_; }
  /// Ours that a model without a head (BertModel, BertForMaskedLM) has not, in order of their names.
  const std::vector<Mapped>& absent() const { return absent_; }
  /// A box of a tensor of ours, row by row: reads the parts of theirs one after the other, and of each a few rows at
  /// a time. Throws ConfigError where an element is infinite or no number, in the box or not.
  void read(const Mapped& tensor, const Slice& box, char* ours) const;

 private:
  struct Theirs {
    const Safetensors* file = nullptr;
    std::string name;  ///< as it stands there
  };

  void open(const std::string& path);
  void match();
  void leave_heads_out();

  std::string path_;
  Config config_;
  DType type_ = DType::kF32;
  std::vector<std::unique_ptr<Safetensors>> files_;
  std::map<std::string, Theirs> theirs_;  ///< by the name that the mapping has
  std::vector<Mapped> tensors_, absent_;
};

/// Writes such a folder: config.json and safetensors of at most `shard_bytes` each (a larger tensor has a
/// file of its own), with an index where there are several. `read` gives a tensor of ours. `path` must
/// not be there; it gets its name when all of it is written. Throws ConfigError where it cannot be.
void write_folder(const std::string& path, Family family, const ModelPlan& model, DType type,
                  const std::function<std::vector<char>(const Mapped&)>& read, int64_t shard_bytes);

}  // namespace kuafu::hf
