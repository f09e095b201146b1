// SPDX-License-Identifier: Apache-2.0
#include "kuafu/comm/mpi_channel.h"

#include <mpi.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <list>
#include <vector>

namespace kuafu {

namespace {

constexpr int64_t kPieceBytes = int64_t{1} << 28;

void check_mpi(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> reason{};
  int length = 0;
  MPI_Error_string(code, reason.data(), &length);
  int kind = MPI_SUCCESS;
  MPI_Error_class(code, &kind);
  const std::string what = text(call, ": ", reason.data());
  if (kind == MPI_ERR_TRUNCATE) throw WrongLength(what);
  throw Error(what);
}

#define KUAFU_MPI(call) check_mpi(call, #call)

constexpr int kSent = -1;

struct Pieces {  // one message
  std::vector<MPI_Request> requests;
  std::vector<int> expected;  // by request: bytes to receive, or kSent
};

struct Note {
  std::vector<std::byte> bytes;
  MPI_Request request;
};

}  // namespace

struct MpiChannel::State {
  MPI_Comm comm = MPI_COMM_NULL;
  int rank = 0;
  int size = 1;
  std::vector<Pieces> messages;  // by handle
  std::vector<int> free_handles;
  std::list<Note> notes;
  int64_t num_through = 0;
  std::vector<MPI_Request> requests;  // room for test()
  std::vector<int> expected;
  std::vector<MPI_Status> statuses;

  explicit State(MPI_Comm c) : comm(c) {
    KUAFU_MPI(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN));
    KUAFU_MPI(MPI_Comm_rank(comm, &rank));
    KUAFU_MPI(MPI_Comm_size(comm, &size));
  }

  int take_handle() {
    if (free_handles.empty()) {
      messages.emplace_back();
      return static_cast<int>(messages.size()) - 1;
    }
    const int handle = free_handles.back();
    free_handles.pop_back();
    return handle;
  }
};

MpiSession::MpiSession() {
  int provided = MPI_THREAD_SINGLE;
  KUAFU_MPI(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided));
  KUAFU_REQUIRE(provided >= MPI_THREAD_SERIALIZED, "this MPI library offers thread level ",
                provided, "; MPI_THREAD_SERIALIZED is needed, build MPI with thread support");
}

void MpiSession::finalize() { KUAFU_MPI(MPI_Finalize()); }

void MpiSession::abort(int exit_code) {
  MPI_Abort(MPI_COMM_WORLD, exit_code);
  std::_Exit(exit_code);
}

MpiChannel::MpiChannel(std::unique_ptr<State> state) : state_(std::move(state)) {}

// The communicator itself lives until finalize(): freeing it is collective, and a rank that is torn
// down has nobody to do it with.
MpiChannel::~MpiChannel() = default;

std::unique_ptr<MpiChannel> MpiChannel::world() {
  MPI_Comm comm = MPI_COMM_NULL;
  KUAFU_MPI(MPI_Comm_dup(MPI_COMM_WORLD, &comm));
  return std::unique_ptr<MpiChannel>(new MpiChannel(std::make_unique<State>(comm)));
}

void* MpiChannel::handle() { return &state_->comm; }
int64_t MpiChannel::num_through() const { return state_->num_through; }
int MpiChannel::rank() const { return state_->rank; }
int MpiChannel::size() const { return state_->size; }

int MpiChannel::largest_tag() {
  int* largest = nullptr;
  int is_set = 0;
  KUAFU_MPI(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, static_cast<void*>(&largest), &is_set));
  return is_set != 0 ? *largest : 32767;  // what the standard promises
}

std::unique_ptr<MpiChannel> MpiChannel::split(int color, int key) {
  MPI_Comm comm = MPI_COMM_NULL;
  KUAFU_MPI(MPI_Comm_split(state_->comm, color < 0 ? MPI_UNDEFINED : color, key, &comm));
  if (comm == MPI_COMM_NULL) return nullptr;
  return std::unique_ptr<MpiChannel>(new MpiChannel(std::make_unique<State>(comm)));
}

std::unique_ptr<MpiChannel> MpiChannel::duplicate() {
  MPI_Comm comm = MPI_COMM_NULL;
  KUAFU_MPI(MPI_Comm_dup(state_->comm, &comm));
  return std::unique_ptr<MpiChannel>(new MpiChannel(std::make_unique<State>(comm)));
}

int MpiChannel::send(const void* data, int64_t bytes, int to, int tag) {
  const int handle = state_->take_handle();
  Pieces& message = state_->messages[static_cast<size_t>(handle)];
  int64_t at = 0;
  do {
    const auto length = static_cast<int>(std::min(kPieceBytes, bytes - at));
    KUAFU_MPI(MPI_Isend(static_cast<const std::byte*>(data) + at, length, MPI_BYTE, to, tag,
                        state_->comm, &message.requests.emplace_back()));
    message.expected.push_back(kSent);
    at += length;
  } while (at < bytes);
  return handle;
}

int MpiChannel::receive(void* data, int64_t bytes, int from, int tag) {
  const int handle = state_->take_handle();
  Pieces& message = state_->messages[static_cast<size_t>(handle)];
  int64_t at = 0;
  do {
    const auto length = static_cast<int>(std::min(kPieceBytes, bytes - at));
    KUAFU_MPI(MPI_Irecv(static_cast<std::byte*>(data) + at, length, MPI_BYTE, from, tag,
                        state_->comm, &message.requests.emplace_back()));
    message.expected.push_back(length);
    at += length;
  } while (at < bytes);
  return handle;
}

// All at once: each look at MPI costs a turn of its progress engine, which may yield the core.
bool MpiChannel::test(const std::vector<int>& handles) {
  std::vector<MPI_Request>& requests = state_->requests;
  std::vector<int>& expected = state_->expected;
  requests.clear();
  expected.clear();
  for (const int handle : handles) {
    const Pieces& message = state_->messages[static_cast<size_t>(handle)];
    requests.insert(requests.end(), message.requests.begin(), message.requests.end());
    expected.insert(expected.end(), message.expected.begin(), message.expected.end());
  }
  state_->statuses.resize(requests.size());
  int are_through = 0;
  const int code = MPI_Testall(static_cast<int>(requests.size()), requests.data(), &are_through,
                               state_->statuses.data());
  if (code == MPI_ERR_IN_STATUS) {
    for (const MPI_Status& status : state_->statuses) {
      if (status.MPI_ERROR != MPI_ERR_PENDING) check_mpi(status.MPI_ERROR, "MPI_Testall");
    }
  }
  check_mpi(code, "MPI_Testall");
  if (are_through == 0) return false;
  for (size_t i = 0; i < requests.size(); ++i) {
    if (expected[i] == kSent) continue;
    int length = 0;
    KUAFU_MPI(MPI_Get_count(&state_->statuses[i], MPI_BYTE, &length));
    if (length != expected[i]) {
      throw WrongLength(text("a message of ", length, " bytes met a receive of ", expected[i]));
    }
  }
  state_->num_through += static_cast<int64_t>(requests.size());
  for (const int handle : handles) {
    state_->messages[static_cast<size_t>(handle)].requests.clear();
    state_->messages[static_cast<size_t>(handle)].expected.clear();
    state_->free_handles.push_back(handle);
  }
  return true;
}

void MpiChannel::send_note(std::span<const std::byte> note, int to, int tag) {
  std::erase_if(state_->notes, [](Note& old) {
    int is_through = 0;
    KUAFU_MPI(MPI_Test(&old.request, &is_through, MPI_STATUS_IGNORE));
    return is_through != 0;
  });
  Note& fresh = state_->notes.emplace_back();
  fresh.bytes.assign(note.begin(), note.end());
  KUAFU_MPI(MPI_Isend(fresh.bytes.data(), static_cast<int>(note.size()), MPI_BYTE, to, tag,
                      state_->comm, &fresh.request));
}

bool MpiChannel::take_note(std::span<std::byte> note, int from, int tag) {
  int has_arrived = 0;
  MPI_Status status;
  KUAFU_MPI(MPI_Iprobe(from < 0 ? MPI_ANY_SOURCE : from, tag, state_->comm, &has_arrived, &status));
  if (has_arrived == 0) return false;
  KUAFU_MPI(MPI_Recv(note.data(), static_cast<int>(note.size()), MPI_BYTE, status.MPI_SOURCE, tag,
                     state_->comm, MPI_STATUS_IGNORE));
  return true;
}

std::vector<std::byte> MpiChannel::take_note(int from, int tag) {
  int has_arrived = 0;
  MPI_Status status;
  KUAFU_MPI(MPI_Iprobe(from, tag, state_->comm, &has_arrived, &status));
  if (has_arrived == 0) return {};
  int length = 0;
  KUAFU_MPI(MPI_Get_count(&status, MPI_BYTE, &length));
  std::vector<std::byte> note(static_cast<size_t>(length));
  KUAFU_MPI(MPI_Recv(note.data(), length, MPI_BYTE, from, tag, state_->comm, MPI_STATUS_IGNORE));
  return note;
}

int MpiChannel::start_barrier() {
  const int handle = state_->take_handle();
  Pieces& message = state_->messages[static_cast<size_t>(handle)];
  KUAFU_MPI(MPI_Ibarrier(state_->comm, &message.requests.emplace_back()));
  message.expected.push_back(kSent);
  return handle;
}

}  // namespace kuafu
