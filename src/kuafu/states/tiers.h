// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kuafu/memory/player.h"
#include "kuafu/meter/book.h"
#include "kuafu/states/activations.h"
#include "kuafu/states/state_file.h"
#include "kuafu/states/tier_copies.h"
#include "kuafu/tensor/tensor.h"

namespace kuafu {

struct Plan;

/// What tiers of memory are, and who chooses what lies where.
struct TierOptions {
  std::string name = {};  ///< of the policy, for messages
  memory::PolicyRule policy = {};
  memory::Knobs knobs = {};
  int64_t device = 0, host = 0;         ///< budgets in bytes; 0: unlimited
  std::optional<double> host_gbs = {};  ///< what copies are held back to, each direction
  std::optional<DiskTier> disk = {};    ///< of slots; none: they are on the host
  bool has_gradients_on_disk = false;   ///< of summed ones, there too
  bool has_parameters_on_disk = false;  ///< of forwards alone: their home is there, not on the host
  bool has_activations = false;         ///< inputs of blocks are on the host until their backward

  /// What a policy has for chunks and what is in use, a number where it is unlimited too.
  int64_t budget() const;
};

/// Those of a plan; none where everything stays on the device. Throws NotFound for a policy that is
/// none of `policies`.
std::optional<TierOptions> tier_options(
    const Plan& plan, const memory::PolicyRules& policies = memory::builtin_policies());

/// The book of the device of one rank: with tiers it has an arena, where there is memory.
RankBook device_book(const Plan& plan, int rank, at::Device device);

/// What a rank moved in its training steps, and what its memories held at most.
struct MoveCounts {
  int64_t to_device = 0, to_host = 0;  ///< bytes copied, as the queues count them
  int64_t foretold = 0;                ///< to_device as memory::play has it of the traces of uses
  int64_t step_to_device = 0, step_to_host = 0;  ///< of the last step
  int64_t prefetches = 0, prefetch_hits = 0;
  double wait_seconds = 0;  ///< in which the rank's thread stood still for a copy
  int64_t host_peak = 0;    ///< most bytes of states on the host
  int64_t chunks = 0;       ///< of parameters
  int64_t warm_ups = 0;  ///< steps that "host" played, since nobody knew yet what would be in use
  DiskCounts disk = {};  ///< of slots and gradients; its wait is in wait_seconds too
  int64_t activations = 0,
          step_activations = 0;  ///< bytes to the host, and back: in no count above
  bool operator==(const MoveCounts&) const = default;

  /// Those of so many steps, of `recorded` ones of which the last is like all that follow.
  MoveCounts stretched(int64_t recorded, int64_t steps) const;
};

/// Where the states of one rank lie, and what moves them. Chunks of parameters are at home on the
/// host, or on a disk, and come to the device for their uses; what a policy chooses to keep there stays from one use
/// to the next. It is told the uses of a step by chunk; it knows no parameter, and its policy no
/// tensor. Used by the rank's own thread.
///
///     begin     what each moment of a step reads                       a trace of uses
///     next      before a moment: the policy's moves, checked           drops, then loads
///     go_home   before the update: nothing of a chunk is on the device the host changes it
class Tiers {
 public:
  /// What will be in use beside the chunks in each moment of the training steps to come, the update
  /// last: the policy chooses from the first one on, which is held to it, or, not `is_exact`, mends it.
  void foretell(std::vector<int64_t> in_use, bool is_exact);

  /// What will be in use at most beside the chunks in each moment of the forwards that are alike: the
  /// policy plays them, and what it leaves on the device is there for the next one.
  void foretell_alike(std::vector<int64_t> in_use) { alike_in_use_ = std::move(in_use); }
  /// Whether the next forwards, of which no update follows, are alike: they read the same. Those that
  /// are not are played by "host", each from an empty device; and so are all before foretell_alike().
  void set_alike(bool is_alike) { is_alike_ = is_alike; }
  /// In use in each moment of the last forward, where it was alike and not foretold. @pre it is over
  std::vector<int64_t> seen_in_use();

  /// What follows the last moment of begin().
  enum class Then : uint8_t { kUpdate, kNothing };

  Tiers(const TierOptions& options, at::Device device);
  ~Tiers();

  /// That of the host; null where nothing is booked.
  RankBook* host() const { return host_.get(); }

  /// The homes of all chunks, in the order in which they will be added, are rows of a file on the disk.
  void put_homes_on_disk(const std::vector<StateFile::Row>& rows);
  bool has_homes_on_disk() const { return homes_ != nullptr; }
  /// Of a chunk that is on the disk: it has elements after bring().
  const Tensor& home_on_disk(int chunk) const {
    return homes_->tensors(static_cast<size_t>(chunk))[0];
  }
  /// A chunk: a flat tensor on the host, or its home_on_disk(), and one like it on the device that has
  /// storage while the chunk is there. Returns its number.
  int add(const Tensor& home, const Tensor& here, const std::string& group);
  /// The home of a chunk is on the host until that of another one is brought, or rest(). Nothing where
  /// it is there anyway. Throws DiskError.
  void bring(int chunk, StateFile::Use use);
  /// All homes are where they belong.
  void rest();
  /// Of homes; none where they are on the host.
  DiskCounts disk() const { return homes_ ? homes_->counts() : DiskCounts{}; }

  /// A step begins, with nothing on the device; the chunks that each of its moments reads.
  void begin(const std::vector<std::vector<int>>& reads, Then then);
  /// The next moment begins: its moves are made, and what it reads is there.
  void next();
  /// The update begins: every chunk is at home, and every gradient that left.
  void go_home();

  /// Starts the way of a tensor to the host, and gives the one it becomes there: a new one, or
  /// `there`. It may be read after arrive().
  Tensor leave(const Tensor& gradient, Tensor there = {});
  /// What left is on the host, and its space on the device is free.
  void arrive();

  /// Where inputs of blocks are between forward and backward; null: on the device.
  AwayActivations* activations() { return activations_.get(); }

  /// What copies between device and host, for others that lie on both.
  TierCopies& copies() { return copies_; }

  MoveCounts counts() const;
  /// Bytes of chunks that came to the device so far, or are on their way, for forwards that train
  /// nothing too.
  int64_t loaded() const { return loaded_; }
  /// The uses of a step with what is in use beside them, once they are known; else no moments.
  memory::UseTrace uses();

 private:
  using Moving = TierCopies::Moving;
  struct TierChunk {
    Tensor home, here;
    std::string group;
    Moving load = {};
    bool is_here = false;
  };
  struct Leaving {
    Tensor from;
    Moving copy;
  };
  /// A step as it is known: its uses, and who chooses.
  struct Course {
    memory::UseTrace trace = {};
    int64_t budget = 0;
    memory::Policy policy = {};
    memory::Knobs knobs = {};
    std::unique_ptr<memory::Player> player = {};
    int64_t foretold = 0;  ///< bytes that a step loads
  };

  memory::UseTrace trace_of(const std::vector<std::vector<int>>& reads, Then then) const;
  /// `in_use`: by moment; null: it is not known.
  std::unique_ptr<Course> course_of(const std::vector<std::vector<int>>& reads, Then then,
                                    const std::vector<int64_t>* in_use) const;
  /// False where what was foretold, which is a bound, does not fit.
  bool begin_alike(const std::vector<std::vector<int>>& reads);
  /// What comes from the disk for these moments is read ahead.
  void expect_homes(const std::vector<std::vector<int>>& reads);
  void wait_for_home();
  template <class F>
  auto told(const F& f) const;
  void note_in_use();
  /// Without activations.
  int64_t copied(device::Direction queue) const;
  void load(TierChunk& chunk);
  void drop(TierChunk& chunk);
  void drop_all();
  int64_t bytes_here() const;

  const TierOptions options_;
  RankBook* const device_;
  std::unique_ptr<RankBook> host_;  // null where nothing is booked
  std::vector<TierChunk> chunks_;
  std::vector<Leaving> leaving_;

  std::vector<std::vector<int>> reads_;  // of the steps that `steady_` is for
  std::vector<int64_t> in_use_;          // by moment, foretold or from the first of them
  std::vector<int64_t> foretold_;        // for the first training step; then none
  std::optional<size_t> held_to_;        // while it is made: moments that were held to in_use_
  std::unique_ptr<Course> steady_,
      other_;  // of all later ones; of a step that is measured or alone
  std::vector<std::vector<int>> alike_reads_;  // of forwards that are alike
  std::vector<int64_t> alike_in_use_, seen_;   // of them: foretold; of the last one
  std::unique_ptr<Course> alike_;
  Course* now_ = nullptr;
  size_t moment_ = 0;
  bool is_measuring_ = false, is_training_ = false, is_alike_ = false;
  bool is_exact_ = true, is_mended_ = false;  // what was foretold; since `steady_` was made
  int64_t before_[2] = {0, 0};                // copied when the step began
  int64_t activations_before_ = 0;            // the same
  MoveCounts counts_;
  int64_t loaded_ = 0;
  std::unique_ptr<StateFile> homes_;              // null: they are on the host
  std::optional<size_t> read_from_;               // the chunk whose home a copy may be reading yet
  TierCopies copies_;                             // goes before the memory
  std::unique_ptr<AwayActivations> activations_;  // null: they stay on the device
};

}  // namespace kuafu
