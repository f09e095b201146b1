// SPDX-License-Identifier: Apache-2.0
#include "kuafu/experiment/merge.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <set>

#include "kuafu/base/errors.h"
#include "kuafu/base/philox.h"
#include "kuafu/base/suggest.h"
#include "kuafu/base/xxh64.h"
#include "kuafu/experiment/verdict.h"
#include "kuafu/record/files.h"
#include "kuafu/record/folder_lock.h"
#include "kuafu/record/provenance.h"
#include "kuafu/record/schema.h"

namespace kuafu {
namespace {

namespace fs = std::filesystem;

std::string id_of(const Json& line) { return line["case_id"].get<std::string>(); }

bool is_refuted(const Json& line) { return is_different(line["document"]); }

/// When a case ended; empty where neither its line nor its document says so.
std::string time_of(const Json& line) {
  std::string last;  // a line of several rounds ended with the youngest
  for (const Json& round : value_at(line, "rounds")) {
    const Json began = value_at(round, "began");
    if (began.is_string()) last = std::max(last, began.get<std::string>());
  }
  if (!last.empty()) return last;
  for (const char* path : {"time", "document.provenance.time"}) {
    const Json time = value_at(line, path);
    if (time.is_string()) return time.get<std::string>();
  }
  return "";
}

/// Rounds that a line has; 1 in older records.
size_t num_rounds(const Json& line) { return std::max<size_t>(1, value_at(line, "rounds").size()); }

/// Whether its certificate came to a verdict.
bool is_decided(const Json& line) {
  return line["status"] == "ok" && (verdict_of(line["document"]) == "equal" || is_refuted(line));
}

bool is_same(Json a, Json b) {
  a.erase("kind");
  b.erase("kind");
  return a == b;
}

/// Lines of one kind, each with the folder that it comes from.
class Lines {
 public:
  void add(const Json& line, const std::string& folder) {
    const auto [known, is_new] = places_.try_emplace(id_of(line), lines_.size());
    if (is_new) {
      lines_.push_back(line);
      folders_.push_back(folder);
      return;
    }
    const size_t at = known->second;
    if (is_same(lines_[at], line)) {
      ++num_same_;
    } else {
      choose(line, folder, at);
    }
  }

  bool has(const std::string& id) const { return places_.contains(id); }
  const std::vector<Json>& lines() const { return lines_; }
  const std::vector<std::string>& folders() const { return folders_; }
  const std::vector<std::string>& notes() const { return notes_; }
  size_t num_same() const { return num_same_; }

 private:
  static std::string name_of(const Json& line) {
    return text("case ", in_quotes(line["name"].get<std::string>()), " (", id_of(line), ")");
  }

  /// What one and the same case should have alike and has not, where both ended well.
  static std::string contradiction(const Json& a, const Json& b) {
    if (a["status"] != "ok" || b["status"] != "ok") return "";
    std::vector<std::string> fields;
    for (const char* field :
         {"loss", "memory.peak_bytes", "ledger", "flops", "certificate.verdict"}) {
      if (value_at(a["document"], field) != value_at(b["document"], field))
        fields.emplace_back(field);
    }
    return fields.empty() ? "" : text("; BUT their ", join(fields), " differ (see kuafu compare)");
  }

  /// Keeps the better of two lines of a case, and notes why it is better.
  void choose(const Json& line, const std::string& folder, size_t at) {
    const auto [is_new, why] = better(line, folder, at);
    const std::string& taken = is_new ? folder : folders_[at];
    const std::string& left = is_new ? folders_[at] : folder;
    notes_.push_back(text(name_of(line), ": taken from ", taken, ", not from ", left, ": ", why,
                          contradiction(lines_[at], line)));
    if (!is_new) return;
    lines_[at] = line;
    folders_[at] = folder;
  }

  /// Whether `line` is better than the one that is kept, and why the better one is.
  std::pair<bool, std::string> better(const Json& line, const std::string& folder,
                                      size_t at) const {
    const Json& kept = lines_[at];
    // What is refuted once stays so, whoever came later: no other line says why it was wrong.
    if (is_refuted(line) != is_refuted(kept)) return {is_refuted(line), "it is refuted"};
    const bool is_ok = line["status"] == "ok", was_ok = kept["status"] == "ok";
    if (is_ok != was_ok) return {is_ok, "it ended well"};
    const bool is_proven = is_decided(line), was_proven = is_decided(kept);
    if (is_proven != was_proven) {
      return {is_proven,
              text("its certificate is ", verdict_of((is_proven ? line : kept)["document"]),
                   ", and the other has none")};
    }
    if (num_rounds(line) != num_rounds(kept)) {
      return {num_rounds(line) > num_rounds(kept), "it has more rounds"};
    }
    const std::string before = time_of(lines_[at]), now = time_of(line);
    KUAFU_REQUIRE(!before.empty() && !now.empty() && before != now, name_of(line), " is in ",
                  folders_[at], " and in ", folder, " with other results, and ",
                  before == now && !now.empty() ? text("both are of ", now)
                                                : "not both say when they were made",
                  "; take its line out of one run.jsonl, or merge one folder alone");
    return {now > before, "it is newer"};
  }

  std::vector<Json> lines_;
  std::vector<std::string> folders_;
  std::map<std::string, size_t> places_;  ///< by id
  std::vector<std::string> notes_;
  size_t num_same_ = 0;
};

/// The distinct texts of a header field, in order.
std::vector<std::string> distinct(const std::vector<MergeInput>& inputs, const char* field) {
  std::vector<std::string> texts;
  for (const MergeInput& input : inputs) {
    const auto value = input.record.header[field].get<std::string>();
    if (std::find(texts.begin(), texts.end(), value) == texts.end()) texts.push_back(value);
  }
  return texts;
}

/// What a record is judged and drawn by, and only one state of a suite has.
constexpr const char* kToldBySuite[] = {"order", "references", "derived"};

/// Which of it is lost, where the folders are of several suites, or of several states of one.
std::string left_out(const std::vector<MergeInput>& inputs) {
  const std::vector<std::string> hashes = distinct(inputs, "suite_hash");
  std::set<std::string> names;
  for (const auto& [folder, record] : inputs) {
    const Json derived = value_at(record.header, "derived");
    for (const char* part : {"columns", "claims", "figures"}) {
      if (!value_at(derived, part).empty()) names.insert(part);
    }
    if (!value_at(record.header, "references").empty()) names.insert("references");
  }
  if (hashes.size() == 1 || names.empty()) return "";
  const std::vector<std::string> suites = distinct(inputs, "name");
  const std::string of = suites.size() == 1 ? text(hashes.size(), " states of suite ", suites[0])
                                            : text(suites.size(), " suites");
  return text(
      "the folders are of ", of, ": ", join({names.begin(), names.end()}),
      " are left out; the reports of each folder have them",
      suites.size() == 1 ? ", and `kuafu suite` brings a folder to the suite's present state" : "");
}

Json merged_header(const std::vector<MergeInput>& inputs, const std::vector<Json>& cases) {
  const Json& first = inputs.front().record.header;
  const std::string name = join(distinct(inputs, "name"), " + ");
  const std::vector<std::string> hashes = distinct(inputs, "suite_hash");
  Json corpora = Json::object(), sources = Json::array();
  for (const auto& [folder, record] : inputs) {
    const Json theirs = value_at(record.header, "corpora");
    if (theirs.is_object()) corpora.update(theirs);
    sources.push_back(text(folder, ": ", record.header["name"].get<std::string>(), ", suite ",
                           record.header["suite_hash"].get<std::string>(), ", cases ",
                           record.cases.size()));
  }
  std::string identity = name;
  for (const Json& line : cases) identity += "\n" + id_of(line);
  const bool is_one_suite = hashes.size() == 1;
  Json header = {{"kind", "suite"},
                 {"format", kRecordFormat},
                 {"name", name},
                 {"question", join(distinct(inputs, "question"), " ")},
                 {"suite_hash", is_one_suite ? hashes.front() : hex_digits(hash_name(identity))},
                 {"cases", is_one_suite ? first["cases"] : Json(cases.size())},
                 {"corpora", corpora},
                 {"merged", sources},
                 {"provenance", provenance()}};
  for (const char* told : kToldBySuite) {
    if (is_one_suite && first.contains(told)) header[told] = first[told];
  }
  return header;
}

}  // namespace

RunRecord load_record(const std::string& path) {
  const std::string file = fs::is_directory(path) ? path + "/" + kRunFile : path;
  KUAFU_REQUIRE(fs::exists(file), file,
                ": no such file; give a results folder of `kuafu suite`, or its run.jsonl");
  KUAFU_REQUIRE(fs::path(file).extension() != ".json", file,
                " is a document of one run; a record of cases is a results folder of `kuafu "
                "suite`, or its ",
                kRunFile);
  RunRecord record = read_run(file);
  const size_t damaged = record.damaged.size() - (record.is_cut ? 1 : 0);
  KUAFU_REQUIRE(
      damaged == 0, file, ": ", damaged, damaged == 1 ? " line is" : " lines are",
      " no JSON any more; `kuafu suite` sets such lines aside and runs their cases again");
  KUAFU_REQUIRE(!record.cases.empty() || !record.former.empty(), file, ": has no finished case");
  return record;
}

Merged merged(const std::vector<MergeInput>& inputs) {
  KUAFU_REQUIRE(inputs.size() > 1, "merge: expected two folders or more, given ", inputs.size());
  Merged out;
  Lines cases, former;
  for (const auto& [folder, record] : inputs) {
    for (const Json& line : record.cases) cases.add(line, folder);
    for (const Json& line : record.former) former.add(line, folder);
    if (record.is_cut) {
      out.notes.push_back(folder + ": its last line is cut off and was left out");
    }
  }
  out.record.cases = cases.lines();
  for (size_t i = 0; i < cases.lines().size(); ++i) {
    out.origins[id_of(cases.lines()[i])] = cases.folders()[i];
  }
  for (size_t i = 0; i < former.lines().size(); ++i) {
    const std::string id = id_of(former.lines()[i]);
    if (cases.has(id)) continue;
    out.record.former.push_back(former.lines()[i]);
    out.origins[id] = former.folders()[i];
  }
  out.notes.insert(out.notes.end(), cases.notes().begin(), cases.notes().end());
  if (cases.num_same() > 0) {
    out.notes.push_back(text(cases.num_same(), cases.num_same() == 1 ? " line was" : " lines were",
                             " the same in another folder: kept once"));
  }
  if (const std::string lost = left_out(inputs); !lost.empty()) out.notes.push_back(lost);
  out.record.header = merged_header(inputs, out.record.cases);
  return out;
}

void write_merged(const Merged& merged, const std::string& out) {
  require_recordable(out);
  make_writable_folder(out);
  const FolderLock lock(out);
  const std::string file = out + "/" + kRunFile;
  KUAFU_REQUIRE(!fs::exists(file) || fs::file_size(file) == 0, out,
                " holds results already; choose another folder with --out");
  for (const auto& [id, folder] : merged.origins) {
    const fs::path given(folder);
    const fs::path source = (fs::is_directory(given) ? given : given.parent_path()) / "cases" / id;
    if (!fs::is_directory(source)) continue;
    fs::create_directories(fs::path(out) / "cases");
    std::error_code error;
    fs::copy(source, fs::path(out) / "cases" / id,
             fs::copy_options::recursive | fs::copy_options::overwrite_existing |
                 fs::copy_options::skip_symlinks,
             error);
    errno = error.value();
    if (error) throw_unwritten(out, source.string() + ": ");
  }
  RunLog log(out);
  log.rewrite(merged.record);
}

}  // namespace kuafu
