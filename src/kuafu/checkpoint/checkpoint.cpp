// SPDX-License-Identifier: Apache-2.0
#include "kuafu/checkpoint/checkpoint.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include "kuafu/base/config.h"
#include "kuafu/base/errors.h"
#include "kuafu/checkpoint/boxes.h"
#include "kuafu/record/json.h"

namespace kuafu {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kFormat = 1;
constexpr const char* kIndex = "index.json";
constexpr const char* kPartial = ".partial";
constexpr const char* kOption = "--checkpoint";
constexpr const char* kPieces = "pieces";      // metadata of a rank's file
constexpr const char* kChecksum = "checksum";  // of the index without this field

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

std::string checksum_of(const Json& index) {
  const std::string content = index.dump();
  return hex(checksum(content.data(), static_cast<int64_t>(content.size())));
}

Json slice_json(const Slice& s) { return {{"offset", s.offset}, {"extent", s.extent}}; }
Slice slice_of(const Json& j) { return {j.at("offset").get<Shape>(), j.at("extent").get<Shape>()}; }

}  // namespace

CheckpointWriter::CheckpointWriter(std::string root, int64_t step)
    : root_(std::move(root)),
      folder_(root_ + "/" + folder_of(step)),
      partial_(folder_ + kPartial) {}

void CheckpointWriter::prepare() const {
  make_writable_folder(root_, kOption);
  std::error_code ignored;  // what a killed run left takes space only
  for (const auto& entry : fs::directory_iterator(root_, ignored)) {
    if (entry.path().extension() == kPartial) fs::remove_all(entry.path(), ignored);
  }
  make_writable_folder(partial_, kOption);
}

void CheckpointWriter::write(int rank, const std::vector<Piece>& pieces, Pace* pace) const {
  std::vector<TensorBytes> tensors;
  Json table = Json::object();
  for (const Piece& p : pieces) {
    const std::string key = text(p.name, "@", tensors.size());
    tensors.push_back({key, p.dtype, p.slice.extent, p.data});
    table[key] = {{"name", p.name}, {"global", p.global}, {"slice", slice_json(p.slice)}};
  }
  write_safetensors(partial_ + "/" + file_of(rank), tensors, {{kPieces, table.dump()}}, pace);
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
      tensor["pieces"].push_back({{"file", file_of(rank)},
                                  {"key", key},
                                  {"slice", piece.at("slice")},
                                  {"checksum", file.checksum_of(key)}});
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
  Json index = {{"kind", "kuafu checkpoint"},
                {"format", kFormat},
                {"step", std::stoll(folder_.substr(folder_.rfind('-') + 1))},
                {"ranks", ranks},
                {"state", strings},
                {"tensors", tensors}};
  index[kChecksum] = checksum_of(index);
  replace_file(partial_ + "/" + kIndex, index.dump(1) + "\n");
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
  const std::string path = folder + "/" + kIndex;
  if (!fs::exists(path)) {
    throw ConfigError(text(folder, " is no complete checkpoint: it has no ", kIndex));
  }
  try {
    Json index = Json::parse(read_file(path, "checkpoint index"));
    const auto format = index.at("format").get<int64_t>();
    KUAFU_REQUIRE(format == kFormat, path, " has format ", format, "; this build reads ", kFormat);
    const auto sum = index.at(kChecksum).get<std::string>();
    index.erase(kChecksum);
    KUAFU_REQUIRE(
        sum == checksum_of(index), "checkpoint index ", path,
        " is damaged: its content does not match its checksum; use an earlier checkpoint");
    step_ = index.at("step").get<int64_t>();
    for (const auto& [key, value] : index.at("state").items()) {
      state_[key] = value.get<std::string>();
    }
    for (const auto& [name, tensor] : index.at("tensors").items()) {
      tensors_[name] = {dtype_from(tensor.at("dtype").get<std::string>()),
                        tensor.at("global").get<Shape>()};
      for (const Json& piece : tensor.at("pieces")) {
        places_[name].push_back(
            {piece.at("file").get<std::string>(), piece.at("key").get<std::string>(),
             piece.at("checksum").get<std::string>(), slice_of(piece.at("slice"))});
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

const std::vector<char>& Checkpoint::bytes_of(const Place& place) const {
  if (last_.file != place.file || last_.key != place.key) {
    const Safetensors& file = open(place.file);
    last_.bytes = file.read(place.key);
    KUAFU_REQUIRE(file.checksum_of(place.key) == place.checksum, "checkpoint file ", file.path(),
                  " is damaged: the bytes of ", place.key,
                  " are not those that its index lists; use an earlier checkpoint");
    last_.file = place.file;
    last_.key = place.key;
  }
  return last_.bytes;
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
    copy_overlap(place.slice, bytes_of(place).data(), slice, out, size_of(found->second.dtype));
    filled += volume(both.extent);
  }
  KUAFU_REQUIRE(filled == volume(slice.extent), "checkpoint ", folder_, " holds ", filled,
                " of the ", volume(slice.extent), " elements wanted of ", name);
}

std::vector<std::string> complete_checkpoints(const std::string& root) {
  std::vector<std::string> complete;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(root, error)) {
    const std::string name = entry.path().filename().string();
    const bool is_step = name.rfind("step-", 0) == 0 && entry.path().extension() != kPartial;
    if (is_step && fs::exists(entry.path() / kIndex)) complete.push_back(entry.path().string());
  }
  std::sort(complete.rbegin(), complete.rend());
  return complete;
}

std::optional<std::string> newest_checkpoint(const std::string& root) {
  const std::vector<std::string> complete = complete_checkpoints(root);
  return complete.empty() ? std::nullopt : std::optional(complete.front());
}

void remove_checkpoints(const std::string& root, int64_t keep) {
  const std::vector<std::string> complete = complete_checkpoints(root);
  for (auto i = static_cast<size_t>(keep); i < complete.size(); ++i) {
    // First the name: what is cut off in the middle must not look complete.
    std::error_code error;
    const std::string aside = complete[i] + kPartial;
    fs::rename(complete[i], aside, error);
    if (!error) fs::remove_all(aside, error);
  }
}

}  // namespace kuafu
