// SPDX-License-Identifier: Apache-2.0
#include "tests/record/support.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "kuafu/base/errors.h"
#include "kuafu/record/provenance.h"
#include "kuafu/record/schema.h"

namespace kuafu::test {
namespace {

/// The provenance of this program at a fixed time: the same documents from every call.
Json timeless_provenance() {
  Json p = provenance();
  p["time"] = "2026-01-31T12:00:00Z";
  return p;
}

}  // namespace

TemporaryFolder::TemporaryFolder() {
  std::string pattern = (std::filesystem::temp_directory_path() / "kuafu-test-XXXXXX").string();
  KUAFU_CHECK(::mkdtemp(pattern.data()) != nullptr, "no temporary folder at ", pattern);
  path_ = pattern;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code error;
  std::filesystem::remove_all(path_, error);
}

Json sample_document(int64_t ranks, int64_t tag) {
  const auto per_rank = [&](int64_t first) {
    Json list = Json::array();
    for (int64_t r = 0; r < ranks; ++r) list.push_back(first + 10 * tag + r);
    return list;
  };
  Json peers = Json::array(), categories = Json::array();
  for (int64_t r = 0; r < ranks; ++r) {
    peers.push_back(ranks - 1);
    categories.push_back({{"parameter", 100 + r}, {"activation", 900 + 10 * tag}});
  }
  Json losses = Json::array();
  for (int step = 0; step < 5; ++step)
    losses.push_back(5.5 / (1 + step) + static_cast<double>(tag) / 3);
  const double median = 0.010 + 0.001 * static_cast<double>(tag);
  const Json row = {{"bytes_sent", per_rank(1000)}, {"bytes_received", per_rank(2000)},
                    {"messages", per_rank(30)},     {"peers", peers},
                    {"wire_peers", peers},          {"calls", {{"all_reduce", per_rank(5)}}},
                    {"counting", "convention"}};
  return {{"status", "ok"},
          {"plan", {{"model", {{"layers", 2}}}, {"train", {{"seed", tag}}}}},
          {"plan_hash", text("00000000000000", 10 + tag)},
          {"world", "threads"},
          {"ranks", ranks},
          {"loss", losses},
          {"validation_loss", 1.25},
          {"step_time_s",
           {{"median", median},
            {"ci95", {0.9 * median, 1.1 * median}},
            {"samples", {median, 0.95 * median, 1.05 * median}}}},
          {"tokens_per_s", 256 / median},
          {"flops_per_step", 123456789},
          {"flops_recomputed", 0},
          {"memory",
           {{"peak_bytes", per_rank(1000)},
            {"peak_by_category", categories},
            {"at_peak", categories},
            {"scratch_bytes", per_rank(0)}}},
          {"ledger", {{"data", row}}},
          {"certificate",
           {{"verdict", "equal"},
            {"level", "full"},
            {"steps", 3},
            {"loss_error", 0.0},
            {"gradient_error", 1e-15},
            {"parameter_error", 2e-15},
            {"tolerance", 1e-12}}},
          {"provenance", timeless_provenance()}};
}

Json sample_case(const std::string& id, const Json& document) {
  return {{"kind", "case"},
          {"case_id", id},
          {"name", "case " + id},
          {"settings", {{"strategy", "data parallel"}, {"ranks", value_at(document, "ranks")}}},
          {"status", document["status"]},
          {"reason", value_at(document, "reason")},
          {"wall_s", 1.5},
          {"document", document}};
}

Json with_rounds(Json line, int64_t rounds) {
  const Json time = {{"median", value_at(line, "document.step_time_s.median")},
                     {"ci95", value_at(line, "document.step_time_s.ci95")}};
  const Json tokens = value_at(line, "document.tokens_per_s");
  line["rounds"] = Json::array();
  for (int64_t round = 1; round <= rounds; ++round) {
    line["rounds"].push_back({{"round", round},
                              {"position", 3},
                              {"began", "2026-01-31T12:00:00Z"},
                              {"status", "ok"},
                              {"wall_s", 1.5},
                              {"step_time_s", time},
                              {"tokens_per_s", tokens},
                              {"load", {{"foreign_share", 0.5}}},
                              {"losses", "same"}});
  }
  line["timing"] = {{"rounds", rounds}, {"step_time_s", time}, {"tokens_per_s", tokens}};
  return line;
}

Json sample_header(int64_t cases) {
  return {{"kind", "suite"},
          {"format", kRecordFormat},
          {"name", "sample"},
          {"question", "Is it so?"},
          {"suite_hash", "0123456789abcdef"},
          {"cases", cases},
          {"provenance", timeless_provenance()}};
}

std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream out;
  out << file.rdbuf();
  return out.str();
}

void write_text(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

FileSizeLimit::FileSizeLimit(uint64_t bytes) : handler_(::signal(SIGXFSZ, SIG_IGN)) {
  rlimit limit{};
  ::getrlimit(RLIMIT_FSIZE, &limit);
  before_ = limit.rlim_cur;
  limit.rlim_cur = bytes;
  ::setrlimit(RLIMIT_FSIZE, &limit);
}

FileSizeLimit::~FileSizeLimit() {
  rlimit limit{};
  ::getrlimit(RLIMIT_FSIZE, &limit);
  limit.rlim_cur = before_;
  ::setrlimit(RLIMIT_FSIZE, &limit);
  ::signal(SIGXFSZ, handler_);
}

}  // namespace kuafu::test
