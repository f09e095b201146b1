// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kuafu/comm/ledger.h"

// What each algorithm puts on the wire, from the papers alone. n ranks, rank r, elements of 8
// bytes.
namespace kuafu::tests {

struct Sent {
  int64_t sent = 0, received = 0, messages = 0;
  bool operator==(const Sent&) const = default;
  Sent& operator+=(const Sent& other) {
    sent += other.sent;
    received += other.received;
    messages += other.messages;
    return *this;
  }
};

inline Sent of(const AxisLedger& e) { return {e.bytes_sent, e.bytes_received, e.messages}; }

/// Elements of the i-th of n parts, cut as evenly as can be.
inline int64_t part(int64_t elements, int64_t i, int64_t n) {
  i = (i % n + n) % n;
  return elements / n + (i < elements % n ? 1 : 0);
}

/// Every rank passes all parts but one on, twice.
inline Sent ring(int64_t elements, int64_t n, int64_t r) {
  const auto p = [&](int64_t i) { return part(elements, i, n); };
  Sent s{8 * (2 * elements - p(r + 1) - p(r + 2)), 8 * (2 * elements - p(r) - p(r + 1)), 0};
  for (int64_t i = 0; i < n; ++i) {
    if (p(i) > 0) s.messages += (i != (r + 1) % n ? 1 : 0) + (i != (r + 2) % n ? 1 : 0);
  }
  return n == 1 ? Sent{} : s;
}

/// Up and down a binomial tree: everything once from each child and once from the parent.
inline Sent tree(int64_t elements, int64_t n, int64_t r) {
  int64_t links = r > 0 ? 1 : 0;
  for (int64_t bit = 1; bit < n && r % (2 * bit) == 0; bit *= 2) links += r + bit < n ? 1 : 0;
  return {8 * elements * links, 8 * elements * links, elements > 0 ? links : 0};
}

/// Inside the nodes of m ranks; rank r is the l-th of its node.
inline Sent intra(int64_t elements, int64_t m, int64_t r) { return ring(elements, m, r % m); }

/// Between the n / m nodes, on part l + 1.
inline Sent inter(int64_t elements, int64_t n, int64_t m, int64_t r) {
  return ring(part(elements, r % m + 1, m), n / m, r / m);
}

}  // namespace kuafu::tests
