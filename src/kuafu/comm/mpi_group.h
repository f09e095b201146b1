// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "kuafu/comm/mpi_channel.h"

namespace kuafu {

/// The members of one MPI communicator, and what is known of their calls.
///
/// Every rank tells the next one (rank + 1) each collective call it makes, in a note that overtakes
/// nothing and waits for nothing, and compares what the previous one tells with its own calls. If
/// two ranks of the group differ, some neighbours do. A rank that leaves the group says so too.
/// Notes of calls that nobody can complete without all others are held back until there are many or
/// somebody waits: a message for each would cost a fifth of a small all-reduce.
class MpiGroup {
 public:
  MpiGroup(std::unique_ptr<MpiChannel> collectives, std::unique_ptr<MpiChannel> messages,
           std::vector<int> members);

  MpiChannel& collectives() { return *collectives_; }
  MpiChannel& messages() { return *messages_; }
  const std::vector<int>& members() const { return members_; }
  int rank() const { return collectives_->rank(); }
  int size() const { return static_cast<int>(members_.size()); }
  int world_rank() const { return members_[static_cast<size_t>(rank())]; }
  void set_label(const std::string& label) { label_ = label; }
  const std::string& label() const { return label_; }
  /// "call 5 of group 'data'"
  std::string position(int64_t sequence) const;

  /// My next collective call; returns its number. `needs_match`: the neighbour is told at once,
  /// since it waits for the note before it goes on.
  int64_t announce(const Call& call, bool needs_match);
  /// First tag of the messages of that call: it holds the number and a fingerprint of the call, so
  /// that messages of calls that do not agree never meet.
  int tag_of(const Call& call, int64_t sequence) const;
  /// False where the library has too few tags for that.
  bool has_fingerprints() const { return has_fingerprints_; }
  /// My next split, with a fingerprint of its rule.
  int64_t announce_split(int64_t fingerprint);
  /// I make no further call.
  void leave();

  /// Sends the notes held back.
  void flush();
  /// Takes the notes that my calls wait for, as far as they have arrived. Throws CollectiveMismatch
  /// where the previous rank called something else, RankLost where it left before a call of mine.
  void listen();
  /// The same once I have left: waits for the note that the previous rank has left too.
  void listen_for_end();
  /// The previous rank made my call number `sequence` too.
  bool is_matched(int64_t sequence) const { return num_matched_ > sequence; }
  /// Nothing more will come: the previous rank has left, and all calls matched.
  bool is_over() const { return size() == 1 || (prev_has_left_ && mine_.empty()); }

 private:
  enum class Kind : int32_t { kCall, kSplit, kLeft };
  /// A call as the neighbour is told of it: plain bytes.
  struct Note {
    Kind kind = Kind::kCall;
    int32_t verb = 0, dtype = 0, op = 0, root = 0;
    int32_t world_rank = 0;
    int64_t count = 0;  // elements; of a split the fingerprint
    int64_t sequence = 0;
  };
  Call call_of(const Note& note) const;
  static Note note_of(const Call& call);
  int64_t announce(Note note, bool is_urgent);
  void tell(const Note& note, bool is_urgent);
  bool hear(Note& note);
  void compare(const Note& theirs);
  std::string describe(const Note& note) const;

  std::unique_ptr<MpiChannel> collectives_;
  std::unique_ptr<MpiChannel> messages_;
  std::vector<int> members_;
  bool has_fingerprints_;
  std::string label_;
  int64_t num_calls_ = 0;
  int64_t num_matched_ = 0;
  std::deque<Note> mine_;   // not matched yet
  std::deque<Note> heard_;  // not compared yet
  std::vector<Note> held_;  // not sent yet
  bool prev_has_left_ = false;
};

}  // namespace kuafu
