// SPDX-License-Identifier: Apache-2.0
#include "kuafu/checkpoint/checkpoint.h"

#include <charconv>
#include <cmath>
#include <filesystem>
#include <utility>

#include "kuafu/base/errors.h"
#include "kuafu/base/suggest.h"
#include "kuafu/base/utf8.h"
#include "kuafu/checkpoint/boxes.h"
#include "kuafu/record/json_text.h"

namespace kuafu {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPartial = ".partial";
constexpr const char* kOption = "--checkpoint";
constexpr const char* kPieces = "pieces";  // metadata of a rank's file

Json slice_json(const Slice& s) { return {{"offset", s.offset}, {"extent", s.extent}}; }
Slice slice_of(const Json& j) { return {j.at("offset").get<Shape>(), j.at("extent").get<Shape>()}; }

/// Name of piece i of a file, in that file.
std::string key_of(const TensorPiece& piece, size_t i) { return text(piece.name, "@", i); }

std::vector<TensorBytes> tensors_of(const std::vector<TensorPiece>& pieces) {
  std::vector<TensorBytes> tensors;
  for (const TensorPiece& p : pieces) {
    tensors.push_back({key_of(p, tensors.size()), p.dtype, p.slice.extent, p.data});
  }
  return tensors;
}

/// Which piece of which tensor each is, for the header.
Metadata table_of(const std::vector<TensorPiece>& pieces) {
  Json table = Json::object();
  for (const TensorPiece& p : pieces) {
    table[key_of(p, table.size())] = {
        {"name", p.name}, {"global", p.global}, {"slice", slice_json(p.slice)}};
  }
  return {{kPieces, table.dump()}};
}

/// Puts the pieces of a rank's file into the index. What a rank has written is known to be as it
/// was written: the file's header has a checksum.
void add_pieces(int rank, const Safetensors& file, CheckpointIndex& index) {
  const Json table = parse_json(file.metadata().at(kPieces));
  for (const auto& [key, piece] : table.items()) {
    const auto name = piece.at("name").get<std::string>();
    const DType dtype = file.entries().at(key).dtype;
    const auto global = piece.at("global").get<Shape>();
    IndexedTensor& tensor =
        index.tensors.try_emplace(name, IndexedTensor{dtype, global, {}}).first->second;
    KUAFU_CHECK(tensor.global == global && tensor.dtype == dtype, "tensor ", name,
                " has two shapes or dtypes among the ranks");
    tensor.pieces.push_back({rank, key, file.checksum_of(key), slice_of(piece.at("slice"))});
  }
}

}  // namespace

CheckpointWriter::CheckpointWriter(std::string root, int64_t step)
    : root_(std::move(root)),
      folder_(root_ + "/" + step_folder(step)),
      partial_(folder_ + kPartial) {}

void CheckpointWriter::prepare() const {
  make_writable_folder(root_, kOption);
  std::error_code ignored;  // what a killed run left takes space only
  for (const auto& entry : fs::directory_iterator(root_, ignored)) {
    if (entry.path().extension() == kPartial) fs::remove_all(entry.path(), ignored);
  }
  make_writable_folder(partial_, kOption);
}

void CheckpointWriter::write(int rank, const std::vector<TensorPiece>& pieces, Pace* pace) const {
  write_safetensors(partial_ + "/" + rank_file(rank), tensors_of(pieces), table_of(pieces), pace);
}

void CheckpointWriter::write(int rank, const std::vector<TensorPiece>& pieces,
                             const std::function<const void*(size_t piece)>& data) const {
  SafetensorsWriter writer(partial_ + "/" + rank_file(rank), tensors_of(pieces), table_of(pieces));
  for (size_t i = 0; i < pieces.size(); ++i) writer.add(data(i));
  writer.finish();
}

void CheckpointWriter::commit(int ranks, const Metadata& state) const {
  CheckpointIndex index{*step_of_folder(folder_), ranks, state, {}};
  for (int rank = 0; rank < ranks; ++rank) {
    add_pieces(rank, Safetensors(partial_ + "/" + rank_file(rank)), index);
  }
  for (const auto& [name, tensor] : index.tensors) {
    const std::string problem = cover_problem(tensor);
    KUAFU_CHECK(problem.empty(), "the ranks do not save ", name, " as a whole: ", problem);
  }
  const std::string path = partial_ + "/" + kIndexFile, bytes = to_text(index);
  KUAFU_CHECK(parse_index(bytes, path) == index, path, " would not be read as it is written");
  replace_file(path, bytes);
  sync_folder(partial_);
  // Saving a step again puts the old folder aside first: at every moment one of the two counts or
  // the one before does.
  const std::string aside = folder_ + ".old" + kPartial;
  std::error_code error;
  if (fs::exists(folder_)) fs::rename(folder_, aside, error);
  if (!error) fs::rename(partial_, folder_, error);
  if (error) throw ConfigError(text("cannot rename ", partial_, ": ", error.message()));
  fs::remove_all(aside);
  sync_folder(root_);
}

Checkpoint::Checkpoint(const std::string& folder) : folder_(folder) {
  const std::string path = folder + "/" + kIndexFile;
  const std::optional<int64_t> step = step_of_folder(folder);
  KUAFU_REQUIRE(step.has_value(), folder,
                " is no checkpoint: its name is not that of a step, such as ", step_folder(100));
  KUAFU_REQUIRE(fs::exists(fs::symlink_status(path)), folder,
                " is no complete checkpoint: it has no ", kIndexFile);
  index_ = parse_index(read_all(open_own(path, "checkpoint index"), path), path);
  KUAFU_REQUIRE(index_.step == *step, path, ": step is ", index_.step, ", its folder's name says ",
                step_folder(*step), "; use an earlier checkpoint");
  for (int rank = 0; rank < index_.ranks; ++rank) {
    KUAFU_REQUIRE(fs::exists(fs::symlink_status(folder + "/" + rank_file(rank))), path,
                  ": saved by ", index_.ranks, " ranks, and there is no ", rank_file(rank),
                  "; use an earlier checkpoint");
  }
}

const std::string& Checkpoint::state_text(const std::string& key) const {
  const auto found = index_.state.find(key);
  KUAFU_REQUIRE(found != index_.state.end(), folder_, "/", kIndexFile, ": state.", key,
                " is missing; use an earlier checkpoint");
  return found->second;
}

int64_t Checkpoint::state_count(const std::string& key) const {
  const std::string& given = state_text(key);
  int64_t count = -1;
  const char* last = given.data() + given.size();
  const auto [end, error] = std::from_chars(given.data(), last, count);
  const bool is_whole = error == std::errc() && end == last && count >= 0 && text(count) == given;
  KUAFU_REQUIRE(is_whole, folder_, "/", kIndexFile, ": state.", key,
                ": expected a whole number from 0, found ", in_quotes(as_utf8(given)),
                "; use an earlier checkpoint");
  return count;
}

double Checkpoint::state_number(const std::string& key) const {
  const std::string& given = state_text(key);
  double number = 0;
  const char* last = given.data() + given.size();
  const auto [end, error] = std::from_chars(given.data(), last, number);
  KUAFU_REQUIRE(error == std::errc() && end == last && std::isfinite(number) && number > 0, folder_,
                "/", kIndexFile, ": state.", key, ": expected a number above 0, found ",
                in_quotes(as_utf8(given)), "; use an earlier checkpoint");
  return number;
}

const Safetensors& Checkpoint::open(int rank) const {
  std::unique_ptr<Safetensors>& slot = files_[rank];
  if (!slot) slot = std::make_unique<Safetensors>(folder_ + "/" + rank_file(rank));
  return *slot;
}

const Json& Checkpoint::said_by(int rank) const {
  const auto found = said_.find(rank);
  if (found != said_.end()) return found->second;
  const Metadata& all = open(rank).metadata();  // may throw: then nothing is kept
  const auto table = all.find(kPieces);
  Json said = table == all.end() ? Json() : parse_json(table->second);
  if (!said.is_object()) said = Json::object();
  return said_.emplace(rank, std::move(said)).first->second;
}

const std::vector<char>& Checkpoint::bytes_of(const PlacedPiece& piece, DType dtype) const {
  if (last_.rank != piece.rank || last_.key != piece.key) {
    const Safetensors& file = open(piece.rank);
    const auto found = file.entries().find(piece.key);
    KUAFU_REQUIRE(found != file.entries().end(), "checkpoint file ", file.path(), " has no tensor ",
                  in_quotes(as_utf8(piece.key)),
                  ", which its index lists; use an earlier checkpoint");
    const Safetensors::Entry& entry = found->second;
    KUAFU_REQUIRE(entry.dtype == dtype && entry.shape == piece.slice.extent, "checkpoint file ",
                  file.path(), ": ", piece.key, " is ", to_string(entry.dtype), " ",
                  to_string(entry.shape), ", its index lists ", to_string(dtype), " ",
                  to_string(piece.slice.extent), "; use an earlier checkpoint");
    KUAFU_REQUIRE(file.checksum_of(piece.key) == piece.checksum, "checkpoint file ", file.path(),
                  " is damaged: the bytes of ", piece.key,
                  " are not those that its index lists; use an earlier checkpoint");
    last_ = {piece.rank, piece.key, file.read(piece.key)};
  }
  return last_.bytes;
}

void Checkpoint::read(const std::string& name, const Slice& slice, void* out) const {
  const auto found = index_.tensors.find(name);
  KUAFU_REQUIRE(found != index_.tensors.end(), "checkpoint ", folder_, " has no tensor ", name);
  const IndexedTensor& tensor = found->second;
  const Slice whole{Shape(tensor.global.size(), 0), tensor.global};
  KUAFU_CHECK(slice.offset.size() == tensor.global.size() &&
                  slice.extent.size() == tensor.global.size() && overlap(slice, whole) == slice,
              name, " of ", to_string(tensor.global), " has no box at ", to_string(slice.offset),
              " of ", to_string(slice.extent));
  for (const PlacedPiece& piece : tensor.pieces) {
    if (is_empty(overlap(piece.slice, slice))) continue;
    // Of another tensor's bytes, which are whole, no checksum tells.
    const Json of_piece = {
        {"name", name}, {"global", tensor.global}, {"slice", slice_json(piece.slice)}};
    KUAFU_REQUIRE(said_by(piece.rank).value(piece.key, Json()) == of_piece, "checkpoint file ",
                  open(piece.rank).path(), ": ", in_quotes(as_utf8(piece.key)),
                  " is not the part of ", in_quotes(as_utf8(name)),
                  " that its index takes it for; use an earlier checkpoint");
    copy_overlap(piece.slice, bytes_of(piece, tensor.dtype).data(), slice, out,
                 size_of(tensor.dtype));
  }
}

}  // namespace kuafu
