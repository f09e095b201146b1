// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kuafu/device/disk.h"
#include "kuafu/meter/book.h"
#include "kuafu/tensor/tensor.h"

namespace kuafu {

/// The tier below the host.
struct DiskTier {
  std::string folder = {};
  int64_t bytes = 0;               ///< budget; 0: unlimited
  int64_t chunk_bytes = 0;         ///< what moves as one has at most so many, or is one row
  int64_t ahead = 1;               ///< runs that are read ahead of their use
  std::optional<double> gbs = {};  ///< what it is held back to, both directions together
  /// ... where several files of a rank share it; null: the file has it alone.
  std::shared_ptr<device::SharedLink> link = {};
};

/// Between host and disk, in steps.
struct DiskCounts {
  int64_t read = 0, written = 0;            ///< bytes
  int64_t step_read = 0, step_written = 0;  ///< of the last step
  int64_t bytes = 0;                        ///< of the file
  double wait_seconds = 0;                  ///< in which the rank's thread stood still for the disk
  bool operator==(const DiskCounts&) const = default;
  DiskCounts& operator+=(const DiskCounts& other);  ///< of another file
};

/// What a file's tensors are, in books and traces.
struct StatesOnDisk {
  std::string_view name = "slots";  ///< constant text
  Category category = Category::kOptimizer;
  bool has_lone_rows = false;  ///< each row is a run by itself
};

/// What moves in the scope, on this thread, is in no count: it is a proof's.
class UncountedMoves {
 public:
  UncountedMoves();
  ~UncountedMoves();
  UncountedMoves(const UncountedMoves&) = delete;
  UncountedMoves& operator=(const UncountedMoves&) = delete;
};

/// States on a disk. Rows (a row: the slots of one piece, or the gradients of one bucket) that follow
/// each other are a run, of a chunk's bytes at most or a row by itself. A run has storage on the host
/// while its rows are used, and before and after that while it comes and goes:
///
///     use of a row of run 2     0 on the disk   1 on its way back   2 here   3 on its way, ahead
///
/// What is on the host follows from the uses alone, not from how fast a disk is: ranks without memory
/// have the same peaks. Used by the rank's own thread.
class StateFile {
 public:
  struct Row {
    Tensor like;  ///< of the extents of a slot
    at::ScalarType type = at::kFloat;
    size_t slots = 0;
  };
  enum class Use : uint8_t {
    kRead,
    kChange,
    kOverwrite,  ///< of a lone row: what it was is not read
  };

  /// Makes the tensors of these rows, zero. Throws ConfigError where the folder is of no use, TierFull
  /// where they pass the budget, DiskError where the disk has no room. `host`: whose memory they
  /// have in uses; null: nobody's, and no budget holds.
  StateFile(const DiskTier& disk, const std::vector<Row>& rows, RankBook* host,
            const StatesOnDisk& what = {});
  ~StateFile();
  StateFile(const StateFile&) = delete;
  StateFile& operator=(const StateFile&) = delete;

  /// Of a row. Their elements are there from use() of it to that of a row of another run.
  const Tensors& tensors(size_t row) const { return slots_[row]; }

  /// A training step begins: what moves until rest() is counted.
  void begin_step();
  /// Uses to come, in order, for reading ahead, in the place of those expected before.
  void expect(const std::vector<size_t>& rows);
  /// The row is here. Throws DiskError, of a write before it too.
  void use(size_t row, Use use);
  /// Everything is on the disk; the step ends.
  void rest();

  DiskCounts counts() const { return counts_; }

 private:
  enum class Where : uint8_t { kAway, kComing, kHere, kLeaving };
  struct RowRun {
    Tensor flat;  ///< its slots are views of it
    int64_t first_chunk = 0;
    Where where = Where::kAway;
    bool is_saved = false;    ///< the disk has it; before that it is zero
    bool is_changed = false;  ///< since it came
    std::vector<device::DiskFile::Ticket> tickets = {};
    int64_t event = -1;  ///< of the trace
    int64_t begun_ns = 0;
  };

  int64_t file_chunk() const;
  void make_runs(const std::vector<Row>& rows);
  void take_space(const std::vector<Row>& rows);
  int64_t bytes_of(const RowRun& run) const { return static_cast<int64_t>(run.flat.nbytes()); }
  /// Asks for every chunk of a run.
  void ask(RowRun& run, device::DiskRequest::Kind kind);
  void start_coming(RowRun& run, Use use);
  void start_leaving(size_t run);
  void wait(RowRun& run);
  /// What is on its way back is there, and its storage free.
  void settle();
  void settle_all();  ///< and nothing is here
  void free(RowRun& run);
  void read_ahead();

  const DiskTier disk_;
  RankBook* const host_;
  const StatesOnDisk what_;
  std::vector<Tensors> slots_;  // by row
  std::vector<size_t> run_of_;  // by row; kNone: it has no bytes
  std::vector<RowRun> runs_;
  std::optional<size_t> here_, leaving_;
  std::deque<size_t> expected_;  // runs to come
  std::vector<size_t> ahead_;    // coming, or here before their use
  bool is_counted() const;

  bool has_memory_ = true, is_in_step_ = false;
  DiskCounts counts_;
  std::unique_ptr<device::DiskFile> file_;  // null without memory. Goes before the memory does
};

}  // namespace kuafu
