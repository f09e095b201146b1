// SPDX-License-Identifier: Apache-2.0
#include "kuafu/record/hdf5.h"

#include <gtest/gtest.h>
#include <hdf5.h>
#include <stdlib.h>

#include <cmath>
#include <filesystem>

#include "kuafu/base/errors.h"
#include "tests/record/support.h"

namespace kuafu {
namespace {

using test::TemporaryFolder;

RunRecord sample_record() {
  RunRecord record;
  record.header = test::sample_header(3);
  record.cases.push_back(test::sample_case("aaaa", test::sample_document(2, 0)));
  record.cases.push_back(test::sample_case("bbbb", test::sample_document(3, 7)));
  record.cases.push_back(
      test::sample_case("cccc", {{"status", "refused"}, {"reason", std::string(100'000, 'r')}}));
  return record;
}

template <class T>
std::vector<T> read_list(const std::string& file, const std::string& path, hid_t type) {
  const hid_t id = H5Fopen(file.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
  const hid_t set = H5Dopen2(id, path.c_str(), H5P_DEFAULT);
  const hid_t space = H5Dget_space(set);
  std::vector<T> values(static_cast<size_t>(H5Sget_simple_extent_npoints(space)));
  const herr_t result = H5Dread(set, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data());
  H5Sclose(space);
  H5Dclose(set);
  H5Fclose(id);
  EXPECT_GE(result, 0) << path;
  return values;
}

std::string read_attribute(const std::string& file, const std::string& object, const char* name) {
  const hid_t id = H5Fopen(file.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
  const hid_t attribute = H5Aopen_by_name(id, object.c_str(), name, H5P_DEFAULT, H5P_DEFAULT);
  const hid_t type = H5Aget_type(attribute);
  std::string value(H5Tget_size(type), '\0');
  const herr_t result = H5Aread(attribute, type, value.data());
  H5Tclose(type);
  H5Aclose(attribute);
  H5Fclose(id);
  EXPECT_GE(result, 0) << object << " " << name;
  return value;
}

TEST(Hdf5, HoldsEveryCaseToTheBit) {
  const TemporaryFolder folder;
  const RunRecord record = sample_record();
  write_hdf5(folder.path(), record);
  const std::string file = folder / kHdf5File, at = "/cases_by_id/bbbb/";
  const Json& document = record.cases[1]["document"];
  EXPECT_EQ(read_list<double>(file, at + "loss", H5T_NATIVE_DOUBLE),
            document["loss"].get<std::vector<double>>());
  EXPECT_EQ(read_list<double>(file, at + "step_time_s/samples", H5T_NATIVE_DOUBLE),
            document["step_time_s"]["samples"].get<std::vector<double>>());
  EXPECT_EQ(read_list<int64_t>(file, at + "memory/peak_bytes", H5T_NATIVE_INT64),
            (std::vector<int64_t>{1070, 1071, 1072}));
  EXPECT_EQ(read_list<int64_t>(file, at + "memory/at_peak/parameter", H5T_NATIVE_INT64),
            (std::vector<int64_t>{100, 101, 102}));
  EXPECT_EQ(read_list<int64_t>(file, at + "ledger/data/calls/all_reduce", H5T_NATIVE_INT64),
            (std::vector<int64_t>{75, 76, 77}));
  EXPECT_EQ(read_attribute(file, at, "status"), "ok");
  EXPECT_EQ(read_attribute(file, at, "plan"), document["plan"].dump());
  EXPECT_EQ(read_attribute(file, at, "provenance"), document["provenance"].dump());
  EXPECT_EQ(read_attribute(file, at + "settings", "strategy"), "data parallel");
  EXPECT_EQ(read_attribute(file, "/", "suite_hash"), "0123456789abcdef");
}

TEST(Hdf5, HoldsOneRowAStep) {
  const TemporaryFolder folder;
  RunRecord record = sample_record();
  record.cases[0]["document"]["experts"]["steps"] = {{"tokens", {{3, 1, 0}, {2, 2, 5}}},
                                                     {"drop_rate", {0.5, 0.25}}};
  write_hdf5(folder.path(), record);
  const std::string file = folder / kHdf5File, at = "/cases_by_id/aaaa/experts/steps/";
  EXPECT_EQ(read_list<int64_t>(file, at + "tokens", H5T_NATIVE_INT64),
            (std::vector<int64_t>{3, 1, 0, 2, 2, 5}));
  EXPECT_EQ(read_list<double>(file, at + "drop_rate", H5T_NATIVE_DOUBLE),
            (std::vector<double>{0.5, 0.25}));
}

TEST(Hdf5, HoldsNormsOfLayersAsATable) {
  const TemporaryFolder folder;
  RunRecord record = sample_record();
  record.cases[0]["document"]["telemetry"] = {{"weight_norm", {{0.5, 1}, {nullptr, 2.5}}}};
  write_hdf5(folder.path(), record);
  const std::vector<double> found = read_list<double>(
      folder / kHdf5File, "/cases_by_id/aaaa/telemetry/weight_norm", H5T_NATIVE_DOUBLE);
  ASSERT_EQ(found.size(), 4U);
  EXPECT_EQ(found[1], 1);
  EXPECT_TRUE(std::isnan(found[2]));
  EXPECT_EQ(found[3], 2.5);
}

TEST(Hdf5, HoldsTheRoundsOfACase) {
  const TemporaryFolder folder;
  RunRecord record = sample_record();
  const Json time = {{"median", 0.5}, {"ci95", {0.25, 0.75}}};
  record.cases[0]["rounds"] = {{{"round", 1}, {"status", "ok"}, {"step_time_s", time}},
                               {{"round", 2}, {"status", "timeout"}, {"step_time_s", nullptr}}};
  record.cases[0]["timing"] = {{"rounds", 1}, {"step_time_s", time}};
  write_hdf5(folder.path(), record);
  const std::string file = folder / kHdf5File, at = "/cases_by_id/aaaa/";
  const std::vector<double> interval = {0.25, 0.75};
  EXPECT_EQ(read_list<double>(file, at + "timing/step_time_s/ci95", H5T_NATIVE_DOUBLE), interval);
  EXPECT_EQ(read_list<double>(file, at + "rounds/1/step_time_s/ci95", H5T_NATIVE_DOUBLE), interval);
  EXPECT_EQ(read_attribute(file, at + "rounds/2", "status"), "timeout");
}

TEST(Hdf5, IsCurrentUntilTheRecordGrows) {
  const TemporaryFolder folder;
  RunRecord record = sample_record();
  EXPECT_EQ(hdf5_state(folder.path(), record), Hdf5State::kMissing);
  write_hdf5(folder.path(), record);
  EXPECT_EQ(hdf5_state(folder.path(), record), Hdf5State::kCurrent);
  record.cases.push_back(test::sample_case("dddd", test::sample_document(1, 1)));
  EXPECT_EQ(hdf5_state(folder.path(), record), Hdf5State::kOutdated);
  EXPECT_TRUE(refresh_hdf5(folder.path(), record).empty());
  EXPECT_EQ(hdf5_state(folder.path(), record), Hdf5State::kCurrent);
}

TEST(Hdf5, IsMadeAgainWhereItWasDamaged) {
  const TemporaryFolder folder;
  const RunRecord record = sample_record();
  write_hdf5(folder.path(), record);
  const std::string whole = test::read_text(folder / kHdf5File);
  for (const std::string& damaged :
       {std::string("no HDF5 at all"), std::string(), whole.substr(0, whole.size() / 2)}) {
    test::write_text(folder / kHdf5File, damaged);
    EXPECT_EQ(hdf5_state(folder.path(), record), Hdf5State::kDamaged) << damaged.size() << " bytes";
    const std::vector<std::string> notes = refresh_hdf5(folder.path(), record);
    ASSERT_EQ(notes.size(), 1U);
    EXPECT_NE(notes[0].find("was damaged"), std::string::npos) << notes[0];
    EXPECT_EQ(hdf5_state(folder.path(), record), Hdf5State::kCurrent);
  }
}

TEST(Hdf5, EveryFlippedBitIsDamage) {
  const TemporaryFolder folder;
  const RunRecord record = sample_record();
  write_hdf5(folder.path(), record);
  const std::string whole = test::read_text(folder / kHdf5File);
  for (size_t at = 0; at < whole.size(); at += 97) {  // coprime to 8: every bit of a byte in turn
    std::string bad = whole;
    bad[at] = static_cast<char>(bad[at] ^ (1 << at % 8));
    test::write_text(folder / kHdf5File, bad);
    EXPECT_EQ(hdf5_state(folder.path(), record), Hdf5State::kDamaged) << "byte " << at;
  }
}

TEST(Hdf5, LeavesTheOldFileWhereTheDiskIsFull) {
  const TemporaryFolder folder;
  RunRecord record = sample_record();
  write_hdf5(folder.path(), record);
  const std::string before = test::read_text(folder / kHdf5File);
  record.cases.push_back(test::sample_case("dddd", test::sample_document(1, 1)));
  const auto names_before = test::names_in(folder.path());
  std::vector<std::string> notes;
  {
    const test::FileSizeLimit full(20'000);
    notes = refresh_hdf5(folder.path(), record);
  }
  ASSERT_EQ(notes.size(), 1U);
  EXPECT_NE(notes[0].find("run.jsonl has everything"), std::string::npos) << notes[0];
  EXPECT_EQ(test::read_text(folder / kHdf5File), before);
  EXPECT_EQ(test::names_in(folder.path()), names_before);
}

TEST(Hdf5, IsWrittenUnderEverySettingOfFileLocking) {
  for (const char* setting : {"FALSE", "TRUE", "BEST_EFFORT"}) {
    ::setenv("HDF5_USE_FILE_LOCKING", setting, 1);
    const TemporaryFolder folder;
    EXPECT_TRUE(refresh_hdf5(folder.path(), sample_record()).empty()) << setting;
    EXPECT_EQ(hdf5_state(folder.path(), sample_record()), Hdf5State::kCurrent) << setting;
  }
  ::unsetenv("HDF5_USE_FILE_LOCKING");
}

}  // namespace
}  // namespace kuafu
