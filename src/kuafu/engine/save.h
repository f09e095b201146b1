// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kuafu/checkpoint/checkpoint.h"
#include "kuafu/engine/engine.h"
#include "kuafu/plan/resume.h"
#include "kuafu/record/folder_lock.h"

namespace kuafu {

/// Where and when a run is saved.
struct SaveOptions {
  std::string folder;    ///< of all its checkpoints; empty: nothing is saved
  int64_t every = 0;     ///< steps between two; 0 = after the last step only. The last always is
  int64_t keep = 0;      ///< newest checkpoints that stay; 0 = all
  bool resumes = false;  ///< go on from the newest one
  /// Whether it may learn otherwise from there on: resume_changes().
  ResumeChanges changes = ResumeChanges::kRefused;
  bool is_async = false;  ///< steps go on while files are written, from a copy
  Metadata notes = {};    ///< strings saved with the state: who made it
  /// Called on rank 0 with what a user should know: a damaged checkpoint that was passed over.
  std::function<void(const std::string& notice)> on_notice = {};
};

/// Throws ConfigError where a run under `plan` may not save into the folder: it holds the
/// checkpoints of a run that this one does not go on from, or of one with another model. Reads
/// only; needs no communication. @pre plan is resolved
void check_save_options(const SaveOptions& options, const Plan& plan);

/// Saves a run and goes on from what was saved, on one of its ranks. Tensors are saved under global
/// names: "blocks.0.mlp.up.weight", and "adamw.m.blocks.0.mlp.up.weight" for what the optimizer
/// keeps. Half-precision parameters are saved as their f32 master copies. A piece that several
/// ranks hold is written by one of them.
class Saver {
 public:
  /// Collective. Same errors as check_save_options; rank 0 locks the folder.
  /// @pre engine and world outlive the saver
  Saver(Engine& engine, Communicator& world, SaveOptions options);

  /// Loads the newest checkpoint that is whole, whatever plan saved it; passes damaged ones over.
  /// Returns its step; none where the folder holds no checkpoint. Element types that differ are
  /// converted. Throws ConfigError where all are damaged. Collective.
  std::optional<int64_t> resume();

  /// Saves where one is due; after the last step all is on the disk when it returns. Throws
  /// ConfigError with path and reason where it cannot be written: the run should end, earlier
  /// checkpoints stay. Collective.
  void after_step();
  /// Saves what is not saved yet, and waits until all is on the disk. Same errors. Collective.
  void save_now();

  /// What the resumed run changes of how it learns.
  const std::vector<std::string>& changes() const { return changes_; }
  int64_t num_saves() const { return num_saves_; }
  int64_t saved_bytes() const { return saved_bytes_; }  ///< written by this rank

 private:
  /// A save whose files are being written.
  struct Pending {
    ~Pending() { pace.hurry(); }  // it is written to its end even where the run has failed

    CheckpointWriter writer;
    Metadata state;
    std::vector<Piece> pieces;
    Tensors data;  ///< of the pieces; where steps go on meanwhile they lie in snapshot_
    Pace pace;
    std::future<void> writing;
  };

  void save();
  /// The pieces that this rank writes.
  void collect(Pending& into);
  /// Copies the data to where no step changes them.
  void take_snapshot(Pending& of);
  /// Commits a save once all ranks have written, without waiting for them. Collective.
  void poll();
  /// Waits for the save under way. Collective.
  void finish();
  void commit(const Pending& saved) const;
  /// Which of my shards I write: replicas agree once.
  const std::vector<bool>& my_writes(const std::vector<ParamShard>& shards);
  void load(const Checkpoint& from);

  Engine& engine_;
  Communicator& world_;
  SaveOptions options_;
  std::optional<FolderLock> lock_;  ///< rank 0
  std::vector<bool> writes_;
  std::vector<std::string> changes_;
  Tensor snapshot_;  ///< bytes on the host, kept from save to save
  std::shared_ptr<Pending> pending_;
  std::future<void> committing_;  ///< rank 0
  int64_t saved_step_ = -1;       ///< of the newest save; below 0: none
  int64_t num_saves_ = 0, saved_bytes_ = 0;
};

}  // namespace kuafu
