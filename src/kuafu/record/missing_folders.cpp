// SPDX-License-Identifier: Apache-2.0
#include "kuafu/record/missing_folders.h"

#include <unistd.h>

#include <filesystem>
#include <system_error>

namespace kuafu {

std::vector<std::string> missing_folders(const std::string& folder) {
  std::vector<std::string> missing;
  std::error_code error;
  std::filesystem::path path = std::filesystem::path(folder).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();  // "mine/"
  while (!path.empty() && path != path.root_path() && !std::filesystem::exists(path, error)) {
    missing.push_back(path.string());
    path = path.parent_path();
  }
  return missing;
}

void remove_empty_folders(const std::vector<std::string>& folders) {
  for (const std::string& folder : folders) ::rmdir(folder.c_str());
}

}  // namespace kuafu
