// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <span>

#include "kuafu/base/errors.h"
#include "kuafu/checkpoint/boxes.h"
#include "kuafu/checkpoint/checkpoint.h"
#include "kuafu/record/json_text.h"
#include "tests/fuzz/targets.h"
#include "tests/record/support.h"

namespace kuafu::fuzz {
namespace {

using test::TemporaryFolder;
using test::write_text;

constexpr int64_t kMostElements = 1 << 16;  // of a tensor that is walked element by element

/// A checkpoint of two ranks with tensors of 0 to 3 dims; no two pieces have the same bytes.
std::string save_sample(const std::string& root, int64_t step) {
  std::vector<int64_t> data(64);
  std::iota(data.begin(), data.end(), 0);
  const CheckpointWriter writer(root, step);
  writer.prepare();
  writer.write(0, {{"w", DType::kI64, {4, 6}, {{0, 0}, {2, 6}}, data.data()},
                   {"w", DType::kI64, {4, 6}, {{2, 0}, {2, 2}}, data.data() + 12},
                   {"v", DType::kF32, {5}, {{0}, {5}}, data.data()}});
  writer.write(1, {{"w", DType::kI64, {4, 6}, {{2, 2}, {2, 4}}, data.data() + 16},
                   {"scale", DType::kF64, {}, {}, data.data()},
                   {"c", DType::kBF16, {2, 3, 2}, {{0, 0, 0}, {2, 3, 2}}, data.data()}});
  writer.commit(2, {{"optimizer_steps", "7"}, {"loss_scale", "65536.0"}, {"plan", "[model]\n"}});
  return root + "/" + step_folder(step);
}

/// Every field of `value` stands in `given` with the same value, in any order.
bool is_within(const Json& value, const Json& given) {
  if (value.is_array()) {
    return given.is_array() &&
           std::equal(value.begin(), value.end(), given.begin(), given.end(), is_within);
  }
  if (!value.is_object()) return value == given;
  for (const auto& [key, inner] : value.items()) {
    if (!given.is_object() || !given.contains(key) || !is_within(inner, given[key])) return false;
  }
  return true;
}

/// Counts how often the pieces hold each element, by walking all of them.
void check_cover(const std::string& name, const IndexedTensor& tensor) {
  const int64_t n = volume(tensor.global);
  if (n > kMostElements) return;
  const Slice whole{Shape(tensor.global.size(), 0), tensor.global};
  std::vector<unsigned char> held(static_cast<size_t>(n), 0);
  int64_t elements = 0;
  for (const PlacedPiece& piece : tensor.pieces) {
    const std::vector<unsigned char> ones(static_cast<size_t>(volume(piece.slice.extent)), 1);
    copy_overlap(piece.slice, ones.data(), whole, held.data(), 1);
    elements += volume(piece.slice.extent);
  }
  require(elements == n && std::accumulate(held.begin(), held.end(), int64_t{0}) == n,
          "the pieces of " + name + " do not hold every element once");
}

struct Header {
  Json json;
  size_t end = 0;
};

/// The header of a safetensors file; null where there is none.
Header header_of(const std::string& bytes) {
  uint64_t length = 0;
  if (bytes.size() < 8) return {};
  std::memcpy(&length, bytes.data(), 8);
  if (length > bytes.size() - 8) return {};
  const size_t end = 8 + static_cast<size_t>(length);
  try {
    return {parse_json(std::string_view(bytes).substr(8, end - 8)), end};
  } catch (const ConfigError&) {
    return {};
  }
}

/// The types by their names in headers, not by those of the reader.
const std::map<std::string, DType> kTypes = {
    {"F64", DType::kF64}, {"F32", DType::kF32}, {"BF16", DType::kBF16}, {"F16", DType::kF16},
    {"I64", DType::kI64}, {"I32", DType::kI32}, {"U8", DType::kU8}};

/// The bytes of a tensor in its place in a file.
std::string_view in_place(std::string_view bytes, const Header& header, const std::string& name) {
  const Json& offsets = header.json.at(name).at("data_offsets");
  const size_t begin = offsets.at(0).get<size_t>(), end = offsets.at(1).get<size_t>();
  return bytes.substr(header.end + begin, end - begin);
}

/// All that a file hands out is what its header and its bytes say: metadata, and of each tensor type,
/// shape, place and bytes.
void check_file(const Safetensors& file, const std::string& bytes) {
  Header header = header_of(bytes);
  Json strings = header.json.value("__metadata__", Json::object());
  strings.erase("header_checksum");
  require(file.metadata() == strings.get<Metadata>(),
          "the metadata are not those that are written");
  header.json.erase("__metadata__");
  require(file.entries().size() == header.json.size(), "a tensor too many or too few");
  for (const auto& [name, e] : file.entries()) {
    const Json& row = header.json.at(name);
    const auto type = kTypes.find(row.at("dtype").get<std::string>());
    require(type != kTypes.end() && e.dtype == type->second, "a type is not the one written");
    require(row.at("shape") == Json(e.shape) && row.at("data_offsets") == Json({e.begin, e.end}),
            "a shape or a place is not the one written");
    const std::vector<char> data = file.read(name);
    require(in_place(bytes, header, name) == std::string_view(data.data(), data.size()) &&
                static_cast<int64_t>(data.size()) == volume(e.shape) * size_of(e.dtype),
            "the bytes of a tensor are not those in its place");
    std::vector<char> by_rows;
    file.read_rows(name, [&](std::span<const char> rows, int64_t first) {
      require(first == 0 || first * std::ssize(data) == std::ssize(by_rows) * e.shape[0],
              "rows of a tensor come in another order");
      by_rows.insert(by_rows.end(), rows.begin(), rows.end());
    });
    require(by_rows == data, "the rows of a tensor are not its bytes");
  }
}

/// A tensor put together of the bytes of its pieces' files, element by element, as the index says.
std::string assembled(const std::string& folder, const Json& tensor, int64_t element_bytes) {
  const auto global = tensor["global"].get<Shape>();
  const auto bytes = static_cast<size_t>(element_bytes);
  std::string all(static_cast<size_t>(volume(global)) * bytes, '\0');
  for (const Json& piece : tensor["pieces"]) {
    const std::string file = test::read_text(folder + "/" + piece["file"].get<std::string>());
    const std::string_view data = in_place(file, header_of(file), piece["key"].get<std::string>());
    const auto offset = piece["slice"]["offset"].get<Shape>();
    const auto extent = piece["slice"]["extent"].get<Shape>();
    for (int64_t i = 0; i < volume(extent); ++i) {
      int64_t left = i, to = 0, stride = 1;
      for (size_t d = global.size(); d-- > 0; left /= extent[d], stride *= global[d]) {
        to += (offset[d] + left % extent[d]) * stride;
      }
      all.replace(static_cast<size_t>(to) * bytes, bytes,
                  data.substr(static_cast<size_t>(i) * bytes, bytes));
    }
  }
  return all;
}

/// Puts the bytes in the place of the index and reads everything through it.
void read_checkpoint(const std::string& folder, const std::string& bytes) {
  write_text(folder + "/" + kIndexFile, bytes);
  const Checkpoint saved(folder);
  const CheckpointIndex index = parse_index(bytes, "index.json");
  require(parse_index(to_text(index), "printed") == index,
          "the index changes when it is printed and read again");
  require(saved.step() == index.step && saved.state() == index.state &&
              saved.tensors() == index.tensors,
          "the checkpoint has another index");
  Json printed = Json::parse(to_text(index));
  printed.erase("checksum");
  const Json written = Json::parse(bytes);
  require(is_within(printed, written), "a value is not the one that is written");
  for (const auto& [name, tensor] : saved.tensors()) check_cover(name, tensor);
  const auto state = [&](const char* key) { return written["state"][key].get<std::string>(); };
  require(saved.state_count("optimizer_steps") == std::stoll(state("optimizer_steps")) &&
              saved.state_number("loss_scale") == std::stod(state("loss_scale")),
          "a number of the state is not the one written");
  for (const auto& [name, tensor] : saved.tensors()) {
    if (volume(tensor.global) > kMostElements) continue;
    const Slice whole{Shape(tensor.global.size(), 0), tensor.global};
    std::string out(static_cast<size_t>(volume(tensor.global) * size_of(tensor.dtype)), '\0');
    saved.read(name, whole, out.data());
    require(out == assembled(folder, written["tensors"][name], size_of(tensor.dtype)),
            "the elements of a tensor are not those of its pieces");
  }
}

/// The index with a checksum that fits its content; as it is where it is no JSON.
std::string resealed_index(const std::string& bytes) {
  Json index;
  try {
    index = parse_json(bytes);
  } catch (const ConfigError&) {
    return bytes;
  }
  if (!index.is_object()) return bytes;
  index.erase("checksum");
  const std::string content = json_line(index);
  index["checksum"] = hex(checksum(content.data(), static_cast<int64_t>(content.size())));
  return json_document(index);
}

std::string resealed_file(const std::string& bytes) {
  Header header = header_of(bytes);
  if (!header.json.is_object()) return bytes;
  Json& strings = header.json["__metadata__"];
  if (!strings.is_object()) strings = Json::object();
  strings.erase("header_checksum");
  const std::string content = json_line(header.json);
  strings["header_checksum"] = hex(checksum(content.data(), static_cast<int64_t>(content.size())));
  const std::string head = json_line(header.json);
  std::string prefix(8, '\0');
  const uint64_t length = head.size();
  std::memcpy(prefix.data(), &length, 8);
  return prefix + head + bytes.substr(header.end);
}

/// All that a file says, as text.
std::string content_of(const std::string& path) {
  const Safetensors file(path);
  std::string all;
  for (const auto& [key, value] : file.metadata()) all += text(key, "=", value, "\n");
  for (const auto& [name, e] : file.entries()) {
    const std::vector<char> bytes = file.read(name);
    require(static_cast<int64_t>(bytes.size()) == volume(e.shape) * size_of(e.dtype),
            "a tensor of another size than its shape");
    all += text(name, ":", to_string(e.dtype), to_string(e.shape), e.begin, "\n",
                std::string(bytes.data(), bytes.size()));
  }
  return all;
}

}  // namespace

Target index_target(bool is_resealed) {
  const auto root = std::make_shared<TemporaryFolder>();
  const std::string folder = save_sample(root->path(), 7);
  const std::string other = save_sample(root->path(), 8);
  const std::vector<std::string> valid = {test::read_text(folder + "/" + kIndexFile),
                                          test::read_text(other + "/" + kIndexFile)};
  if (is_resealed) {
    return {"index-resealed", {valid[0]}, [root, folder](const std::string& bytes) {
              read_checkpoint(folder, resealed_index(bytes));
            }};
  }
  return {"index", valid, [root, valid](const std::string& bytes) {
            const CheckpointIndex index = parse_index(bytes, "index.json");
            for (const std::string& one : valid) {
              if (index == parse_index(one, "valid")) return;
            }
            throw Finding("a changed index passes its checksum");
          }};
}

Target safetensors_target(bool is_resealed) {
  const auto root = std::make_shared<TemporaryFolder>();
  const std::string folder = save_sample(root->path(), 7), path = *root / "file";
  std::vector<std::string> valid, contents;
  for (int rank = 0; rank < 2; ++rank) {
    valid.push_back(test::read_text(folder + "/" + rank_file(rank)));
    contents.push_back(content_of(folder + "/" + rank_file(rank)));
  }
  return {is_resealed ? "safetensors-resealed" : "safetensors", valid,
          [root, path, contents, is_resealed](const std::string& bytes) {
            const std::string given = is_resealed ? resealed_file(bytes) : bytes;
            write_text(path, given);
            const std::string content = content_of(path);
            if (!is_resealed) {
              require(content == contents[0] || content == contents[1],
                      "a changed file passes its checksums");
              return;
            }
            check_file(Safetensors(path), given);
          }};
}

Target weights_target() {
  const auto root = std::make_shared<TemporaryFolder>();
  const std::string folder = save_sample(root->path(), 7), path = *root / "file";
  std::vector<std::string> valid = {test::read_text(folder + "/" + rank_file(0))};
  // As other programs write them: without checksums, with and without metadata.
  for (const char* notes : {R"("__metadata__":{"format":"pt"},)", ""}) {
    const std::string head =
        text("{", notes, R"("w":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)",
             R"("b":{"dtype":"BF16","shape":[4],"data_offsets":[24,32]}})");
    std::string prefix(8, '\0');
    const uint64_t length = head.size();
    std::memcpy(prefix.data(), &length, 8);
    valid.push_back(prefix + head + std::string(32, 'x'));
  }
  return {"weights", valid, [root, path](const std::string& bytes) {
            write_text(path, bytes);
            check_file(Safetensors(path, SafetensorsKind::kPlain), bytes);
          }};
}

}  // namespace kuafu::fuzz
