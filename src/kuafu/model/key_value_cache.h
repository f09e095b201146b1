// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "kuafu/model/context.h"

namespace kuafu {

/// Takes keys and values off the device between their uses. Attentions have numbers in the order of
/// their uses, which is the same in every forward.
class CacheHome {
 public:
  virtual ~CacheHome() = default;
  /// Keys and values of one more attention, (B, Nkv, capacity, D) each: they leave. Its number.
  virtual size_t add(const Tensors& kept) = 0;
  /// They are on the device, until they leave.
  virtual void bring(size_t number) = 0;
  /// Their rows (B, Nkv, 1, D) at a position of each sample are new.
  virtual void leave(size_t number, const Tensors& rows, const std::vector<int64_t>& positions) = 0;
};

/// What a rank keeps of the positions that went forward: keys and values of each attention and
/// micro-batch, laid out as the attention's inner stream. Two kinds of forwards use it:
///
///   prompts "abc", "x"       tokens given    at            keys kept then       query sees
///   the first, of them all   a b c           0 1 2         a b c                what is up to it
///                            x . .           0 1 2         x . .   (padding)    what is up to it
///   each later one           d               3             a b c d              a b c d
///                            y               1             x y .                x y
///
/// A later forward has one token of each sample, at a position of its own, and its key takes the
/// place of what padding had left there: no query has seen that, for attention is causal.
class KeyValueCache {
 public:
  /// Of samples of at most so many positions. `home`: where they lie between their uses; null: on the
  /// device.
  explicit KeyValueCache(int64_t capacity, std::unique_ptr<CacheHome> home = nullptr)
      : capacity_(capacity), home_(std::move(home)) {}

  /// Whether the first forward is done, the same on every rank, with attentions or without.
  bool is_filled() const { return is_filled_; }
  void set_filled() { is_filled_ = true; }

  /// Bytes of this rank, booked as activations where they lie.
  int64_t bytes() const;

  /// Where an attention's part of a micro-batch is kept.
  struct CacheKey {
    const void* attention;
    int64_t first_sample;
    auto operator<=>(const CacheKey&) const = default;
  };
  /// Causal attention of queries to all keys and values so far, the new ones among them, which are
  /// kept. qkv: q (B, N, S, D), k and v (B, Nkv, S, D) of the new tokens -> like q. `positions`: of
  /// each sample of a later forward, whose S is 1. @pre this rank holds whole sequences
  Tensor attend(const AttentionParallel& attention, const CacheKey& place, const Tensors& qkv,
                const std::vector<int64_t>& positions);

 private:
  struct Kept {
    Tensor keys, values;  // (B, Nkv, capacity, D)
    size_t number = 0;    // at home
  };
  Tensor attend_first(const AttentionParallel& attention, Kept& kept, const Tensors& qkv) const;

  int64_t capacity_;
  std::unique_ptr<CacheHome> home_;
  bool is_filled_ = false;
  std::map<CacheKey, Kept> all_;
};

/// Whether the side is of a later forward of a cache: one token of each sample, at its own position.
bool is_behind_cache(const Side& side);
/// Its positions: those of the samples that this rank has, as `grid` lays them out.
std::vector<int64_t> positions_behind_cache(const Mesh& mesh, const TokenGrid& grid,
                                            const Side& side);

/// x (B, 1, H/axes) + rows first + position of the table (rows, H/axes).
Tensor add_positions_behind_cache(const Tensor& x, const Tensor& table,
                                  const std::vector<int64_t>& positions, int64_t first);

}  // namespace kuafu
