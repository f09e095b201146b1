// SPDX-License-Identifier: Apache-2.0
#include "kuafu/device/device.h"

namespace kuafu::device {

namespace {

[[noreturn]] void refuse() { throw Unavailable("no CUDA device: " + why_none()); }

}  // namespace

int num_devices() { return 0; }
std::string why_none() {
  return "this kuafu was built without CUDA; where a CUDA toolkit is present, configure and build "
         "again";
}
std::string why_unusable() { return why_none(); }
std::string name_of(int) { refuse(); }
std::string bus_of(int) { refuse(); }
void use(int) { refuse(); }

DeviceStream::DeviceStream() { refuse(); }
DeviceStream::~DeviceStream() = default;
void DeviceStream::synchronize() const { refuse(); }

Event::Event(Timing) { refuse(); }
Event::~Event() = default;
void Event::record(StreamView) { refuse(); }
void Event::hold(StreamView) const { refuse(); }
bool Event::is_reached() const { refuse(); }
void Event::synchronize() const { refuse(); }
double Event::ms_since(const Event&) const { refuse(); }

Memory::Memory(int64_t, int) { refuse(); }
Memory::~Memory() = default;
StreamMemory::StreamMemory(int64_t, StreamView stream, int) : stream_(stream) { refuse(); }
StreamMemory::~StreamMemory() = default;
PinnedMemory::PinnedMemory(int64_t, int) { refuse(); }
PinnedMemory::~PinnedMemory() = default;

void copy(void*, const void*, int64_t, StreamView) { refuse(); }
void combine(DType, Combine, std::span<const void* const>, std::span<void* const>, int64_t,
             StreamView) {
  refuse();
}

}  // namespace kuafu::device
