// SPDX-License-Identifier: Apache-2.0
#include "kuafu/record/hdf5.h"

#include <hdf5.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <utility>

#include "kuafu/base/errors.h"

namespace kuafu {
namespace {

/// Attributes live in the object header, which holds less than 64 KiB: longer texts become
/// datasets.
constexpr size_t kLongestAttribute = 32 * 1024;

/// Owns an HDF5 identifier of any kind.
class Id {
 public:
  Id(hid_t id, herr_t (*close)(hid_t), const std::string& what) : id_(id), close_(close) {
    KUAFU_REQUIRE(id_ >= 0, "HDF5 cannot ", what);
  }
  ~Id() {
    if (id_ >= 0) close_(id_);
  }
  Id(Id&& other) noexcept : id_(std::exchange(other.id_, -1)), close_(other.close_) {}
  Id& operator=(Id&&) = delete;
  operator hid_t() const { return id_; }

 private:
  hid_t id_;
  herr_t (*close_)(hid_t);
};

/// Silences HDF5's own error printing: every result is checked here.
class QuietErrors {
 public:
  QuietErrors() {
    H5Eget_auto2(H5E_DEFAULT, &function_, &data_);
    H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  }
  ~QuietErrors() { H5Eset_auto2(H5E_DEFAULT, function_, data_); }
  QuietErrors(const QuietErrors&) = delete;
  QuietErrors& operator=(const QuietErrors&) = delete;

 private:
  H5E_auto2_t function_ = nullptr;
  void* data_ = nullptr;
};

void check(herr_t result, const std::string& what) {
  KUAFU_REQUIRE(result >= 0, "HDF5 cannot ", what);
}

constexpr size_t kImageStep = size_t{1} << 20;  ///< bytes by which the image in memory grows

/// Access to a file that lives in memory only. A disk error inside HDF5 would leave it with a file
/// that it can neither flush nor drop; so it makes the bytes, and writing them is ours.
Id memory_access() {
  Id access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose, "make a property list");
  check(H5Pset_fapl_core(access, kImageStep, false), "keep a file in memory");
  return access;
}

/// Access for reading without locks, on file systems that have none as well.
Id read_access() {
  Id access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose, "make a property list");
  check(H5Pset_file_locking(access, false, true), "switch file locking off");
  return access;
}

Id text_type(size_t size) {
  Id type(H5Tcopy(H5T_C_S1), H5Tclose, "make a text type");
  check(H5Tset_size(type, std::max<size_t>(size, 1)), "size a text type");
  check(H5Tset_cset(type, H5T_CSET_UTF8), "set a text type");
  return type;
}

Id make_group(hid_t at, const std::string& name) {
  return {H5Gcreate2(at, name.c_str(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT), H5Gclose,
          text("make the group ", name)};
}

/// One value beside an object; texts too long for that become a dataset of the same name.
void put_scalar(hid_t at, const std::string& name, hid_t type, const void* value, bool is_long) {
  const Id space(H5Screate(H5S_SCALAR), H5Sclose, "make a space");
  if (is_long) {
    const Id set(H5Dcreate2(at, name.c_str(), type, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT),
                 H5Dclose, text("make the dataset ", name));
    check(H5Dwrite(set, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, value), text("write ", name));
    return;
  }
  const Id attribute(H5Acreate2(at, name.c_str(), type, space, H5P_DEFAULT, H5P_DEFAULT), H5Aclose,
                     text("make the attribute ", name));
  check(H5Awrite(attribute, type, value), text("write ", name));
}

void put_text(hid_t at, const std::string& name, const std::string& value) {
  const Id type = text_type(value.size());
  put_scalar(at, name, type, value.c_str(), value.size() > kLongestAttribute);
}

void put_list(hid_t at, const std::string& name, hid_t type, const void* values,
              const std::vector<hsize_t>& extents) {
  const Id space(H5Screate_simple(static_cast<int>(extents.size()), extents.data(), nullptr),
                 H5Sclose, "make a space");
  const Id set(H5Dcreate2(at, name.c_str(), type, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT),
               H5Dclose, text("make the dataset ", name));
  if (extents[0] > 0) {
    check(H5Dwrite(set, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values), text("write ", name));
  }
}

void put_integers(hid_t at, const std::string& name, const std::vector<int64_t>& values) {
  put_list(at, name, H5T_NATIVE_INT64, values.data(), {values.size()});
}

/// A list of {name: integer}, one a rank: a group with one list a name, 0 where a rank lacks it.
void put_columns(hid_t at, const std::string& name, const Json& list) {
  const Id group = make_group(at, name);
  std::vector<std::string> names;
  for (const Json& object : list) {
    for (const auto& [key, value] : object.items()) {
      if (std::find(names.begin(), names.end(), key) == names.end()) names.push_back(key);
    }
  }
  for (const std::string& key : names) {
    std::vector<int64_t> column;
    for (const Json& object : list) column.push_back(object.value(key, int64_t{0}));
    put_integers(group, key, column);
  }
}

/// True for rows of integers, all of one length.
bool is_table(const Json& list) {
  return !list.empty() && std::all_of(list.begin(), list.end(), [&](const Json& row) {
    return row.is_array() && !row.empty() && row.size() == list[0].size() &&
           std::all_of(row.begin(), row.end(), [](const Json& v) { return v.is_number_integer(); });
  });
}

/// Rows of integers as a dataset of two dims.
void put_table(hid_t at, const std::string& name, const Json& rows) {
  std::vector<int64_t> values;
  for (const Json& row : rows) {
    for (const Json& v : row) values.push_back(v.get<int64_t>());
  }
  put_list(at, name, H5T_NATIVE_INT64, values.data(), {rows.size(), rows[0].size()});
}

void put_array(hid_t at, const std::string& name, const Json& list) {
  const auto all = [&](auto&& test) { return std::all_of(list.begin(), list.end(), test); };
  if (!list.empty() && all([](const Json& v) { return v.is_number_integer(); })) {
    put_integers(at, name, list.get<std::vector<int64_t>>());
  } else if (all([](const Json& v) { return v.is_number() || v.is_null(); })) {
    std::vector<double> values;
    for (const Json& v : list) {
      values.push_back(v.is_null() ? std::numeric_limits<double>::quiet_NaN() : v.get<double>());
    }
    put_list(at, name, H5T_NATIVE_DOUBLE, values.data(), {values.size()});
  } else if (is_table(list)) {
    put_table(at, name, list);
  } else if (all([](const Json& v) { return v.is_object(); })) {
    put_columns(at, name, list);
  } else {
    put_text(at, name, list.dump());
  }
}

/// Objects become groups, lists datasets, single values attributes; null is left out.
void put_fields(hid_t at, const Json& object) {
  for (const auto& [name, value] : object.items()) {
    if (value.is_object()) {
      const Id group = make_group(at, name);
      put_fields(group, value);
    } else if (value.is_array()) {
      put_array(at, name, value);
    } else if (value.is_string()) {
      put_text(at, name, value.get<std::string>());
    } else if (value.is_boolean() || value.is_number_integer()) {
      const int64_t number = value.is_boolean() ? value.get<bool>() : value.get<int64_t>();
      put_scalar(at, name, H5T_NATIVE_INT64, &number, false);
    } else if (value.is_number()) {
      const double number = value.get<double>();
      put_scalar(at, name, H5T_NATIVE_DOUBLE, &number, false);
    }
  }
}

/// A case's group: its document's fields, plan and provenance as JSON text, name and settings.
void put_case(hid_t cases, const Json& line) {
  const Id group = make_group(cases, line["case_id"].get<std::string>());
  Json fields = line["document"];
  for (const char* name : {"plan", "provenance"}) {
    if (fields.contains(name) && fields[name].is_object()) fields[name] = fields[name].dump();
  }
  put_fields(group, fields);
  put_text(group, "name", line["name"].get<std::string>());
  const Id settings = make_group(group, "settings");
  put_fields(settings, line["settings"]);
}

void fill(hid_t file, const RunRecord& record) {
  Json header = record.header;
  header["provenance"] = header["provenance"].dump();
  header["record_hash"] = record_hash(record);
  put_fields(file, header);
  const Id cases = make_group(file, "cases_by_id");
  for (const Json& line : record.cases) put_case(cases, line);
}

/// The bytes of the HDF5 file that holds `record`.
std::string image_of(const RunRecord& record) {
  const Id access = memory_access();
  const Id file(H5Fcreate(kHdf5File, H5F_ACC_TRUNC, H5P_DEFAULT, access), H5Fclose,
                "create a file");
  fill(file, record);
  check(H5Fflush(file, H5F_SCOPE_GLOBAL), "flush a file");
  const ssize_t size = H5Fget_file_image(file, nullptr, 0);
  KUAFU_REQUIRE(size > 0, "HDF5 cannot tell the size of a file");
  std::string bytes(static_cast<size_t>(size), '\0');
  KUAFU_REQUIRE(H5Fget_file_image(file, bytes.data(), bytes.size()) == size,
                "HDF5 cannot give the bytes of a file");
  return bytes;
}

std::string read_text_attribute(hid_t file, const char* name) {
  if (H5Aexists(file, name) <= 0) return "";
  const Id attribute(H5Aopen(file, name, H5P_DEFAULT), H5Aclose, "open an attribute");
  const Id type(H5Aget_type(attribute), H5Tclose, "read a type");
  std::string value(H5Tget_size(type), '\0');
  check(H5Aread(attribute, type, value.data()), "read an attribute");
  return value;
}

/// For a walk that opens every object: a file cut off in the middle fails there.
herr_t open_object(hid_t, const char*, const H5O_info_t*, void*) { return 0; }

}  // namespace

bool has_hdf5() { return true; }

void write_hdf5(const std::string& folder, const RunRecord& record) {
  const QuietErrors quiet;
  replace_file(folder + "/" + kHdf5File, image_of(record));
}

Hdf5State hdf5_state(const std::string& folder, const RunRecord& record) {
  const QuietErrors quiet;
  const std::string path = folder + "/" + kHdf5File;
  if (!std::filesystem::exists(path)) return Hdf5State::kMissing;
  try {
    const Id access = read_access();
    const Id file(H5Fopen(path.c_str(), H5F_ACC_RDONLY, access), H5Fclose, text("open ", path));
    check(H5Ovisit(file, H5_INDEX_NAME, H5_ITER_NATIVE, open_object, nullptr), "read all objects");
    return read_text_attribute(file, "record_hash") == record_hash(record) ? Hdf5State::kCurrent
                                                                           : Hdf5State::kStale;
  } catch (const ConfigError&) {
    return Hdf5State::kDamaged;
  }
}

}  // namespace kuafu
