// SPDX-License-Identifier: Apache-2.0
#include "kuafu/checkpoint/checkpoint.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include "kuafu/base/config.h"
#include "kuafu/base/errors.h"
#include "kuafu/record/json.h"

namespace kuafu {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kFormat = 1;
constexpr const char* kIndex = "index.json";
constexpr const char* kPieces = "pieces";  // metadata of a rank's file

std::string file_of(int rank) {
  char name[32];
  std::snprintf(name, sizeof(name), "rank-%05d.safetensors", rank);
  return name;
}

std::string folder_of(int64_t step) {
  char name[32];
  std::snprintf(name, sizeof(name), "step-%08lld", static_cast<long long>(step));
  return name;
}

int64_t volume(const Shape& extent) {
  int64_t n = 1;
  for (const int64_t e : extent) n *= e;
  return n;
}

Json slice_json(const Slice& s) { return {{"offset", s.offset}, {"extent", s.extent}}; }
Slice slice_of(const Json& j) { return {j.at("offset").get<Shape>(), j.at("extent").get<Shape>()}; }

/// The common part of two boxes; an extent of 0 or less where they do not meet.
Slice overlap(const Slice& a, const Slice& b) {
  Slice both;
  for (size_t d = 0; d < a.offset.size(); ++d) {
    const int64_t first = std::max(a.offset[d], b.offset[d]);
    const int64_t last = std::min(a.offset[d] + a.extent[d], b.offset[d] + b.extent[d]);
    both.offset.push_back(first);
    both.extent.push_back(last - first);
  }
  return both;
}

bool is_empty(const Slice& s) {
  return std::any_of(s.extent.begin(), s.extent.end(), [](int64_t e) { return e <= 0; });
}

/// Where element `at` (global) of a box lies in its memory.
int64_t index_in(const Slice& box, const Shape& at) {
  int64_t index = 0;
  for (size_t d = 0; d < at.size(); ++d) index = index * box.extent[d] + at[d] - box.offset[d];
  return index;
}

}  // namespace

void copy_overlap(const Slice& from, const void* source, const Slice& to, void* target,
                  int64_t size) {
  const Slice both = overlap(from, to);
  if (is_empty(both)) return;
  const size_t dims = both.extent.size();
  const int64_t row = dims == 0 ? 1 : both.extent.back();
  Shape at = both.offset;
  const int64_t rows = volume(both.extent) / row;
  for (int64_t r = 0; r < rows; ++r) {
    std::memcpy(static_cast<char*>(target) + index_in(to, at) * size,
                static_cast<const char*>(source) + index_in(from, at) * size,
                static_cast<size_t>(row * size));
    for (size_t d = dims; d-- > 1;) {  // the next row: the last dim is copied whole
      if (++at[d - 1] < both.offset[d - 1] + both.extent[d - 1]) break;
      at[d - 1] = both.offset[d - 1];
    }
  }
}

CheckpointWriter::CheckpointWriter(std::string root, int64_t step)
    : root_(std::move(root)),
      folder_(root_ + "/" + folder_of(step)),
      partial_(folder_ + ".partial") {}

void CheckpointWriter::prepare() const {
  make_writable_folder(root_);
  fs::remove_all(partial_);
  make_writable_folder(partial_);
}

void CheckpointWriter::write(int rank, const std::vector<Piece>& pieces) const {
  std::vector<TensorBytes> tensors;
  Json table = Json::object();
  for (const Piece& p : pieces) {
    const std::string key = text(p.name, "@", tensors.size());
    tensors.push_back({key, p.dtype, p.slice.extent, p.data});
    table[key] = {{"name", p.name}, {"global", p.global}, {"slice", slice_json(p.slice)}};
  }
  write_safetensors(partial_ + "/" + file_of(rank), tensors, {{kPieces, table.dump()}});
}

void CheckpointWriter::commit(int ranks, const Metadata& state) const {
  Json tensors = Json::object();
  std::map<std::string, int64_t> covered;
  for (int rank = 0; rank < ranks; ++rank) {
    const Safetensors file(partial_ + "/" + file_of(rank));
    const Json table = Json::parse(file.metadata().at(kPieces));
    for (const auto& [key, piece] : table.items()) {
      const auto name = piece.at("name").get<std::string>();
      Json& tensor = tensors[name];
      const std::string dtype(to_string(file.entries().at(key).dtype));
      if (tensor.is_null()) {
        tensor = {{"dtype", dtype}, {"global", piece.at("global")}, {"pieces", Json::array()}};
      }
      KUAFU_CHECK(tensor["global"] == piece.at("global") && tensor["dtype"] == dtype, "tensor ",
                  name, " has two shapes or dtypes among the ranks");
      const Slice mine = slice_of(piece.at("slice"));
      for (const Json& other : tensor["pieces"]) {
        KUAFU_CHECK(is_empty(overlap(mine, slice_of(other.at("slice")))),
                    "two ranks save the same ", "part of ", name);
      }
      tensor["pieces"].push_back(
          {{"file", file_of(rank)}, {"key", key}, {"slice", piece.at("slice")}});
      covered[name] += volume(mine.extent);
    }
  }
  for (const auto& [name, tensor] : tensors.items()) {
    const int64_t whole = volume(tensor.at("global").get<Shape>());
    KUAFU_CHECK(covered[name] == whole, "the ranks save ", covered[name], " of the ", whole,
                " elements of ", name);
  }
  Json strings = Json::object();
  for (const auto& [key, value] : state) strings[key] = value;
  const Json index = {{"kind", "kuafu checkpoint"},
                      {"format", kFormat},
                      {"step", std::stoll(folder_.substr(folder_.rfind('-') + 1))},
                      {"ranks", ranks},
                      {"state", strings},
                      {"tensors", tensors}};
  replace_file(partial_ + "/" + kIndex, index.dump(1) + "\n");
  sync_folder(partial_);
  // Saving a step again puts the old folder aside first: at every moment one of the two counts or
  // the one before does.
  const std::string aside = folder_ + ".old.partial";
  std::error_code error;
  if (fs::exists(folder_)) fs::rename(folder_, aside, error);
  if (!error) fs::rename(partial_, folder_, error);
  if (error) throw ConfigError(text("cannot rename ", partial_, ": ", error.message()));
  fs::remove_all(aside);
  sync_folder(root_);
}

Checkpoint::Checkpoint(const std::string& folder) : folder_(folder) {
  const std::string path = folder + "/" + kIndex;
  if (!fs::exists(path)) {
    throw ConfigError(text(folder, " is no complete checkpoint: it has no ", kIndex));
  }
  try {
    const Json index = Json::parse(read_file(path, "checkpoint index"));
    const auto format = index.at("format").get<int64_t>();
    KUAFU_REQUIRE(format == kFormat, path, " has format ", format, "; this build reads ", kFormat);
    step_ = index.at("step").get<int64_t>();
    for (const auto& [key, value] : index.at("state").items()) {
      state_[key] = value.get<std::string>();
    }
    for (const auto& [name, tensor] : index.at("tensors").items()) {
      tensors_[name] = {dtype_from(tensor.at("dtype").get<std::string>()),
                        tensor.at("global").get<Shape>()};
      for (const Json& piece : tensor.at("pieces")) {
        places_[name].push_back({piece.at("file").get<std::string>(),
                                 piece.at("key").get<std::string>(), slice_of(piece.at("slice"))});
      }
    }
  } catch (const Json::exception& e) {
    throw ConfigError(
        text("checkpoint index ", path, " is damaged (", e.what(), "); use an earlier checkpoint"));
  }
}

const Safetensors& Checkpoint::open(const std::string& file) const {
  std::unique_ptr<Safetensors>& slot = files_[file];
  if (!slot) slot = std::make_unique<Safetensors>(folder_ + "/" + file);
  return *slot;
}

void Checkpoint::read(const std::string& name, const Slice& slice, void* out) const {
  const auto found = tensors_.find(name);
  KUAFU_REQUIRE(found != tensors_.end(), "checkpoint ", folder_, " has no tensor ", name);
  KUAFU_CHECK(slice.extent.size() == found->second.global.size(), name, " has ",
              found->second.global.size(), " dims");
  int64_t filled = 0;
  for (const Place& place : places_.at(name)) {
    const Slice both = overlap(place.slice, slice);
    if (is_empty(both)) continue;
    const std::vector<char> bytes = open(place.file).read(place.key);
    copy_overlap(place.slice, bytes.data(), slice, out, size_of(found->second.dtype));
    filled += volume(both.extent);
  }
  KUAFU_REQUIRE(filled == volume(slice.extent), "checkpoint ", folder_, " holds ", filled,
                " of the ", volume(slice.extent), " elements wanted of ", name);
}

std::optional<std::string> newest_checkpoint(const std::string& root) {
  std::vector<std::string> complete;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(root, error)) {
    const std::string name = entry.path().filename().string();
    const bool is_step = name.rfind("step-", 0) == 0 && entry.path().extension() != ".partial";
    if (is_step && fs::exists(entry.path() / kIndex)) complete.push_back(entry.path().string());
  }
  if (complete.empty()) return {};
  return *std::max_element(complete.begin(), complete.end());
}

}  // namespace kuafu
