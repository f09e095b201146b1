// SPDX-License-Identifier: Apache-2.0
#include <liburing.h>

#include <cstring>

#include "kuafu/base/errors.h"
#include "kuafu/device/disk_port.h"

namespace kuafu::device {

namespace {

class UringPort final : public DiskPort {
 public:
  explicit UringPort(int depth) {
    const int code = ::io_uring_queue_init(static_cast<unsigned>(depth), &ring_, 0);
    if (code < 0) throw Unavailable(text("io_uring_queue_init: ", std::strerror(-code)));
  }
  ~UringPort() override { ::io_uring_queue_exit(&ring_); }
  UringPort(const UringPort&) = delete;
  UringPort& operator=(const UringPort&) = delete;

  void submit(const DiskRequest& r) override {
    io_uring_sqe* entry = ::io_uring_get_sqe(&ring_);
    KUAFU_CHECK(entry != nullptr, "more requests than the ring has room for");
    const auto bytes = static_cast<unsigned>(r.bytes);
    const auto offset = static_cast<uint64_t>(r.offset);
    if (r.kind == DiskRequest::Kind::kRead) {
      ::io_uring_prep_read(entry, r.file, r.data, bytes, offset);
    } else {
      ::io_uring_prep_write(entry, r.file, r.data, bytes, offset);
    }
    entry->user_data = r.id;
    int code = 0;
    do {  // the kernel may be out of memory for a moment
      code = ::io_uring_submit(&ring_);
    } while (code == -EINTR || code == -EAGAIN || code == -EBUSY);
    KUAFU_CHECK(code >= 0, "io_uring_submit: ", std::strerror(-code));
  }

  DiskCompletion complete() override {
    io_uring_cqe* entry = nullptr;
    int code = 0;
    do {
      code = ::io_uring_wait_cqe(&ring_, &entry);
    } while (code == -EINTR || code == -EAGAIN);
    KUAFU_CHECK(code == 0, "io_uring_wait_cqe: ", std::strerror(-code));
    const DiskCompletion done{entry->user_data, entry->res};
    ::io_uring_cqe_seen(&ring_, entry);
    return done;
  }

 private:
  io_uring ring_ = {};
};

}  // namespace

std::unique_ptr<DiskPort> make_uring_port(int depth) { return std::make_unique<UringPort>(depth); }

}  // namespace kuafu::device
