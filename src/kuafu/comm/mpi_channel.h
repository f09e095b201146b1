// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kuafu/comm/algorithms/execution.h"

namespace kuafu {

/// MPI as the process sees it: initialised on construction, finalised by finalize().
class MpiSession {
 public:
  MpiSession();
  /// Ends MPI; all communicators go with it. Collective over all processes.
  void finalize();
  /// Ends all processes of the job. Does not return.
  [[noreturn]] void abort(int exit_code);
};

/// A message that is longer or shorter than the receive that met it.
class WrongLength : public Error {
 public:
  using Error::Error;
};

/// One MPI communicator: messages by handle, and small notes. Long messages travel in pieces,
/// because counts of MPI are int and because the end of a piece shows that a transfer goes on.
class MpiChannel final : public algorithms::Wire {
 public:
  /// A duplicate of MPI_COMM_WORLD.
  static std::unique_ptr<MpiChannel> world();
  ~MpiChannel() override;

  int rank() const;
  int size() const;
  static int largest_tag();
  /// Collective. Null where `color` is negative.
  std::unique_ptr<MpiChannel> split(int color, int key);
  std::unique_ptr<MpiChannel> duplicate();

  int send(const void* data, int64_t bytes, int to, int tag) override;
  int receive(void* data, int64_t bytes, int from, int tag) override;
  /// Throws WrongLength.
  bool test(const std::vector<int>& handles) override;
  /// Messages and pieces of messages that are through.
  int64_t num_through() const;

  /// Sends a copy of `note` without waiting.
  void send_note(std::span<const std::byte> note, int to, int tag);
  /// Takes a note of the given length that has arrived from `from` (negative: anybody); false if
  /// there is none.
  bool take_note(std::span<std::byte> note, int from, int tag);
  /// Takes a note of any length; empty where none has arrived.
  std::vector<std::byte> take_note(int from, int tag);

  /// Starts a barrier over the communicator; a handle for test().
  int start_barrier();
  /// Address of the MPI_Comm.
  void* handle();

 private:
  struct State;
  explicit MpiChannel(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

/// The library's own collectives, with types and operators for bf16 and f16, which MPI lacks.
/// @pre constructed between MpiSession's constructor and finalize().
class MpiNative {
 public:
  MpiNative();
  ~MpiNative();
  /// True where counts and offsets of the call fit MPI's int.
  static bool can_run(const Call& call);
  /// Runs a collective; blocks.
  void run(MpiChannel& channel, const Call& call) const;

 private:
  struct Types;
  std::unique_ptr<Types> types_;
};

}  // namespace kuafu
