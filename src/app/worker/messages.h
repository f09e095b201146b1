// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <utility>

#include "kuafu/record/files.h"

// Whole messages between processes of this machine, over sockets that keep their boundaries.
namespace kuafu {

/// Two ends of a line; neither survives an exec.
std::pair<File, File> make_line();

/// False where the other end is gone. Messages longer than a socket takes at once end there.
bool send(const File& line, const std::string& message);

/// Waits for a message; none where the other end is gone.
std::optional<std::string> receive(const File& line);

/// "ended with 3" or "was ended by signal 9", of the status of waitpid().
std::string ended(int status);

}  // namespace kuafu
