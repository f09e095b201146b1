// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

namespace kuafu {

class Communicator;
class ThreadWorld;

/// What one of more thread ranks than cores may do: compute in turns with those it shares cores
/// with. It has a core to itself then, and gives it up where it waits in a call of its world.
/// @pre used by the rank's own thread, while its world lives.
class Turns {
 public:
  Turns(ThreadWorld& world, int rank) : world_(&world), rank_(rank) {}
  /// From now on. False where it was so already.
  bool enter();
  /// No longer. False where it was not.
  bool leave();

 private:
  ThreadWorld* world_;
  int rank_;
};

/// Those of the calling rank; none where a world has none: in every other world, and where each
/// thread rank has a core.
std::optional<Turns> turns_of(Communicator& world);

/// In turns from here to the end of the scope, where there are any.
/// @pre the rank blocks in calls of its world alone.
class TurnsScope {
 public:
  explicit TurnsScope(const std::optional<Turns>& turns) {
    if (turns) entered_ = *turns;
    if (entered_ && !entered_->enter()) entered_.reset();
  }
  ~TurnsScope() {
    if (entered_) entered_->leave();
  }
  TurnsScope(const TurnsScope&) = delete;
  TurnsScope& operator=(const TurnsScope&) = delete;

 private:
  std::optional<Turns> entered_;
};

}  // namespace kuafu
