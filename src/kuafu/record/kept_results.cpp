// SPDX-License-Identifier: Apache-2.0
#include "kuafu/record/kept_results.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <fstream>
#include <sstream>
#include <string>

#include "kuafu/base/errors.h"
#include "kuafu/record/json_text.h"

namespace kuafu {
namespace {

/// The environment variable with the path of a file in the memory of the holder.
constexpr const char* kVariable = "KUAFU_KEPT_RESULTS";

std::string path_of(int descriptor) { return text("/proc/", ::getpid(), "/fd/", descriptor); }

Json document_in(const std::string& path) {
  std::ostringstream words;
  words << std::ifstream(path).rdbuf();
  const Json document = Json::parse(words.str(), nullptr, false);
  return document.is_object() ? document : Json(nullptr);
}

bool write(const std::string& words, std::ios::openmode mode) {
  const char* path = ::getenv(kVariable);
  if (path == nullptr || ::access(path, W_OK) != 0) return false;
  std::ofstream out(path, mode);
  out << words;
  return out.good();
}

}  // namespace

KeptResults::KeptResults()
    : file_(::getenv(kVariable) == nullptr ? ::memfd_create("kuafu-results", MFD_CLOEXEC) : -1) {
  if (file_.is_open()) ::setenv(kVariable, path_of(file_.descriptor()).c_str(), 1);
}

KeptResults::~KeptResults() {
  if (file_.is_open()) ::unsetenv(kVariable);
}

Json KeptResults::read() const {
  return file_.is_open() ? document_in(path_of(file_.descriptor())) : Json(nullptr);
}

Json KeptResults::held() {
  const char* path = ::getenv(kVariable);
  return path == nullptr ? Json(nullptr) : document_in(path);
}

std::vector<Json> KeptResults::lines() const {
  std::vector<Json> lines;
  if (!file_.is_open()) return lines;
  std::ifstream in(path_of(file_.descriptor()));
  for (std::string line; std::getline(in, line);) {
    Json value = Json::parse(line, nullptr, false);
    if (value.is_object()) lines.push_back(std::move(value));
  }
  return lines;
}

bool KeptResults::keep(const Json& document) { return write(json_line(document), std::ios::trunc); }
void KeptResults::add(const Json& line) { write(json_line(line) + "\n", std::ios::app); }
void KeptResults::forget() { write("", std::ios::trunc); }

}  // namespace kuafu
