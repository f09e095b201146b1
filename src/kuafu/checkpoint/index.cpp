// SPDX-License-Identifier: Apache-2.0
#include "kuafu/checkpoint/index.h"

#include <algorithm>
#include <cstdio>
#include <limits>
#include <optional>

#include "kuafu/base/errors.h"
#include "kuafu/base/suggest.h"
#include "kuafu/record/json_text.h"

namespace kuafu {
namespace {

constexpr int64_t kFormat = 2;  // 1 had no checksum of a rank file's header
constexpr const char* kKind = "kuafu checkpoint";
constexpr const char* kChecksum = "checksum";  // of the index without this field
constexpr size_t kMostDims = 8;
constexpr int64_t kMostRanks = 1 << 20;
constexpr int64_t kMostInt = std::numeric_limits<int64_t>::max();

std::string checksum_of(const Json& index) {
  const std::string content = json_line(index);
  return hex(checksum(content.data(), static_cast<int64_t>(content.size())));
}

Json slice_json(const Slice& s) { return {{"offset", s.offset}, {"extent", s.extent}}; }

/// A value of the index and its name in messages: "tensors.w.pieces.1.slice".
class Field {
 public:
  Field(const std::string& path, std::string name, const Json& value)
      : path_(path), name_(std::move(name)), value_(value) {}

  const Json& json() const { return value_; }

  template <class... Args>
  void require(bool condition, const Args&... why) const {
    KUAFU_REQUIRE(condition, path_, ": ", name_, why..., "; use an earlier checkpoint");
  }
  void expect(bool condition, const std::string& allowed) const {
    require(condition, ": expected ", allowed, ", found ", json_excerpt(value_));
  }

  Field at(const std::string& key) const {
    expect(value_.is_object(), "an object");
    const std::string inner = name_.empty() ? key : name_ + "." + key;
    const auto found = value_.find(key);
    KUAFU_REQUIRE(found != value_.end(), path_, ": ", inner,
                  " is missing; use an earlier checkpoint");
    return {path_, inner, *found};
  }
  /// Of an object or a list.
  std::vector<std::pair<std::string, Field>> entries() const {
    std::vector<std::pair<std::string, Field>> all;
    for (const auto& [key, value] : value_.items()) {
      all.emplace_back(key, Field(path_, name_ + "." + key, value));
    }
    return all;
  }

  std::string string() const {
    expect(value_.is_string(), "text");
    return value_.get<std::string>();
  }
  int64_t whole(int64_t least, int64_t most) const {
    const std::optional<int64_t> number = whole_number(value_);
    expect(number && *number >= least && *number <= most,
           most == kMostInt ? text("a whole number from ", least)
                            : text("a whole number from ", least, " to ", most));
    return *number;
  }
  /// Whole numbers from `least`, one a dim.
  Shape shape(int64_t least) const {
    expect(value_.is_array() && value_.size() <= kMostDims,
           text("a list of at most ", kMostDims, " whole numbers"));
    Shape shape;
    for (const auto& [at, number] : entries()) shape.push_back(number.whole(least, kMostInt));
    return shape;
  }

 private:
  const std::string& path_;
  std::string name_;
  const Json& value_;
};

DType dtype_of(const Field& field) {
  const std::string name = field.string();
  try {
    return dtype_from(name);
  } catch (const ConfigError& e) {
    field.require(false, ": ", e.what());
    throw;
  }
}

Shape global_of(const Field& field, DType dtype) {
  Shape global = field.shape(1);
  int64_t bytes = size_of(dtype);
  for (const int64_t extent : global) {
    field.require(!__builtin_mul_overflow(bytes, extent, &bytes), " = ", to_string(global),
                  ": its elements overflow 64 bits");
  }
  return global;
}

Slice slice_of(const Field& field, const Shape& global) {
  const Slice s{field.at("offset").shape(0), field.at("extent").shape(1)};
  field.require(s.offset.size() == global.size() && s.extent.size() == global.size(), " has ",
                s.offset.size(), " offsets and ", s.extent.size(), " extents, its tensor has ",
                global.size(), " dims");
  for (size_t d = 0; d < global.size(); ++d) {
    field.require(s.extent[d] <= global[d] && s.offset[d] <= global[d] - s.extent[d], ": offset ",
                  to_string(s.offset), " with extent ", to_string(s.extent),
                  " does not lie in the tensor's ", to_string(global));
  }
  return s;
}

PlacedPiece piece_of(const Field& field, const Shape& global, int ranks) {
  PlacedPiece piece;
  const Field file = field.at("file");
  const std::string name = file.string();
  // Only these names: no path, no other file of the folder.
  for (const char c : name) {
    if (c >= '0' && c <= '9') piece.rank = std::min(piece.rank, ranks) * 10 + (c - '0');
  }
  file.expect(piece.rank < ranks && name == rank_file(piece.rank),
              text(in_quotes(rank_file(0)), " to ", in_quotes(rank_file(ranks - 1))));
  piece.key = field.at("key").string();
  const Field sum = field.at("checksum");
  piece.checksum = sum.string();
  const bool is_hex = std::all_of(piece.checksum.begin(), piece.checksum.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
  });
  sum.expect(is_hex && piece.checksum.size() == 16, "16 hex digits");
  piece.slice = slice_of(field.at("slice"), global);
  return piece;
}

IndexedTensor tensor_of(const Field& field, int ranks) {
  IndexedTensor tensor;
  tensor.dtype = dtype_of(field.at("dtype"));
  tensor.global = global_of(field.at("global"), tensor.dtype);
  const Field pieces = field.at("pieces");
  pieces.expect(pieces.json().is_array(), "a list of pieces");
  pieces.require(!pieces.json().empty(), ": the tensor has no piece");
  for (const auto& [at, piece] : pieces.entries()) {
    tensor.pieces.push_back(piece_of(piece, tensor.global, ranks));
  }
  const std::string problem = cover_problem(tensor);
  field.require(problem.empty(), ": ", problem);
  return tensor;
}

CheckpointIndex index_of(const Field& root) {
  CheckpointIndex index;
  root.at("kind").expect(root.at("kind").json() == kKind, in_quotes(kKind));
  index.step = root.at("step").whole(0, kMostInt);
  index.ranks = static_cast<int>(root.at("ranks").whole(1, kMostRanks));
  const Field state = root.at("state");
  state.expect(state.json().is_object(), "an object of texts");
  for (const auto& [key, value] : state.entries()) index.state[key] = value.string();
  const Field tensors = root.at("tensors");
  tensors.expect(tensors.json().is_object(), "an object of tensors");
  for (const auto& [name, tensor] : tensors.entries()) {
    index.tensors[name] = tensor_of(tensor, index.ranks);
  }
  return index;
}

}  // namespace

std::string rank_file(int rank) {
  char name[32];
  std::snprintf(name, sizeof(name), "rank-%05d.safetensors", rank);
  return name;
}

std::string step_folder(int64_t step) {
  char name[32];
  std::snprintf(name, sizeof(name), "step-%08lld", static_cast<long long>(step));
  return name;
}

std::string to_text(const CheckpointIndex& index) {
  Json state = Json::object(), tensors = Json::object();
  for (const auto& [key, value] : index.state) state[key] = value;
  for (const auto& [name, tensor] : index.tensors) {
    Json pieces = Json::array();
    for (const PlacedPiece& p : tensor.pieces) {
      pieces.push_back({{"file", rank_file(p.rank)},
                        {"key", p.key},
                        {"slice", slice_json(p.slice)},
                        {"checksum", p.checksum}});
    }
    tensors[name] = {{"dtype", std::string(to_string(tensor.dtype))},
                     {"global", tensor.global},
                     {"pieces", pieces}};
  }
  Json all = {{"kind", kKind},        {"format", kFormat}, {"step", index.step},
              {"ranks", index.ranks}, {"state", state},    {"tensors", tensors}};
  all[kChecksum] = checksum_of(all);
  return json_document(all);
}

CheckpointIndex parse_index(std::string_view bytes, const std::string& path) {
  Json index;
  try {
    index = parse_json(bytes);
  } catch (const ConfigError& e) {
    throw ConfigError(
        text("checkpoint index ", path, " is damaged: ", e.what(), "; use an earlier checkpoint"));
  }
  const std::string repeated = repeated_key(bytes);
  KUAFU_REQUIRE(repeated.empty(), "checkpoint index ", path, " is damaged: it has ",
                in_quotes(repeated), " twice; use an earlier checkpoint");
  const Field root(path, "", index);
  const Field format = root.at("format");
  KUAFU_REQUIRE(format.json() == kFormat, path, " has format ", json_excerpt(format.json()),
                "; this build reads ", kFormat,
                ": go on with the build that saved it, or begin anew in another folder");
  const std::string sum = root.at(kChecksum).string();
  Json content = index;
  content.erase(kChecksum);
  KUAFU_REQUIRE(sum == checksum_of(content), "checkpoint index ", path,
                " is damaged: its content does not match its checksum; use an earlier checkpoint");
  return index_of(root);
}

// The sum of the pieces' indicator functions is that of the tensor exactly where their mixed
// derivatives are the same, and the derivative of a box is +1 or -1 at each of its corners. So n
// boxes of d dims are compared by n 2^d corners, not by n^2 pairs. At the first corner (row-major)
// that is left, everything before is covered once: a positive one begins an overlap, a negative one
// a gap.
std::string cover_problem(const IndexedTensor& tensor) {
  const size_t dims = tensor.global.size();
  std::map<Shape, int64_t> corners;
  const auto add = [&](const Slice& box, int64_t sign) {
    for (size_t corner = 0; corner < size_t{1} << dims; ++corner) {
      Shape at = box.offset;
      int64_t value = sign;
      for (size_t d = 0; d < dims; ++d) {
        if ((corner >> d & 1) == 0) continue;
        at[d] += box.extent[d];
        value = -value;
      }
      if ((corners[at] += value) == 0) corners.erase(at);
    }
  };
  for (const PlacedPiece& piece : tensor.pieces) add(piece.slice, 1);
  add({Shape(dims, 0), tensor.global}, -1);
  if (corners.empty()) return "";
  const auto& [at, value] = *corners.begin();
  return text("the pieces ", value > 0 ? "overlap" : "leave a gap", " from ", to_string(at),
              " on; they must hold every element of its ", to_string(tensor.global), " once");
}

}  // namespace kuafu
