// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cmath>
#include <map>

#include "kuafu/base/errors.h"
#include "kuafu/device/transfer.h"

namespace kuafu::device {

namespace {

class CopyStreams final : public CopyQueues {
 public:
  explicit CopyStreams(const DeviceStream& compute) : compute_(compute) {}

  ~CopyStreams() override {
    try {  // the memory goes next
      for (const Queue& q : queues_) q.stream.synchronize();
    } catch (const Error&) {  // the device failed: it touches no memory any more
    }
  }

  Ticket copy(Direction direction, const Copy& copy) override {
    KUAFU_CHECK(copy.bytes >= 0, "a copy of ", copy.bytes, " bytes");
    for (const Ticket& t : copy.after) check_issued(t);
    Queue& q = of(direction);
    forget_ended(q);
    Event computed;
    computed.record(compute_);
    computed.hold(q.stream);
    for (const Ticket& t : copy.after) {
      if (const Flight* flight = flight_of(t)) flight->end.hold(q.stream);
    }
    const int64_t number = q.issued + 1;
    try {
      start(q, q.flights[number], copy);
    } catch (...) {
      q.flights.erase(number);
      throw;
    }
    q.issued = number;
    return {direction, number};
  }

  void wait(const Ticket& ticket) override {
    check_issued(ticket);
    if (const Flight* flight = flight_of(ticket)) flight->end.synchronize();
  }

  void hold(const Ticket& ticket) override {
    check_issued(ticket);
    if (const Flight* flight = flight_of(ticket)) flight->end.hold(compute_);
  }

  bool is_done(const Ticket& ticket) override {
    check_issued(ticket);
    const Flight* flight = flight_of(ticket);
    return flight == nullptr || flight->end.is_reached();
  }

  QueueStats stats(Direction direction) override {
    forget_ended(of(direction));
    return of(direction).stats;
  }

 private:
  struct Flight {
    Event start, end;
    int64_t bytes = 0;
  };
  struct Queue {
    DeviceStream stream;
    int64_t issued = 0;
    std::map<int64_t, Flight> flights;  // by number: those that were not seen to have ended
    QueueStats stats;
  };

  Queue& of(Direction d) { return queues_[static_cast<size_t>(d)]; }

  void check_issued(const Ticket& t) {
    KUAFU_CHECK(t.number >= 0 && t.number <= of(t.queue).issued, to_string(t),
                " was never given out");
  }

  const Flight* flight_of(const Ticket& t) {
    const auto found = of(t.queue).flights.find(t.number);
    return found == of(t.queue).flights.end() ? nullptr : &found->second;
  }

  static void start(const Queue& q, Flight& flight, const Copy& copy) {
    flight.bytes = copy.bytes;
    flight.start.record(q.stream);
    device::copy(copy.to, copy.from, copy.bytes, q.stream);
    flight.end.record(q.stream);
  }

  static void forget_ended(Queue& q) {
    while (!q.flights.empty() && q.flights.begin()->second.end.is_reached()) {
      const Flight& first = q.flights.begin()->second;
      ++q.stats.copies;
      q.stats.bytes += first.bytes;
      q.stats.busy_ns += std::llround(1e6 * first.end.ms_since(first.start));
      q.flights.erase(q.flights.begin());
    }
  }

  const DeviceStream& compute_;
  std::array<Queue, 2> queues_;
};

}  // namespace

std::unique_ptr<CopyQueues> make_copy_streams(const DeviceStream& compute) {
  return std::make_unique<CopyStreams>(compute);
}

}  // namespace kuafu::device
