// SPDX-License-Identifier: Apache-2.0
#include "kuafu/comm/mpi_group.h"

#include <cstring>
#include <utility>

namespace kuafu {

namespace {

constexpr size_t kMostHeld = 64;
constexpr size_t kMostUnmatched = 4 * kMostHeld;
constexpr int kNoteTag = 1;  // on the channel of the collectives, whose own tags are higher

// A tag of a collective, from the lowest bits: lane, number of the call, fingerprint.
constexpr int kFirstTag = 8;
constexpr int64_t kCallsBeforeTagsRepeat = 1 << 12;
constexpr int64_t kFingerprints = 131'071;  // a prime
constexpr int64_t kTags =
    kFirstTag + algorithms::Execution::kLanesAtOnce * kCallsBeforeTagsRepeat * kFingerprints;

}  // namespace

MpiGroup::MpiGroup(std::unique_ptr<MpiChannel> collectives, std::unique_ptr<MpiChannel> messages,
                   std::vector<int> members)
    : collectives_(std::move(collectives)),
      messages_(std::move(messages)),
      members_(std::move(members)),
      has_fingerprints_(MpiChannel::largest_tag() >= kTags) {}

std::string MpiGroup::position(int64_t sequence) const {
  return text("call ", sequence, " of group '", label_, "'");
}

MpiGroup::Note MpiGroup::note_of(const Call& call) {
  Note note;
  note.verb = static_cast<int32_t>(call.verb);
  note.dtype = static_cast<int32_t>(call.dtype());
  note.op = static_cast<int32_t>(call.op);
  note.root = call.root;
  note.count = call.count();
  return note;
}

// A broadcast's root and a reduce's leaves go on without the others: they are heard at once too.
int64_t MpiGroup::announce(const Call& call, bool needs_match) {
  const bool waits_for_all = call.verb != Verb::kBroadcast && call.verb != Verb::kReduce;
  return announce(note_of(call), needs_match || !waits_for_all);
}

// Equal for calls that agree().
int MpiGroup::tag_of(const Call& call, int64_t sequence) const {
  int64_t fingerprint = 0;
  if (has_fingerprints_) {
    const auto mix = [&](int64_t value) {
      fingerprint = (fingerprint * 1'000'003 + value) % kFingerprints;
    };
    mix(static_cast<int64_t>(call.verb));
    if (call.verb != Verb::kBarrier) {
      mix(static_cast<int64_t>(call.dtype()));
      mix(call.root + 1);
    }
    if (call.reduces()) mix(static_cast<int64_t>(call.op));
    if (call.verb != Verb::kAllToAll) mix(call.count() % kFingerprints);
  }
  const int64_t number = fingerprint * kCallsBeforeTagsRepeat + sequence % kCallsBeforeTagsRepeat;
  return static_cast<int>(kFirstTag + number * algorithms::Execution::kLanesAtOnce);
}

int64_t MpiGroup::announce_split(int64_t fingerprint) {
  Note note;
  note.kind = Kind::kSplit;
  note.count = fingerprint;
  return announce(note, true);
}

int64_t MpiGroup::announce(Note note, bool is_urgent) {
  note.sequence = num_calls_++;
  tell(note, is_urgent);
  mine_.push_back(note);
  // Few calls wait for their match.
  if (mine_.size() > kMostUnmatched && mine_.size() % kMostHeld == 0) listen();
  return note.sequence;
}

void MpiGroup::leave() {
  Note note;
  note.kind = Kind::kLeft;
  note.sequence = num_calls_;
  tell(note, true);
}

void MpiGroup::tell(const Note& note, bool is_urgent) {
  if (size() == 1) return;
  Note signed_note = note;
  signed_note.world_rank = world_rank();
  held_.push_back(signed_note);
  if (is_urgent || held_.size() >= kMostHeld) flush();
}

void MpiGroup::flush() {
  if (held_.empty()) return;
  collectives_->send_note(std::as_bytes(std::span(held_)), (rank() + 1) % size(), kNoteTag);
  held_.clear();
}

// One look too many costs a turn of MPI's progress engine, which may yield the core.
void MpiGroup::listen() {
  if (size() == 1) {
    num_matched_ = num_calls_;
    mine_.clear();
  }
  Note note;
  while (!mine_.empty() && hear(note)) compare(note);
}

void MpiGroup::listen_for_end() {
  listen();
  Note note;
  if (is_over() || !mine_.empty() || !hear(note)) return;
  if (note.kind != Kind::kLeft) {
    throw CollectiveMismatch(text(position(note.sequence), ": rank ", note.world_rank, " called ",
                                  describe(note), ", rank ", world_rank(),
                                  " has left the group after its call ", num_calls_ - 1));
  }
  prev_has_left_ = true;
}

bool MpiGroup::hear(Note& note) {
  if (heard_.empty()) {
    const std::vector<std::byte> bytes =
        collectives_->take_note((rank() + size() - 1) % size(), kNoteTag);
    heard_.resize(bytes.size() / sizeof(Note));
    for (size_t i = 0; i < heard_.size(); ++i) {
      std::memcpy(&heard_[i], bytes.data() + i * sizeof(Note), sizeof(Note));
    }
  }
  if (heard_.empty()) return false;
  note = heard_.front();
  heard_.pop_front();
  return true;
}

// Theirs against the oldest of mine.
void MpiGroup::compare(const Note& theirs) {
  const Note mine = mine_.front();
  const int other = theirs.world_rank;
  if (theirs.kind == Kind::kLeft) {
    throw RankLost(text(position(mine.sequence), ": rank ", world_rank(), " called ",
                        describe(mine), ", rank ", other, " has left the group after its call ",
                        theirs.sequence - 1));
  }
  const bool same = mine.kind == theirs.kind &&
                    (mine.kind == Kind::kSplit ? mine.count == theirs.count
                                               : agree(call_of(mine), call_of(theirs)));
  if (!same) {
    throw CollectiveMismatch(text(position(mine.sequence), ": rank ", other, " called ",
                                  describe(theirs), ", rank ", world_rank(), " called ",
                                  describe(mine)));
  }
  mine_.pop_front();
  ++num_matched_;
}

Call MpiGroup::call_of(const Note& note) const {
  Call call;
  call.verb = static_cast<Verb>(note.verb);
  call.in.count = call.out.count = note.count;
  call.in.dtype = call.out.dtype = static_cast<DType>(note.dtype);
  call.op = static_cast<ReduceOp>(note.op);
  call.root = note.root;
  return call;
}

std::string MpiGroup::describe(const Note& note) const {
  if (note.kind == Kind::kLeft) return "nothing more";
  if (note.kind == Kind::kSplit) return text("split(rule ", note.count, ")");
  return kuafu::describe(call_of(note));
}

}  // namespace kuafu
