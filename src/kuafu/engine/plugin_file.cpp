// SPDX-License-Identifier: Apache-2.0
#include "kuafu/engine/plugin_file.h"

#include <elf.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "kuafu/base/errors.h"

namespace kuafu {
namespace {

/// The kind of machine that this program is for.
Elf64_Half own_machine() {
  std::ifstream self("/proc/self/exe", std::ios::binary);
  Elf64_Ehdr head{};
  self.read(reinterpret_cast<char*>(&head), sizeof head);
  return head.e_machine;
}

/// Bytes that the file's own headers say it has at least: its table of sections stands last, and
/// segments may reach beyond it. 0 where it is no ELF file of 64 bits for this kind of machine.
uint64_t told_size(std::ifstream& in, uint64_t size) {
  Elf64_Ehdr head;
  if (!in.read(reinterpret_cast<char*>(&head), sizeof head)) return 0;
  if (std::memcmp(head.e_ident, ELFMAG, SELFMAG) != 0) return 0;
  if (head.e_ident[EI_CLASS] != ELFCLASS64 || head.e_phentsize != sizeof(Elf64_Phdr)) return 0;
  if (head.e_machine != own_machine()) return 0;
  uint64_t told = head.e_shoff + uint64_t{head.e_shentsize} * head.e_shnum;
  for (uint64_t i = 0; i < head.e_phnum; ++i) {
    Elf64_Phdr segment;
    in.seekg(static_cast<std::streamoff>(head.e_phoff + i * sizeof segment));
    if (!in.read(reinterpret_cast<char*>(&segment), sizeof segment)) return size + 1;
    if (segment.p_type == PT_LOAD) told = std::max(told, segment.p_offset + segment.p_filesz);
  }
  return std::max<uint64_t>(told, 1);
}

}  // namespace

void check_plugin_file(const std::string& path) {
  std::error_code none;
  const auto status = std::filesystem::status(path, none);
  KUAFU_REQUIRE(std::filesystem::exists(status), "cannot load plug-in ", path,
                ": there is no such file");
  KUAFU_REQUIRE(std::filesystem::is_regular_file(status), "cannot load plug-in ", path,
                ": it is no file; allowed: a shared object, as kuafu_plugin() of CMake builds");
  const uint64_t size = std::filesystem::file_size(path, none);
  std::ifstream in(path, std::ios::binary);
  KUAFU_REQUIRE(in.good(), "cannot load plug-in ", path, ": it cannot be read");
  const uint64_t told = told_size(in, size);
  KUAFU_REQUIRE(
      told > 0, "cannot load plug-in ", path,
      ": it is no shared object for this kind of machine; allowed: one, as kuafu_plugin() "
      "of CMake builds");
  KUAFU_REQUIRE(told <= size, "cannot load plug-in ", path, ": it was cut short: it has ", size,
                " bytes, its headers tell of ", told, " or more; build it again");
}

}  // namespace kuafu
