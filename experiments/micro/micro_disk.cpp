// SPDX-License-Identifier: Apache-2.0
//
// What the disk tier writes and reads: every chunk of a file once each way, in order, one asked for ahead
// of the one that is waited for, as a step does with the states of an optimizer. Reads are held to the bytes
// that were written by the tier itself. One JSON object on standard output, for disk.py.

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include <CLI/CLI.hpp>

#include "kuafu/base/build_info.h"
#include "kuafu/base/units.h"
#include "kuafu/device/disk.h"
#include "kuafu/record/json.h"

namespace kuafu {
namespace {

constexpr size_t kAlignment = 4096;

/// Memory as the tier has it: at the border of a page, filled with what no disk compresses.
class Buffer {
 public:
  explicit Buffer(int64_t bytes)
      : data_(static_cast<std::byte*>(std::aligned_alloc(kAlignment, static_cast<size_t>(bytes))),
              &std::free),
        bytes_(static_cast<size_t>(bytes)) {
    std::mt19937_64 random(1);
    for (size_t i = 0; i < bytes_; ++i) data_.get()[i] = static_cast<std::byte>(random());
  }
  std::span<std::byte> all() { return {data_.get(), bytes_}; }

 private:
  std::unique_ptr<std::byte, decltype(&std::free)> data_;
  size_t bytes_;
};

/// GB/s of one pass over all chunks.
template <class Ask>
double pass(device::DiskFile& file, int64_t chunks, int64_t chunk_bytes, const Ask& ask) {
  const auto start = std::chrono::steady_clock::now();
  device::DiskFile::Ticket before = ask(0);
  for (int64_t c = 1; c < chunks; ++c) {
    const device::DiskFile::Ticket next = ask(c);
    file.wait(before);
    before = next;
  }
  file.wait(before);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  return static_cast<double>(chunks * chunk_bytes) / took.count() / 1e9;
}

int run(int argc, char** argv) {
  CLI::App app("Writes and reads every chunk of a file of the disk tier once");
  std::string folder = "/var/tmp", size = "2 GiB", chunk = "24 MiB";
  app.add_option("--folder", folder, "of the disk")->capture_default_str();
  app.add_option("--size", size, "of the file, in whole chunks of a page")->capture_default_str();
  app.add_option("--chunk", chunk, "what is asked for at once")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  const int64_t bytes = parse_bytes(chunk), chunks = parse_bytes(size) / bytes;
  KUAFU_REQUIRE(chunks > 1 && bytes % static_cast<int64_t>(kAlignment) == 0, "--size ", size,
                " and --chunk ", chunk, ": two chunks at least, of whole pages of ", kAlignment,
                " bytes");
  device::DiskFile file({.folder = folder, .chunk_bytes = bytes, .num_chunks = chunks});
  std::vector<Buffer> buffers;
  for (int i = 0; i < 2; ++i) buffers.emplace_back(bytes);
  const auto buffer = [&](int64_t c) { return buffers[static_cast<size_t>(c % 2)].all(); };
  // The first writes of a file take its space, as fio's are given it before: a step writes again.
  pass(file, chunks, bytes, [&](int64_t c) { return file.write(c, buffer(c)); });
  const double written =
      pass(file, chunks, bytes, [&](int64_t c) { return file.write(c, buffer(c)); });
  const double read = pass(file, chunks, bytes, [&](int64_t c) { return file.read(c, buffer(c)); });
  std::cout << Json{{"write_gbs", written},
                    {"read_gbs", read},
                    {"bytes", chunks * bytes},
                    {"how", file.how()},
                    {"commit", git_state().commit}}
            << "\n";
  return 0;
}

}  // namespace
}  // namespace kuafu

int main(int argc, char** argv) {
  try {
    return kuafu::run(argc, argv);
  } catch (const std::exception& e) {
    std::cerr << "micro_disk: " << e.what() << "\n";
    return 1;
  }
}
