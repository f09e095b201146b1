// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kuafu/comm/buffer.h"
#include "kuafu/comm/ledger.h"
#include "kuafu/comm/work.h"

namespace kuafu {

enum class ReduceOp : uint8_t { kSum, kMax, kMin };

/// Where a rank goes in a split: ranks of one color form a group, ordered by key, then by rank.
/// A negative color leaves the rank out.
struct SplitKey {
  int color = 0;
  int key = 0;
};

/// One rule, evaluated for every rank by every rank: a simulated world records each rank alone and
/// still knows all groups.
using SplitRule = std::function<SplitKey(int rank)>;

/// Elements per rank for an uneven all_to_all; empty means equal parts.
struct Splits {
  std::vector<int64_t> send;  ///< elements of `in` for each rank, in rank order
  std::vector<int64_t> recv;  ///< elements of `out` from each rank, in rank order
};

/// A group of ranks that can talk. Every rank of the group makes the same calls in the same order.
/// All collectives accept zero elements and one rank. `out` may equal `in` where sizes agree
/// (all_gather: `in` may be my part of `out`; reduce_scatter: `out` may be my part of `in`).
/// Sums of bf16 and f16 accumulate in f32. Sums are taken in an order that depends only on the
/// group, never on timing: two runs give the same bits.
/// @pre buffers stay alive and untouched until the Work is waited for.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual std::string_view name() const = 0;  ///< "self", "threads", "mpi", "nccl", "simulated"
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// World ranks of this group, in group order.
  virtual const std::vector<int>& members() const = 0;
  /// My group under the rule; null where my color is negative. Collective over this group.
  virtual std::unique_ptr<Communicator> split(const SplitRule& rule) = 0;

  virtual Work broadcast(Buffer b, int root) = 0;
  virtual Work reduce(Buffer b, int root,
                      ReduceOp op) = 0;  ///< result in the root's b; others unspecified
  virtual Work all_reduce(Buffer b, ReduceOp op) = 0;
  virtual Work all_gather(Buffer out, Buffer in) = 0;                   ///< |out| = size * |in|
  virtual Work reduce_scatter(Buffer out, Buffer in, ReduceOp op) = 0;  ///< |in| = size * |out|
  virtual Work all_to_all(Buffer out, Buffer in, const Splits& splits = {}) = 0;
  virtual Work send(Buffer b, int to, int tag) = 0;
  virtual Work recv(Buffer b, int from, int tag) = 0;
  virtual Work send_recv(Buffer out, int to, Buffer in, int from,
                         int tag) = 0;  ///< sends `out`, receives `in`
  virtual void barrier() = 0;

  /// Books all further calls of this communicator under `label`; null stops booking.
  /// @pre the ledger outlives this communicator.
  void meter(Ledger* ledger, const std::string& label) {
    ledger_ = ledger;
    entry_ = ledger == nullptr ? nullptr : &ledger->axis(label);
    label_ = label;
  }
  const std::string& label() const { return label_; }
  Ledger* ledger() const { return ledger_; }

 protected:
  /// The entry to book into, or null where counting is off.
  AxisLedger* book() const {
    return ledger_ != nullptr && ledger_->is_counting() ? entry_ : nullptr;
  }

 private:
  Ledger* ledger_ = nullptr;
  AxisLedger* entry_ = nullptr;
  std::string label_;
};

}  // namespace kuafu
