// SPDX-License-Identifier: Apache-2.0
#include "kuafu/memory/uses.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "kuafu/base/errors.h"

namespace kuafu::memory {
namespace {

void check_chunks(const UseTrace& trace) {
  int64_t total = 0;
  for (int64_t c = 0; c < trace.num_chunks(); ++c) {
    const Chunk& chunk = trace.chunks[static_cast<size_t>(c)];
    KUAFU_REQUIRE(chunk.bytes > 0, "chunk ", c, " has ", chunk.bytes, " bytes; it needs some");
    KUAFU_REQUIRE(chunk.home != Tier::kDevice, "chunk ", c,
                  " is at home on the device, so that it cannot leave; choose host or disk");
    KUAFU_REQUIRE(!__builtin_add_overflow(total, chunk.bytes, &total), "the chunks up to number ",
                  c, " have more than 2^63 - 1 bytes");
  }
}

void check_moment(const UseTrace& trace, int64_t t) {
  const Moment& moment = trace.moments[static_cast<size_t>(t)];
  KUAFU_REQUIRE(moment.in_use >= 0, "moment ", t, " has ", moment.in_use,
                " bytes in use; the least is 0");
  KUAFU_REQUIRE(moment.seconds >= 0 && std::isfinite(moment.seconds), "moment ", t, " computes ",
                moment.seconds, " s; the least is 0");
  for (size_t i = 0; i < moment.uses.size(); ++i) {
    const int64_t c = moment.uses[i].chunk;
    KUAFU_REQUIRE(c >= 0 && c < trace.num_chunks(), "moment ", t, " uses chunk ", c, " of ",
                  trace.num_chunks());
    KUAFU_REQUIRE(use_of(moment, c) == &moment.uses[i], "moment ", t, " uses chunk ", c,
                  " twice; make it one use");
  }
}

}  // namespace

const char* name_of(Tier tier) {
  constexpr const char* kNames[] = {"device", "host", "disk"};
  return kNames[static_cast<int>(tier)];
}

const char* name_of(Access access) {
  constexpr const char* kNames[] = {"read", "update", "overwrite", "at home"};
  return kNames[static_cast<int>(access)];
}

std::ostream& operator<<(std::ostream& out, const UseTrace& trace) {
  for (int64_t c = 0; c < trace.num_chunks(); ++c) {
    const Chunk& chunk = trace.chunks[static_cast<size_t>(c)];
    out << "chunk " << c << ": " << chunk.bytes << " bytes, " << name_of(chunk.home)
        << (chunk.group.empty() ? "" : ", ") << chunk.group << "\n";
  }
  for (size_t t = 0; t < trace.moments.size(); ++t) {
    const Moment& moment = trace.moments[t];
    out << t << ": " << moment.in_use << " in use, " << moment.seconds << " s";
    for (const ChunkUse& use : moment.uses) out << ", " << use.chunk << " " << name_of(use.access);
    out << "\n";
  }
  return out;
}

void check(const UseTrace& trace) {
  check_chunks(trace);
  KUAFU_REQUIRE(!trace.moments.empty(),
                "a trace of uses without a moment; a step has at least one");
  for (int64_t t = 0; t < trace.num_moments(); ++t) check_moment(trace, t);
}

int64_t used_bytes(const UseTrace& trace, int64_t moment) {
  int64_t bytes = 0;
  for (const ChunkUse& use : trace.moments[static_cast<size_t>(moment)].uses) {
    if (needs_device(use.access)) bytes += trace.chunks[static_cast<size_t>(use.chunk)].bytes;
  }
  return bytes;
}

DoesNotFit::DoesNotFit(int64_t moment, int64_t used, int64_t in_use, int64_t budget_)
    : OutOfMemory(0, used, in_use, budget_),
      words_(text("out of memory: the chunks that moment ", moment, " uses at once have ", used,
                  " bytes, and ", in_use, " are no chunk's, budget ", budget_,
                  "; no policy makes room for both")) {}

void check_fits(const UseTrace& trace, int64_t budget) {
  for (int64_t t = 0; t < trace.num_moments(); ++t) {
    const int64_t in_use = trace.moments[static_cast<size_t>(t)].in_use;
    const int64_t used = used_bytes(trace, t);
    if (in_use <= budget && used <= budget - in_use) continue;
    throw DoesNotFit(t, used, in_use, budget);
  }
}

UseTrace repeated(const UseTrace& trace, int64_t k) {
  UseTrace out{trace.chunks, {}};
  for (int64_t i = 0; i < k; ++i) {
    out.moments.insert(out.moments.end(), trace.moments.begin(), trace.moments.end());
  }
  return out;
}

UsesByChunk::UsesByChunk(const UseTrace& trace)
    : moments_(trace.num_moments()), uses_(trace.chunks.size()) {
  for (int64_t t = 0; t < moments_; ++t) {
    for (const ChunkUse& use : trace.moments[static_cast<size_t>(t)].uses) {
      uses_[static_cast<size_t>(use.chunk)].push_back({t, use.access});
    }
  }
}

NextUse UsesByChunk::next(int64_t chunk, int64_t moment) const {
  const std::vector<At>& all = of(chunk);
  if (all.empty()) return {moments_, true, Access::kRead};
  const auto before = [](const At& at, int64_t t) { return at.moment < t; };
  const auto found = std::lower_bound(all.begin(), all.end(), moment, before);
  if (found != all.end()) return {found->moment - moment, false, found->access};
  return {all.front().moment + moments_ - moment, true, all.front().access};
}

int64_t UsesByChunk::age(int64_t chunk, int64_t moment) const {
  const std::vector<At>& all = of(chunk);
  if (all.empty()) return moments_ + 1;
  const auto before = [](const At& at, int64_t t) { return at.moment < t; };
  const auto found = std::lower_bound(all.begin(), all.end(), moment, before);
  return found != all.begin() ? moment - std::prev(found)->moment
                              : moment + moments_ - all.back().moment;
}

bool UsesByChunk::is_dead(int64_t chunk, int64_t moment) const {
  return !of(chunk).empty() && next(chunk, moment).access == Access::kOverwrite;
}

const ChunkUse* use_of(const Moment& moment, int64_t chunk) {
  for (const ChunkUse& use : moment.uses) {
    if (use.chunk == chunk) return &use;
  }
  return nullptr;
}

}  // namespace kuafu::memory
