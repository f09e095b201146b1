// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kuafu/meter/book.h"
#include "kuafu/states/piece.h"
#include "kuafu/states/state_file.h"

namespace kuafu {

/// A slot of a rule, or "master", the f32 copy of a half-precision value.
struct SlotTensor {
  std::string param, slot;
  Tensor tensor;     ///< (shard)
  size_t shard = 0;  ///< position of the shard it belongs to
};

/// The type that a value is updated in: f32 for half precision, which has a master copy then, since
/// a step of lr 1e-4 is lost in a bf16's 8 bits; else its own.
at::ScalarType update_type(const Tensor& value);

/// What an optimizer keeps of each piece, by name. It is there once declared, used or not.
class RuleSlots {
 public:
  struct Row {
    const Param* param = nullptr;
    std::vector<std::string> names;
    std::vector<Tensor> slots;  ///< like the piece, in the type of the update
    Tensor master;              ///< the same, of half precision; else undefined
  };
  using Names = std::function<const std::vector<std::string>&(const Param&)>;

  using Use = StateFile::Use;

  /// Slots that are declared from now on lie where `book` is of; null: where all else does. With a
  /// disk they lie there, and masters where `book` is of. @pre it outlives them
  void keep_on(RankBook* book, std::optional<DiskTier> disk = {}) {
    book_ = book;
    disk_ = std::move(disk);
  }
  /// Makes the slots of these pieces anew, in the place of all before: zero, masters the values.
  void declare(std::span<const ParamShard> pieces, const Names& names);
  bool is_declared() const { return !rows_.empty(); }
  /// Of the declared pieces, in their order.
  const std::vector<Row>& rows() const { return rows_; }
  /// Those of declared pieces, all or some, in their order. Throws InternalError for another, or
  /// one that lacks its value or gradient.
  std::vector<Row*> rows_of(std::span<const ParamShard> pieces);
  /// All of them, not copies. On a disk a slot has its elements from use() on.
  std::vector<SlotTensor> tensors() const;

  /// Whether slots are somewhere else between their uses: then each has to be brought by use().
  bool is_away() const { return file_ != nullptr; }
  /// The rows that a step uses, in order: those on a disk come ahead.
  void expect(const std::vector<size_t>& rows) {
    if (!file_) return;
    file_->begin_step();
    file_->expect(rows);
  }
  /// The slots of a row are here until one that is far from it is used, or rest().
  void use(size_t row, Use use) {
    if (file_) file_->use(row, use);
  }
  void rest() {
    if (file_) file_->rest();
  }
  DiskCounts disk() const { return file_ ? file_->counts() : DiskCounts{}; }
  size_t number_of(const Row& row) const { return static_cast<size_t>(&row - rows_.data()); }

 private:
  std::vector<Row> rows_;
  RankBook* book_ = nullptr;
  std::optional<DiskTier> disk_;
  std::unique_ptr<StateFile> file_;  // null: they lie in rows_
};

}  // namespace kuafu
