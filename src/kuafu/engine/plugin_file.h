// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace kuafu {

/// Refuses with ConfigError a file that is no whole shared object of this kind of machine: a folder,
/// a pipe (which would be waited for), a text, one cut short (whose missing pages end a process
/// that maps them).
void check_plugin_file(const std::string& path);

}  // namespace kuafu
