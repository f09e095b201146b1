// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <filesystem>

#include "kuafu/base/config.h"
#include "kuafu/base/errors.h"
#include "kuafu/experiment/compare.h"
#include "kuafu/experiment/expand.h"
#include "kuafu/experiment/filter.h"
#include "kuafu/experiment/merge.h"
#include "kuafu/record/json_text.h"
#include "kuafu/record/schema.h"

namespace kuafu {
namespace {

Result lone_document(const std::string& path) {
  Json document;
  try {
    document = parse_json(read_file(path, "document"));
  } catch (const ConfigError& e) {
    throw ConfigError(text(path, ": ", e.what()));
  }
  const auto problems = document_problems(document);
  KUAFU_REQUIRE(problems.empty(), path, ": not a document of docs/record.md: ", problems.front());
  return {std::filesystem::path(path).filename().string(), "", document, nullptr, nullptr};
}

/// A setting by its whole name or last word, `name`, `case_id`, or a plan key.
std::optional<std::string> value_of(const Result& result, const std::string& key) {
  if (key == "name") return result.name;
  if (key == "case_id") return result.case_id;
  if (result.settings.is_object()) {
    Settings settings;
    for (const auto& [name, value] : result.settings.items()) settings.emplace_back(name, value);
    if (const Json* value = find_setting(settings, key)) return plain_text(*value);
  }
  const Json value = value_at(result.document, "plan." + key);
  if (value.is_null()) return std::nullopt;
  return plain_text(value);
}

}  // namespace

Results load_results(const std::string& path) {
  Results results{path, {}};
  const bool is_folder = std::filesystem::is_directory(path);
  const std::string file = is_folder ? path + "/" + kRunFile : path;
  KUAFU_REQUIRE(
      std::filesystem::exists(file), file,
      ": no such file; give a results folder, a run.jsonl or a document of `kuafu run --json`");
  if (!is_folder && std::filesystem::path(path).extension() != ".jsonl") {
    results.cases.push_back(lone_document(path));
    return results;
  }
  const RunRecord record = load_record(file);
  for (const Json& line : record.cases) {
    results.cases.push_back({line["name"].get<std::string>(), line["case_id"].get<std::string>(),
                             timed_document(line), line["settings"], value_at(line, "plugins")});
  }
  KUAFU_REQUIRE(!results.cases.empty(), file, ": has no finished case");
  return results;
}

void pick_subset(Results& a, Results& b, const Overrides& subset) {
  std::vector<Result> all = a.cases;
  all.insert(all.end(), b.cases.begin(), b.cases.end());
  Pickable from{
      all.size(), [&](size_t i, const std::string& key) { return value_of(all[i], key); }, {}};
  for (const Result& result : all) {
    if (!result.settings.is_object()) continue;
    for (const auto& [key, value] : result.settings.items()) {
      if (std::find(from.keys.begin(), from.keys.end(), key) == from.keys.end()) {
        from.keys.push_back(key);
      }
    }
  }
  const std::vector<size_t> kept = picked(from, subset, "--subset");
  const size_t num_a = a.cases.size();
  a.cases.clear();
  b.cases.clear();
  for (const size_t i : kept) (i < num_a ? a : b).cases.push_back(all[i]);
  for (const Results* side : {&a, &b}) {
    KUAFU_REQUIRE(!side->cases.empty(), side->origin, " has no case of the --subset");
  }
}

}  // namespace kuafu
