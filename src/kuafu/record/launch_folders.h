// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "kuafu/record/files.h"

namespace kuafu {

/// A folder `base`/kuafu-run-PID that goes with the object. One whose processes were killed goes
/// when the next is made in the same place: `base`/kuafu-run-PID.lock is locked while this process
/// or one that it started is alive.
class OwnedFolder {
 public:
  /// Throws ConfigError where it cannot be made.
  explicit OwnedFolder(const std::string& base);
  ~OwnedFolder();
  OwnedFolder(const OwnedFolder&) = delete;
  OwnedFolder& operator=(const OwnedFolder&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
  File lock_;
  int owner_;  ///< process: what it forks removes nothing
};

/// Removes such folders of processes that are gone, in the temporary folder and in shared memory.
void remove_orphaned_folders();

/// Whether a launcher starts its ranks on this machine: under no job scheduler, without a list of hosts.
bool starts_here();

/// Where Open MPI puts its files while this stands, in the temporary folder and in shared memory:
/// into folders of our own (it is told by its variables; those that are set already win), so that
/// killed ranks and launchers leave nothing that the next run does not remove. Does nothing under a
/// job scheduler or with a list of hosts: the folders would be missing on other machines.
class LaunchFolders {
 public:
  LaunchFolders();
  ~LaunchFolders();
  LaunchFolders(const LaunchFolders&) = delete;
  LaunchFolders& operator=(const LaunchFolders&) = delete;

 private:
  std::optional<OwnedFolder> temporary_, shared_;
};

}  // namespace kuafu
