// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace kuafu {

/// `kuafu new`.
struct NewCall {
  std::string kind, name;
  std::string out;  ///< folder; empty = the name
};

void add_new(CLI::App& app, NewCall& call);

/// Writes a project for a plug-in. Throws ConfigError, having written nothing: no such kind, a name
/// that is no identifier or taken, a folder that is there.
int new_command(const NewCall& call);

}  // namespace kuafu
