// SPDX-License-Identifier: Apache-2.0
//
// What the ledger says of own collectives beside what MPI itself is handed: every MPI_Isend of this
// program is counted here, on its way to PMPI_Isend.

#include <gtest/gtest.h>
#include <mpi.h>

#include <atomic>

#include "tests/comm/every_verb.h"
#include "tests/comm/mpi_tests.h"
#include "tests/comm/values.h"

namespace {

constexpr int kNoteTag = 1;  // of small notes that compare calls and tell of errors: in no ledger
std::atomic<int64_t> messages = 0, bytes = 0;

}  // namespace

extern "C" int MPI_Isend(const void* data, int count, MPI_Datatype type, int to, int tag,
                         MPI_Comm comm, MPI_Request* request) {
  int size = 0, me = 0;
  PMPI_Type_size(type, &size);
  PMPI_Comm_rank(comm, &me);
  if (tag != kNoteTag && to != me && count > 0) {  // no wire has what is empty, or of one's own
    ++messages;
    bytes += int64_t{count} * size;
  }
  return PMPI_Isend(data, count, type, to, tag, comm, request);
}

namespace kuafu::conformance {
namespace {

TEST(MpiWire, IsHandedWhatTheLedgerCounts) {
  for (const CallSizes& sizes : {CallSizes{}, sizes_around_thresholds()}) {
    Ledger ledger;
    messages = bytes = 0;
    every_verb(world_of_tests(), ledger, Substance::kData, sizes);
    world_of_tests().meter(nullptr, "world");
    int64_t counted_messages = 0, counted_bytes = 0;
    for (const auto& [axis, e] : ledger.axes()) {
      counted_messages += e.messages;
      counted_bytes += e.bytes_sent;
    }
    EXPECT_EQ(messages, counted_messages);
    EXPECT_EQ(bytes, counted_bytes);
    EXPECT_TRUE(messages > 10 || world_of_tests().size() == 1);
  }
}

}  // namespace
}  // namespace kuafu::conformance

int main(int argc, char** argv) {
  return kuafu::conformance::run_mpi_tests(argc, argv, kuafu::MpiCollectives::kOwn);
}
