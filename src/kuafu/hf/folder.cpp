// SPDX-License-Identifier: Apache-2.0
#include "kuafu/hf/folder.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <iterator>
#include <set>

#include "kuafu/base/config.h"
#include "kuafu/base/errors.h"
#include "kuafu/base/suggest.h"
#include "kuafu/base/utf8.h"
#include "kuafu/checkpoint/boxes.h"
#include "kuafu/checkpoint/weights.h"
#include "kuafu/record/files.h"
#include "kuafu/record/json_text.h"

namespace kuafu::hf {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConfig = "config.json";
constexpr const char* kOneFile = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

/// What stands before every name of a model with a head, and may be left out by one without.
const char* prefix_of(Family family) {
  switch (family) {
    case Family::kGpt2:
      return "transformer.";
    case Family::kOpt:
    case Family::kLlama:
      return "model.";
    case Family::kBert:
      return "bert.";
    case Family::kVit:
      return "vit.";
  }
  return "";
}

void replace_end(std::string& name, const std::string& end, const std::string& by) {
  if (name.ends_with(end)) name.replace(name.size() - end.size(), end.size(), by);
}

/// The name that the mapping has for one that stands in a file: with its prefix, and a norm of an
/// early BERT by its later names.
std::string canonical(Family family, const std::string& name, const std::set<std::string>& known) {
  std::string out = name;
  if (family == Family::kBert) {
    replace_end(out, ".LayerNorm.gamma", ".LayerNorm.weight");
    replace_end(out, ".LayerNorm.beta", ".LayerNorm.bias");
  }
  const std::string prefixed = prefix_of(family) + out;
  return !known.contains(out) && known.contains(prefixed) ? prefixed : out;
}

/// Files of an index, each once, in order.
std::vector<std::string> files_of_index(const std::string& path) {
  const Json index = read_object(path, "index of weights");
  const bool has_map = index.contains("weight_map") && index["weight_map"].is_object() &&
                       !index["weight_map"].empty();
  KUAFU_REQUIRE(has_map, path, " has no weight_map, an object of files by tensor");
  std::set<std::string> files;
  for (const auto& [name, file] : index["weight_map"].items()) {
    const bool is_plain = file.is_string() && !file.get<std::string>().empty() &&
                          file.get<std::string>().find('/') == std::string::npos &&
                          file.get<std::string>().ends_with(".safetensors");
    KUAFU_REQUIRE(is_plain, path, ": the file of ", as_utf8(name), " is ", json_excerpt(file),
                  "; allowed: the name of a .safetensors file in this folder");
    files.insert(file.get<std::string>());
  }
  return {files.begin(), files.end()};
}

}  // namespace

Folder::Folder(const std::string& path) : path_(path) {
  std::error_code error;
  KUAFU_REQUIRE(fs::is_directory(path, error), path,
                " is no folder; give one with config.json and model.safetensors, as "
                "save_pretrained() of transformers writes it");
  config_ = read_config(path + "/" + kConfig);
  tensors_ = mapping(config_.family, config_.model);
  const std::string one = path + "/" + kOneFile, index = path + "/" + kIndex;
  const bool is_sharded = fs::exists(index, error);
  KUAFU_REQUIRE(is_sharded || fs::exists(one, error), path, " has neither ", kOneFile, " nor ",
                kIndex,
                "; weights in other formats (pytorch_model.bin) are not read: "
                "save_pretrained(..., safe_serialization=True) writes these");
  KUAFU_REQUIRE(!is_sharded || !fs::exists(one, error), path, " has both ", kOneFile, " and ",
                kIndex, ", and they may be of two models; remove one");
  if (is_sharded) {
    for (const std::string& file : files_of_index(index)) {
      KUAFU_REQUIRE(fs::exists(path + "/" + file, error), index, " names ", file,
                    ", which is not in this folder");
      open(path + "/" + file);
    }
  } else {
    open(one);
  }
  match();
}

void Folder::open(const std::string& path) {
  // In the cache of downloads every file is a link.
  std::error_code error;
  const std::string own = fs::is_symlink(path, error) ? fs::canonical(path, error).string() : path;
  files_.push_back(
      std::make_unique<Safetensors>(own.empty() ? path : own, SafetensorsKind::kPlain));
}

void Folder::match() {
  std::map<std::string, const Mapped*> wanted;
  for (const Mapped& ours : tensors_) {
    for (const TheirColumns& part : ours.parts) wanted.emplace(part.name, &ours);
  }
  std::set<std::string> known;
  for (const auto& [name, ours] : wanted) known.insert(name);
  const std::vector<std::string> names(known.begin(), known.end());
  for (const auto& file : files_) {
    for (const auto& [name, entry] : file->entries()) {
      const std::string own = canonical(config_.family, name, known);
      if (!known.contains(own)) {
        const bool is_over =
            is_passed_over(config_.family, config_.model, own) ||
            is_passed_over(config_.family, config_.model, prefix_of(config_.family) + own);
        KUAFU_REQUIRE(is_over, file->path(), ": tensor ", in_quotes(as_utf8(name)),
                      " is none of the family ", in_quotes(name_of(config_.family)),
                      " by this config.json; nearest: ", nearest(as_utf8(own), names));
        continue;
      }
      const auto [there, is_new] = theirs_.try_emplace(own, Theirs{file.get(), name});
      KUAFU_REQUIRE(is_new, file->path(), ": tensor ", name, " is there twice, as ",
                    there->second.name, " in ", there->second.file->path(), " too");
      const Mapped& ours = *wanted.at(own);
      KUAFU_REQUIRE(entry.shape == ours.theirs, file->path(), ": tensor ", name, " is ",
                    to_string(entry.shape), ", by config.json it is ", to_string(ours.theirs));
      if (theirs_.size() == 1) type_ = entry.dtype;
      KUAFU_REQUIRE(entry.dtype == type_, file->path(), ": tensor ", name, " is ",
                    to_string(entry.dtype), ", others are ", to_string(type_),
                    "; weights of one type are read");
    }
  }
  leave_heads_out();
  for (const std::string& name : names) {
    const bool is_left_out = std::ranges::any_of(
        absent_, [&](const Mapped& ours) { return ours.parts[0].name == name; });
    KUAFU_REQUIRE(is_left_out || theirs_.contains(name), path_, " has no tensor ", name,
                  ", which the family ", in_quotes(name_of(config_.family)),
                  " by this config.json has, of ", to_string(wanted.at(name)->theirs));
  }
  std::erase_if(tensors_, [&](const Mapped& ours) {
    return std::ranges::count(absent_, ours.name, &Mapped::name) > 0;
  });
  const bool is_float =
      type_ == DType::kF64 || type_ == DType::kF32 || type_ == DType::kBF16 || type_ == DType::kF16;
  KUAFU_REQUIRE(is_float, path_, ": its weights are ", to_string(type_),
                "; allowed: f64, f32, bf16, f16");
}

// A part of a head is there or not as a whole: hidden tokens, the first token's width, next sentence.
void Folder::leave_heads_out() {
  if (config_.family != Family::kBert) return;
  for (const char* part : {"cls.predictions.", "bert.pooler.", "cls.seq_relationship."}) {
    const auto is_of_part = [&](const Mapped& ours) {
      return ours.parts[0].name.starts_with(part);
    };
    const bool is_there = std::ranges::any_of(
        theirs_, [&](const auto& theirs) { return theirs.first.starts_with(part); });
    if (is_there) continue;
    std::ranges::copy_if(tensors_, std::back_inserter(absent_), is_of_part);
  }
  std::ranges::sort(absent_, {}, &Mapped::name);
}

void Folder::read(const Mapped& tensor, const Slice& box, char* ours) const {
  const int64_t row_bytes = volume(tensor.theirs) / tensor.their_rows() * size_of(type_);
  for (size_t i = 0; i < tensor.parts.size();) {
    const std::string& name = tensor.parts[i].name;
    size_t end = i;  // parts that lie in one tensor of theirs are taken from it together
    while (end < tensor.parts.size() && tensor.parts[end].name == name) ++end;
    const Theirs& from = theirs_.at(name);
    int64_t row = 0;
    from.file->read_rows(from.name, [&](std::span<const char> bytes, int64_t first) {
      require_finite(*from.file, from.name, bytes, first);
      const int64_t count = static_cast<int64_t>(bytes.size()) / row_bytes;
      for (size_t part = i; part < end; ++part) {
        gather(tensor, part, size_of(type_), {bytes.data(), row, count}, box, ours);
      }
      row += count;
    });
    i = end;
  }
}

namespace {

/// A tensor of theirs and the parts of ours that fill it.
struct Filled {
  std::string name;
  Shape shape;
  std::vector<std::pair<const Mapped*, size_t>> from;  ///< tensor of ours, number of the part
};

/// In the order of ours, so that each of ours is read once.
std::vector<Filled> filled(const std::vector<Mapped>& tensors) {
  std::vector<Filled> all;
  for (const Mapped& ours : tensors) {
    const size_t own = all.size();
    for (size_t i = 0; i < ours.parts.size(); ++i) {
      const auto there =
          std::find_if(all.begin() + static_cast<std::ptrdiff_t>(own), all.end(),
                       [&](const Filled& f) { return f.name == ours.parts[i].name; });
      Filled& to = there == all.end()
                       ? all.emplace_back(Filled{ours.parts[i].name, ours.theirs, {}})
                       : *there;
      to.from.emplace_back(&ours, i);
    }
  }
  return all;
}

/// Which files there are, and the tensors of each.
std::vector<std::vector<TensorBytes>> shards_of(const std::vector<Filled>& all, DType type,
                                                int64_t most) {
  std::vector<std::vector<TensorBytes>> shards(1);
  int64_t in_shard = 0;
  for (const Filled& f : all) {
    const TensorBytes t{f.name, type, f.shape, nullptr};
    if (in_shard > 0 && in_shard + t.bytes() > most) {
      shards.emplace_back();
      in_shard = 0;
    }
    shards.back().push_back(t);
    in_shard += t.bytes();
  }
  return shards;
}

using ReadOurs = std::function<std::vector<char>(const Mapped&)>;

/// The weights into a folder, and where each lies: {"total_size": bytes, "weight_map": {...}}.
Json write_shards(const std::string& folder, const std::vector<Filled>& all, DType type,
                  int64_t most, const ReadOurs& read) {
  const std::vector<std::vector<TensorBytes>> shards = shards_of(all, type, most);
  Json map = Json::object();
  const Mapped* last = nullptr;
  std::vector<char> ours;
  size_t next = 0;
  int64_t bytes = 0;
  for (size_t s = 0; s < shards.size(); ++s) {
    char name[64];
    std::snprintf(name, sizeof(name), "model-%05zu-of-%05zu.safetensors", s + 1, shards.size());
    const std::string file = shards.size() == 1 ? kOneFile : name;
    SafetensorsWriter writer(folder + "/" + file, shards[s], {{"format", "pt"}});
    for (const TensorBytes& t : shards[s]) {
      const Filled& f = all[next++];
      map[f.name] = file;
      bytes += t.bytes();
      std::vector<char> theirs;
      for (const auto& [from, part] : f.from) {
        if (from != last) {
          ours = {};
          ours = read(*from);
        }
        last = from;
        theirs.resize(static_cast<size_t>(t.bytes()));  // after reading, which needs room too
        scatter(*from, part, size_of(type), ours.data(), theirs.data());
      }
      writer.add(theirs.data());
    }
    writer.finish();
  }
  if (shards.size() == 1) return nullptr;
  return {{"metadata", {{"total_size", bytes}}}, {"weight_map", map}};
}

/// True for nothing, and for what an export that was ended has left.
bool is_left_over(const std::string& partial) {
  std::error_code error;
  if (!fs::exists(fs::symlink_status(partial, error))) return true;
  if (!fs::is_directory(fs::symlink_status(partial, error))) return false;
  for (const auto& entry : fs::directory_iterator(partial, error)) {
    const std::string name = entry.path().filename().string();
    if (name != kConfig && !name.starts_with("model")) return false;
  }
  return true;
}

}  // namespace

void write_folder(const std::string& path, Family family, const ModelPlan& model, DType type,
                  const ReadOurs& read, int64_t shard_bytes) {
  const std::vector<Mapped> tensors = mapping(family, model);
  const std::vector<Filled> all = filled(tensors);
  const std::string partial = path + ".partial";
  std::error_code error;
  KUAFU_REQUIRE(is_left_over(partial), "--out: ", partial,
                " is where the folder is made, and there is one that no export has left; move it "
                "away, or choose another name");
  fs::remove_all(partial, error);
  make_writable_folder(partial, "--out");
  try {
    const Json index = write_shards(partial, all, type, shard_bytes, read);
    if (!index.is_null()) replace_file(partial + "/" + kIndex, json_document(index));
    replace_file(partial + "/" + kConfig, json_document(config_json(family, model, type)));
    sync_folder(partial);
    fs::rename(partial, path);
  } catch (...) {
    fs::remove_all(partial, error);
    throw;
  }
}

}  // namespace kuafu::hf
