// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace kuafu {

enum class Verb : uint8_t {
  kBroadcast,
  kReduce,
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kSend,
  kRecv,
  kSendRecv,
  kBarrier,
};
inline constexpr int kNumVerbs = 10;

/// "broadcast", "reduce", "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send",
/// "recv", "send_recv", "barrier".
std::string_view to_string(Verb v);

/// How an entry was counted: on the wire itself, or by the convention of cost_model.h where the
/// transport has no wire (threads) or hides it (native MPI, NCCL).
enum class Counting : uint8_t { kWire, kConvention };

/// A set of world ranks, kept sorted: 4 bytes a rank, so that the ledgers of thousands of simulated
/// ranks fit.
class RankSet {
 public:
  using value_type = int;
  using const_iterator = std::vector<int>::const_iterator;

  RankSet() = default;
  RankSet(std::initializer_list<int> ranks) : RankSet(std::set<int>(ranks)) {}
  RankSet(const std::set<int>& ranks) : ranks_(ranks.begin(), ranks.end()) {}

  void insert(int rank);
  /// All of `members` except `except`.
  void insert_others(const std::vector<int>& members, int except);
  bool contains(int rank) const;
  size_t size() const { return ranks_.size(); }
  bool empty() const { return ranks_.empty(); }
  void clear() { ranks_.clear(); }
  const_iterator begin() const { return ranks_.begin(); }
  const_iterator end() const { return ranks_.end(); }

  bool operator==(const RankSet&) const = default;

 private:
  std::vector<int> ranks_;
};

/// What one rank sent and received through the communicators of one mesh axis.
struct AxisLedger {
  int64_t bytes_sent = 0;
  int64_t bytes_received = 0;
  int64_t messages = 0;                       ///< sent
  std::array<int64_t, kNumVerbs> calls{};     ///< by verb
  std::array<int64_t, kNumVerbs> received{};  ///< bytes received, by verb
  RankSet peers = {};                         ///< other members (world ranks) of the groups used
  RankSet wire_peers = {};                    ///< world ranks bytes went to or came from
  Counting counting = Counting::kConvention;

  bool operator==(const AxisLedger&) const = default;
};

/// One rank's traffic by axis label ("data", "tensor", "row", ...). Entries keep their address.
class Ledger {
 public:
  AxisLedger& axis(const std::string& label) { return axes_[label]; }
  const std::map<std::string, AxisLedger>& axes() const { return axes_; }

  /// Counting is on from the start; off during validation and certificates.
  bool is_counting() const { return is_counting_; }
  void set_counting(bool on) { is_counting_ = on; }
  /// Zeroes every count, keeps the labels.
  void clear();
  /// Number of times clear() was called.
  int64_t generation() const { return generation_; }

 private:
  std::map<std::string, AxisLedger> axes_;
  bool is_counting_ = true;
  int64_t generation_ = 0;
};

}  // namespace kuafu
