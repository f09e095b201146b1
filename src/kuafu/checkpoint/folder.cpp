// SPDX-License-Identifier: Apache-2.0
#include "kuafu/checkpoint/folder.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <system_error>
#include <utility>

#include "kuafu/base/errors.h"
#include "kuafu/checkpoint/index.h"
#include "kuafu/record/files.h"

namespace kuafu {
namespace {

namespace fs = std::filesystem;

bool is_checkpoint(const fs::path& folder) {
  std::error_code error;
  return step_of_folder(folder.string()) &&
         fs::symlink_status(folder, error).type() == fs::file_type::directory;
}

bool is_complete(const fs::path& folder) {
  std::error_code error;
  return is_checkpoint(folder) &&
         fs::symlink_status(folder / kIndexFile, error).type() == fs::file_type::regular;
}

/// The checkpoint beside the link that it leads to; a link to anywhere else leads to none.
std::optional<std::string> behind(const fs::path& link) {
  std::error_code error;
  const fs::path to = fs::read_symlink(link, error);
  if (error || to != to.filename()) return {};
  const fs::path folder = link.parent_path() / to;
  return is_complete(folder) ? std::optional(folder.string()) : std::nullopt;
}

/// First the name: what is cut off in the middle must not look complete.
void remove_checkpoint(const std::string& folder) {
  std::error_code error;
  const std::string aside = folder + ".partial";
  fs::rename(folder, aside, error);
  if (!error) fs::remove_all(aside, error);
}

}  // namespace

std::optional<int64_t> step_of_folder(const std::string& path) {
  const std::string name = fs::path(path).filename().string(), prefix = "step-";
  if (name.rfind(prefix, 0) != 0) return {};
  int64_t step = 0;
  const char *first = name.data() + prefix.size(), *last = name.data() + name.size();
  const auto [end, error] = std::from_chars(first, last, step);
  if (error != std::errc() || end != last || name != step_folder(step)) return {};
  return step;
}

std::vector<std::string> checkpoints(const std::string& root) {
  std::vector<std::pair<int64_t, std::string>> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(root, error)) {
    if (is_checkpoint(entry.path()))
      found.emplace_back(*step_of_folder(entry.path().string()), entry.path().string());
  }
  std::sort(found.rbegin(), found.rend());
  std::vector<std::string> all;
  for (auto& [step, folder] : found) all.push_back(std::move(folder));
  return all;
}

std::optional<std::string> linked_checkpoint(const std::string& root) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(root, error)) {
    if (step_of_folder(entry.path().string()) && entry.is_symlink(error)) {
      return entry.path().string();
    }
  }
  return {};
}

std::vector<std::string> complete_checkpoints(const std::string& root) {
  std::vector<std::string> all = checkpoints(root);
  std::erase_if(all, [](const std::string& folder) { return !is_complete(folder); });
  return all;
}

std::optional<std::string> newest_checkpoint(const std::string& root) {
  const std::vector<std::string> complete = complete_checkpoints(root);
  return complete.empty() ? std::nullopt : std::optional(complete.front());
}

std::optional<std::string> best_checkpoint(const std::string& root) {
  return behind(fs::path(root) / kBestLink);
}

void name_best(const std::string& root, int64_t step) {
  const fs::path link = fs::path(root) / kBestLink;
  const fs::path fresh = fs::path(root) / text(kBestLink, ".partial");
  std::error_code error;
  fs::remove_all(fresh, error);  // of a killed run
  fs::create_symlink(step_folder(step), fresh, error);
  if (!error) fs::rename(fresh, link, error);
  if (error) throw ConfigError(text("cannot make the link ", link.string(), ": ", error.message()));
  sync_folder(root);
}

void remove_checkpoints(const std::string& root, const Rotation& rotation) {
  const std::vector<std::string> complete = complete_checkpoints(root);
  const std::optional<int64_t> best = step_of_folder(best_checkpoint(root).value_or(""));
  bool has_sound = false;
  for (size_t i = 0; i < complete.size(); ++i) {
    const std::optional<int64_t> step = step_of_folder(complete[i]);
    const bool is_sound = step <= rotation.sound;
    const bool stays =
        static_cast<int64_t>(i) < rotation.keep || (is_sound && !has_sound) || step == best;
    has_sound = has_sound || is_sound;
    if (!stays) remove_checkpoint(complete[i]);
  }
}

void remove_checkpoint(const std::string& root, int64_t step) {
  remove_checkpoint(root + "/" + step_folder(step));
}

std::string set_aside(const std::string& root, int64_t step) {
  const std::string folder = root + "/" + step_folder(step), aside = folder + ".diverged";
  std::error_code error;
  fs::remove_all(aside, error);
  fs::rename(folder, aside, error);
  return error ? "" : aside;
}

std::string named_checkpoint(const std::string& given) {
  std::error_code error;
  fs::path path = fs::path(given).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();  // "saved/"
  if (fs::is_symlink(path, error) && path.filename() == kBestLink) {
    const auto best = behind(path);
    KUAFU_REQUIRE(best.has_value(), given, " leads to ", fs::read_symlink(path, error).string(),
                  ", which is no complete checkpoint beside it; name another one of ",
                  path.parent_path().string());
    return *best;
  }
  KUAFU_REQUIRE(path.filename() != kBestLink || fs::exists(path, error), given,
                " is not there: a run makes it with --checkpoint and train.validate_every");
  KUAFU_REQUIRE(fs::is_directory(path, error), given, " is no folder; name that of a checkpoint, ",
                "such as saved/", step_folder(100), " or saved/", kBestLink,
                ", or the one of --checkpoint, whose newest is taken");
  if (fs::exists(path / kIndexFile, error)) return path.string();
  const auto newest = newest_checkpoint(path.string());
  if (newest) return *newest;
  std::string unfinished;
  for (const auto& entry : fs::directory_iterator(path, error)) {
    if (entry.path().extension() == ".partial") unfinished = entry.path().filename().string();
  }
  const bool is_partial = path.string().find(".partial") != std::string::npos;
  throw ConfigError(text(given, " holds no complete checkpoint: ",
                         is_partial           ? "its save did not end"
                         : unfinished.empty() ? "it has no folder such as " + step_folder(100)
                                              : "the save of " + unfinished + " did not end"));
}

}  // namespace kuafu
