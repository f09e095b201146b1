// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kuafu/checkpoint/checkpoint.h"
#include "kuafu/engine/engine.h"
#include "kuafu/engine/measuring/validation.h"
#include "kuafu/engine/saving/rolling.h"
#include "kuafu/plan/resume.h"
#include "kuafu/record/folder_lock.h"

namespace kuafu {

/// Where and when a run is saved.
struct SaveOptions {
  std::string folder;  ///< of all its checkpoints; empty: nothing is saved
  /// Steps between two; 0 = after the last step, which always is, and on the way as saves roll.
  int64_t every = 0;
  RollingPace rolling = {};  ///< between those of `every`, or without
  int64_t keep = 0;          ///< newest checkpoints that stay; 0 = all
  bool resumes = false;      ///< go on from the newest one
  /// The checkpoint that the run begins from where the folder holds none; empty: none. As
  /// named_checkpoint() takes it.
  std::string from = {};
  /// Whether it may learn otherwise from there on: resume_changes().
  ResumeChanges changes = ResumeChanges::kRefused;
  /// Steps go on while files are written, from a copy. Replicas must be in step: only between their
  /// steps is a save that all have written made known.
  bool is_async = false;
  Metadata notes = {};  ///< strings saved with the state: who made it
  /// Called on rank 0 with what a user should know: a damaged checkpoint that was passed over.
  std::function<void(const std::string& notice)> on_notice = {};
};

/// A checkpoint could not be written, on one rank or more: told to all of them, so that the run ends
/// with what it measured.
class SaveFailed : public ConfigError {
 public:
  using ConfigError::ConfigError;
};

/// Throws ConfigError where a run under `plan` may not save into the folder: it holds the
/// checkpoints of a run that this one does not go on from, or of one with another model. Reads
/// only; needs no communication. @pre plan is resolved
void check_save_options(const SaveOptions& options, const Plan& plan);

/// Saves a run and goes on from what was saved, on one of its ranks. Tensors are saved under global
/// names: "blocks.0.mlp.up.weight", and "adamw.m.blocks.0.mlp.up.weight" for what the optimizer
/// keeps. Half-precision parameters are saved as their f32 master copies. A piece that several
/// ranks hold is written by one of them.
///
/// What is removed for a newer checkpoint (`keep`) was proven to be replaced: the newest one whose
/// own loss is known to be finite stays, and so does the one of the lowest validation loss.
class Saver {
 public:
  /// Collective. Same errors as check_save_options; rank 0 locks the folder.
  /// @pre engine and world outlive the saver
  Saver(Engine& engine, Communicator& world, SaveOptions options);

  /// Loads the newest checkpoint that is whole, whatever plan saved it; passes damaged ones over.
  /// Returns its step; none where there is no checkpoint. Element types that differ are converted.
  /// Throws ConfigError where all are damaged. Collective.
  std::optional<int64_t> resume();
  /// Whether the checkpoint was this folder's own: not another run's, which this one begins from.
  bool goes_on() const { return saved_step_ >= 0; }
  /// The validation losses that the checkpoint held.
  const ValidationSeries& validation() const { return validation_; }

  /// The norms of layers that it held, where this run goes on with them.
  const TelemetrySeries& telemetry() const { return telemetry_; }
  /// Saves these too from now on. @pre outlives the saver
  void add_telemetry(const TelemetrySeries& series) { saved_telemetry_ = &series; }

  /// Whether a checkpoint is asked for after so many steps. The same on all ranks.
  bool is_due(int64_t steps) const;
  /// Saves where one is due or `validation` was never as low; after the last step all is on the
  /// disk when it returns. Throws SaveFailed with path and reason, on all ranks, where it cannot be
  /// written: the run should end, earlier checkpoints stay. Collective.
  void after_step(const ValidationSeries& validation = {});
  /// Saves what is not saved yet, and waits until all is on the disk. Same errors. Collective.
  void save_now(const ValidationSeries& validation = {});
  /// Says it on rank 0, by the options' on_notice.
  void tell(const std::string& words) const;
  /// Whether one on the way is due by rank 0's clock; false on other ranks.
  bool wants_rolling() const;
  /// Saves what is not saved yet; removed once a newer save is proven sound. Same errors.
  /// Collective.
  void roll(const ValidationSeries& validation = {});
  /// A loss after `step` steps is finite: checkpoints up to there are sound, and may replace others.
  void found_sound(int64_t step);
  /// The loss after `step` steps is no number: sets a checkpoint of that state aside, where nothing
  /// says that it is sound. Returns on rank 0 the newest that is left, empty where there is none.
  /// Collective.
  std::string leave_unsound(int64_t step);

  /// What the resumed run changes of how it learns.
  const std::vector<std::string>& changes() const { return changes_; }
  int64_t num_saves() const { return num_saves_; }
  int64_t saved_bytes() const { return saved_bytes_; }  ///< written by this rank

 private:
  /// A save whose files are being written.
  struct Pending {
    ~Pending() { pace.hurry(); }  // it is written to its end even where the run has failed

    CheckpointWriter writer;
    int64_t step = 0;
    bool is_best = false;  ///< of the lowest validation loss so far
    Metadata state = {};
    std::vector<TensorPiece> pieces = {};
    Tensors data = {};  ///< of the pieces; where steps go on meanwhile they lie in snapshot_
    /// By piece, of slots that lie on a disk: brings it; else empty.
    std::vector<std::function<Tensor()>> away = {};
    Pace pace = {};
    std::future<void> writing = {};
  };

  void save(const ValidationSeries& validation);
  /// The pieces that this rank writes.
  void collect(Pending& into);
  /// The data of a piece, there until the next one is asked for.
  static Tensor read(const Pending& of, size_t piece);
  /// Copies the data to where no step changes them.
  void take_snapshot(Pending& of);
  /// Commits a save once all ranks have written, without waiting for them. Collective.
  void poll();
  /// Waits for the save under way. Collective.
  void finish();
  void commit(const Pending& saved) const;
  void rotate() const;
  /// Removes saves on the way that the newest one replaces.
  void remove_rolled();
  /// Throws SaveFailed on all ranks where one of them says why. Collective.
  void agree(const std::string& why);
  /// Folders to go on from, the newest first, as rank 0 sees them. Collective.
  std::vector<std::string> found_checkpoints();
  /// Which of my shards I write: replicas agree once.
  const std::vector<bool>& my_writes(const std::vector<ParamShard>& shards);
  void load(const Checkpoint& from, const std::string& folder);
  /// After loading.
  void go_on_in(const std::string& folder, int64_t step);

  Engine& engine_;
  Communicator& world_;
  SaveOptions options_;
  std::optional<FolderLock> lock_;           ///< rank 0
  RollingSaves rolling_;                     ///< asked on rank 0
  std::optional<std::vector<bool>> writes_;  ///< empty on a rank that has no shards
  std::vector<std::string> changes_;
  Tensor snapshot_;  ///< bytes on the host, kept from save to save
  std::shared_ptr<Pending> pending_;
  bool is_committing_ = false;    ///< on all ranks
  std::future<void> committing_;  ///< rank 0
  int64_t saved_step_ = -1;       ///< of the newest save; below 0: none
  std::atomic<int64_t> sound_{-1};
  ValidationSeries validation_;
  TelemetrySeries telemetry_;
  const TelemetrySeries* saved_telemetry_ = nullptr;
  int64_t num_saves_ = 0, saved_bytes_ = 0;
};

}  // namespace kuafu
