// SPDX-License-Identifier: Apache-2.0
#include "kuafu/record/provenance.h"

#include <sched.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <string_view>

#include "kuafu/base/build_folders.h"
#include "kuafu/base/config.h"
#include "kuafu/base/errors.h"
#include "kuafu/base/kernel_choice.h"
#include "kuafu/base/utf8.h"
#include "kuafu/base/xxh64.h"

namespace kuafu {
namespace {

/// Value of the first line "name: value" (any blanks around the colon); "" where there is none.
std::string line_value(const std::string& path, std::string_view name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.compare(0, name.size(), name) != 0) continue;
    const size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const size_t begin = line.find_first_not_of(" \t", colon + 1);
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return "";
}

/// "  16384 kB" to bytes.
int64_t kilobytes(const std::string& value) { return std::atoll(value.c_str()) * 1024; }

/// "AMD EPYC (family 25, model 17)": virtual machines give one name to generations that round
/// differently.
std::string cpu_model() {
  const std::string path = "/proc/cpuinfo", name = line_value(path, "model name");
  const std::string family = line_value(path, "cpu family"), model = line_value(path, "model\t");
  return family.empty() ? name : text(name, " (family ", family, ", model ", model, ")");
}

std::string gpu_models() {
  std::string models;
  std::error_code error;
  for (const auto& gpu : std::filesystem::directory_iterator("/proc/driver/nvidia/gpus", error)) {
    const std::string model = line_value(gpu.path().string() + "/information", "Model");
    if (!model.empty()) models += (models.empty() ? "" : ", ") + model;
  }
  return models;
}

std::string gpu_driver_version() {
  std::ifstream file("/sys/module/nvidia/version");
  std::string version;
  std::getline(file, version);
  return version;
}

/// `word` with every path of the source tree named from its root, in quotes where a shell needs
/// them.
std::string portable(std::string word) {
  const std::string root = text(build_info::kSourceDir, "/");
  for (size_t at = word.find(root); at != std::string::npos; at = word.find(root, at)) {
    word.erase(at, root.size());
  }
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@%+=:,./-";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

}  // namespace

Machine machine() {
  Machine m;
  struct utsname names {};
  if (::uname(&names) == 0) {
    m.host = names.nodename;
    m.system = text(names.sysname, " ", names.release, " ", names.machine);
  }
  cpu_set_t allowed;
  m.cores = ::sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? CPU_COUNT(&allowed)
                                                                  : ::sysconf(_SC_NPROCESSORS_ONLN);
  m.cpu_model = cpu_model();
  m.memory_bytes = kilobytes(line_value("/proc/meminfo", "MemTotal"));
  m.memory_available_bytes = kilobytes(line_value("/proc/meminfo", "MemAvailable"));
  m.gpu = gpu_models();
  m.gpu_driver = gpu_driver_version();
  return m;
}

std::string utc_time() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  char buffer[32];
  std::strftime(buffer, sizeof buffer, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return buffer;
}

std::string command_line() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::string words;
  for (std::string word; std::getline(file, word, '\0');) {
    words += (words.empty() ? "" : " ") + portable(word);
  }
  return words;
}

Json plugin_hashes(const std::vector<std::string>& plugins) {
  Json hashes = Json::object();
  for (const std::string& path : plugins) {
    try {
      hashes[std::filesystem::path(path).filename().string()] =
          hash_digits(read_file(path, "plug-in"));
    } catch (const ConfigError&) {
    }
  }
  return hashes;
}

Json provenance() {
  const Machine m = machine();
  const GitState git = git_state();
  Json libraries = Json::object();
  for (const BuildFeature& feature : build_info::kFeatures) {
    libraries[std::string(feature.name)] =
        feature.found ? Json(std::string(feature.detail)) : Json(nullptr);
  }
  return {{"git_commit", std::string(git.commit)},
          {"git_dirty", git.is_dirty},
          {"command", as_utf8(command_line())},
          {"version", std::string(build_info::kVersion)},
          {"compiler", std::string(build_info::kCompiler)},
          {"flags", std::string(build_info::kFlags)},
          {"build_type", std::string(build_info::kBuildType)},
          {"libraries", libraries},
          {"kernels", std::string(to_string(kernel_choice()))},
          {"host", m.host},
          {"system", m.system},
          {"cpu_model", m.cpu_model},
          {"cores", m.cores},
          {"memory_bytes", m.memory_bytes},
          {"gpu", m.gpu.empty() ? Json(nullptr) : Json(m.gpu)},
          {"time", utc_time()}};
}

void require_recordable(const std::string& path, const GitState& git) {
  if (path.empty()) return;
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path source = fs::weakly_canonical(std::string(build_info::kSourceDir), error);
  const fs::path place = fs::weakly_canonical(fs::absolute(path), error).lexically_relative(source);
  auto part = place.begin();
  if (part == place.end() || *part != "results") return;
  if (++part != place.end() && *part == "runs") return;
  const bool is_clean = !git.is_dirty && git.commit != "unknown";
  KUAFU_REQUIRE(
      is_clean || std::getenv("KUAFU_EVEN_DIRTY") != nullptr, path,
      ": results that are kept come from a ", "commit; this program was built from ",
      git.commit == "unknown" ? text("no commit")
                              : text("commit ", git.commit.substr(0, 12), " with local changes"),
      ". Commit and build again, or write elsewhere (KUAFU_EVEN_DIRTY=1 writes it none the "
      "less, and fails the test `results`)");
}

}  // namespace kuafu
