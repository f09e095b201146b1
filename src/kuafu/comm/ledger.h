// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
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

/// "broadcast", "reduce", "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send", "recv",
/// "send_recv", "barrier".
std::string_view to_string(Verb v);

/// How an entry was counted: on the wire itself, or by the convention of cost_model.h where the
/// transport has no wire (threads) or hides it (native MPI, NCCL).
enum class Counting : uint8_t { kWire, kConvention };

/// What one rank sent and received through the communicators of one mesh axis.
struct AxisLedger {
  int64_t bytes_sent = 0;
  int64_t bytes_received = 0;
  int64_t messages = 0;                        ///< sent
  std::array<int64_t, kNumVerbs> calls{};      ///< by verb
  std::array<int64_t, kNumVerbs> received{};   ///< bytes received, by verb
  std::set<int> peers;       ///< other members (world ranks) of the groups used
  std::set<int> wire_peers;  ///< world ranks bytes went to or came from
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

 private:
  std::map<std::string, AxisLedger> axes_;
  bool is_counting_ = true;
};

}  // namespace kuafu
