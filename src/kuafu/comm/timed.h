// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "kuafu/comm/communicator.h"

namespace kuafu {

/// Told of every stay of a rank in communication: of a call until it returns, and of each wait.
class CallObserver {
 public:
  virtual ~CallObserver() = default;
  /// `axis` is what the group's calls are booked under; seconds of the steady clock.
  virtual void note(const std::string& axis, Verb verb, double start_s, double end_s) = 0;
};

/// The same group with every call and wait told to `observer`; groups split off it too. Booking
/// goes on in the group itself.
/// @pre `group` and `observer` outlive it. Of one rank: calls come from one thread.
std::unique_ptr<Communicator> timed(Communicator& group, CallObserver& observer);

}  // namespace kuafu
