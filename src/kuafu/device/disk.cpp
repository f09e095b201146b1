// SPDX-License-Identifier: Apache-2.0
#include "kuafu/device/disk.h"

#include <utility>

#include "kuafu/device/disk_place.h"
#include "kuafu/device/disk_worker.h"

namespace kuafu::device {

namespace {

/// What would serve here, and how it is called.
std::pair<std::unique_ptr<DiskPort>, std::string> best_port(const DiskPlace& place, int depth) {
  if (!place.is_direct()) {
    return {make_plain_port(),
            "pread and pwrite through the page cache, whose memory is in no budget: slower, "
            "because this file system has no O_DIRECT"};
  }
  const std::string direct = text("O_DIRECT, alignment ", place.alignment());
  try {
    return {make_uring_port(depth), "io_uring, " + direct};
  } catch (const Unavailable& e) {
    return {make_plain_port(), text("pread and pwrite, ", direct, ": slower, because ", e.what())};
  }
}

const DiskOptions& checked(const DiskOptions& o) {
  KUAFU_REQUIRE(o.chunk_bytes > 0 && o.num_chunks > 0, "a disk tier of ", o.num_chunks,
                " chunks of ", o.chunk_bytes, " bytes; both must be above 0");
  KUAFU_REQUIRE(o.piece_bytes > 0 && o.depth > 0, "a disk tier with ", o.depth, " requests of ",
                o.piece_bytes, " bytes at once; both must be above 0");
  KUAFU_REQUIRE(!o.gbs || *o.gbs > 0, "a disk of ", *o.gbs, " GB/s; a rate above 0 is right");
  return o;
}

}  // namespace

DiskError::DiskError(Fields f)
    : Error(text("disk tier in ", f.path, ": cannot ", f.doing, " at offset ", f.offset, ": ",
                 f.system, " (", to_string(f.kind), ")")),
      fields(std::move(f)) {}

std::string to_string(DiskError::Kind kind) {
  constexpr const char* kNames[] = {"full", "vanished", "corrupt", "failed"};
  return kNames[static_cast<size_t>(kind)];
}

DiskFile::DiskFile(const DiskOptions& options)
    : DiskFile(
          options, [](std::unique_ptr<DiskPort> port, void*) { return port; }, nullptr) {}

DiskFile::DiskFile(const DiskOptions& options, Wrap wrap, void* context) {
  auto place = std::make_unique<DiskPlace>(checked(options).folder);
  place->take_space(options.num_chunks * up_to(options.chunk_bytes, place->alignment()));
  auto [port, how] = best_port(*place, options.depth);
  worker_ = std::make_unique<Worker>(options, std::move(place), wrap(std::move(port), context),
                                     std::move(how));
}

DiskFile::~DiskFile() = default;

DiskFile::Ticket DiskFile::write(int64_t chunk, std::span<const std::byte> bytes) {
  return worker_->ask({.kind = DiskRequest::Kind::kWrite,
                       .chunk = chunk,
                       .data = const_cast<std::byte*>(bytes.data()),  // only read, see Worker
                       .bytes = static_cast<int64_t>(bytes.size())});
}

DiskFile::Ticket DiskFile::read(int64_t chunk, std::span<std::byte> bytes) {
  return worker_->ask({.kind = DiskRequest::Kind::kRead,
                       .chunk = chunk,
                       .data = bytes.data(),
                       .bytes = static_cast<int64_t>(bytes.size())});
}

void DiskFile::wait(Ticket ticket) { worker_->wait(ticket); }
bool DiskFile::is_done(Ticket ticket) { return worker_->is_done(ticket); }
DiskStats DiskFile::stats() { return worker_->stats(); }
int64_t DiskFile::alignment() const { return worker_->alignment(); }
const std::string& DiskFile::how() const { return worker_->how(); }

}  // namespace kuafu::device
