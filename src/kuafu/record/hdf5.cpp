// SPDX-License-Identifier: Apache-2.0
#include "kuafu/record/hdf5.h"

#include <hdf5.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "kuafu/base/errors.h"
#include "kuafu/record/json_text.h"

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

/// Integers above 2^63 - 1 are kept as doubles.
bool is_int64(const Json& v) { return whole_number(v).has_value(); }

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

bool is_real(const Json& v) { return v.is_number() || v.is_null(); }
double real_of(const Json& v) {
  return v.is_null() ? std::numeric_limits<double>::quiet_NaN() : v.get<double>();
}

/// True for rows of such numbers, all of one length.
template <class IsNumber>
bool is_table(const Json& list, const IsNumber& is_number) {
  return !list.empty() && std::all_of(list.begin(), list.end(), [&](const Json& row) {
    return row.is_array() && !row.empty() && row.size() == list[0].size() &&
           std::all_of(row.begin(), row.end(), is_number);
  });
}

/// Rows of numbers as a dataset of two dims: of integers, where all are.
void put_table(hid_t at, const std::string& name, const Json& rows) {
  const std::vector<hsize_t> extents = {rows.size(), rows[0].size()};
  if (is_table(rows, is_int64)) {
    std::vector<int64_t> values;
    for (const Json& row : rows) {
      for (const Json& v : row) values.push_back(v.get<int64_t>());
    }
    return put_list(at, name, H5T_NATIVE_INT64, values.data(), extents);
  }
  std::vector<double> values;
  for (const Json& row : rows) {
    for (const Json& v : row) values.push_back(real_of(v));
  }
  put_list(at, name, H5T_NATIVE_DOUBLE, values.data(), extents);
}

void put_array(hid_t at, const std::string& name, const Json& list) {
  const auto all = [&](auto&& test) { return std::all_of(list.begin(), list.end(), test); };
  if (!list.empty() && all(is_int64)) {
    put_integers(at, name, list.get<std::vector<int64_t>>());
  } else if (all(is_real)) {
    std::vector<double> values;
    for (const Json& v : list) values.push_back(real_of(v));
    put_list(at, name, H5T_NATIVE_DOUBLE, values.data(), {values.size()});
  } else if (is_table(list, is_real)) {
    put_table(at, name, list);
  } else if (all([](const Json& v) { return v.is_object(); })) {
    put_columns(at, name, list);
  } else {
    put_text(at, name, json_line(list));
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
    } else if (value.is_boolean() || is_int64(value)) {
      const int64_t number = value.is_boolean() ? value.get<bool>() : value.get<int64_t>();
      put_scalar(at, name, H5T_NATIVE_INT64, &number, false);
    } else if (value.is_number()) {
      const double number = value.get<double>();
      put_scalar(at, name, H5T_NATIVE_DOUBLE, &number, false);
    }
  }
}

/// The times of a case over its rounds, and a group a round by its number.
void put_rounds(hid_t at, const Json& line) {
  if (line.contains("timing") && line["timing"].is_object()) {
    const Id timing = make_group(at, "timing");
    put_fields(timing, line["timing"]);
  }
  if (!line.contains("rounds") || !line["rounds"].is_array()) return;
  const Id rounds = make_group(at, "rounds");
  for (const Json& round : line["rounds"]) {
    const Id group = make_group(rounds, text(round["round"].get<int64_t>()));
    put_fields(group, round);
  }
}

/// A case's group: its document's fields, plan and provenance as JSON text, name, settings, rounds.
void put_case(hid_t cases, const Json& line) {
  const Id group = make_group(cases, line["case_id"].get<std::string>());
  Json fields = line["document"];
  for (const char* name : {"plan", "provenance"}) {
    if (fields.contains(name) && fields[name].is_object()) fields[name] = json_line(fields[name]);
  }
  put_fields(group, fields);
  put_text(group, "name", line["name"].get<std::string>());
  const Id settings = make_group(group, "settings");
  put_fields(settings, line["settings"]);
  put_rounds(group, line);
}

void fill(hid_t file, const RunRecord& record) {
  Json header = record.header;
  header["provenance"] = json_line(header["provenance"]);
  for (const char* told : {"order", "references", "derived"}) {
    if (header.contains(told)) header[told] = json_line(header[told]);
  }
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

}  // namespace

bool has_hdf5() { return true; }

void write_hdf5(const std::string& folder, const RunRecord& record) {
  const QuietErrors quiet;
  replace_file(folder + "/" + kHdf5File, with_trailer(image_of(record), record));
}

}  // namespace kuafu
