// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <cerrno>
#include <deque>

#include "kuafu/base/errors.h"
#include "kuafu/device/disk_port.h"

namespace kuafu::device {

namespace {

class PlainPort final : public DiskPort {
 public:
  void submit(const DiskRequest& request) override { waiting_.push_back(request); }

  DiskCompletion complete() override {
    KUAFU_CHECK(!waiting_.empty(), "nothing is under way");
    const DiskRequest r = waiting_.front();
    waiting_.pop_front();
    const auto bytes = static_cast<size_t>(r.bytes);
    const ssize_t done = r.kind == DiskRequest::Kind::kRead
                             ? ::pread(r.file, r.data, bytes, r.offset)
                             : ::pwrite(r.file, r.data, bytes, r.offset);
    return {r.id, done < 0 ? -errno : done};
  }

 private:
  std::deque<DiskRequest> waiting_;
};

}  // namespace

std::unique_ptr<DiskPort> make_plain_port() { return std::make_unique<PlainPort>(); }

}  // namespace kuafu::device
