// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <filesystem>

#include "app/worker/fuzz.h"
#include "kuafu/base/config.h"
#include "kuafu/record/files.h"
#include "kuafu/record/json_text.h"
#include "kuafu/record/provenance.h"
#include "kuafu/record/run_log.h"

namespace kuafu::fuzz {
namespace {

constexpr char kFirst = 'a';  ///< the letter of the first ending or world

std::vector<std::string> names_of(const std::vector<RealWorld>& worlds) {
  std::vector<std::string> names;
  for (const RealWorld world : worlds) names.push_back(to_string(world));
  return names;
}

/// Letter by letter: "a equal", ...
Json legend() {
  Json out = {{"endings", Json::object()}, {"worlds", Json::object()}};
  for (int i = 0; i < kNumEndings; ++i) {
    out["endings"][std::string(1, static_cast<char>(kFirst + i))] =
        to_string(static_cast<PlanEnding>(i));
  }
  for (const RealWorld world : {RealWorld::kThreads, RealWorld::kMpi, RealWorld::kMpiNative}) {
    out["worlds"][std::string(1, static_cast<char>(kFirst + static_cast<int>(world)))] =
        to_string(world);
  }
  return out;
}

template <class T>
char letter(T of) {
  return static_cast<char>(kFirst + static_cast<int>(of));
}

}  // namespace

Record::Record(std::string folder, uint64_t seed, int64_t most_ranks, std::vector<RealWorld> worlds)
    : folder_(std::move(folder)),
      seed_(seed),
      most_ranks_(most_ranks),
      worlds_(std::move(worlds)),
      now_(provenance()) {
  if (folder_.empty()) return;
  make_writable_folder(folder_);
  KUAFU_REQUIRE(!std::filesystem::exists(text(folder_, "/", kRunFile)), "--out ", folder_,
                " holds a record of `kuafu suite` (", kRunFile, "); name another folder");
  const std::string file = folder_ + "/result.json";
  if (!std::filesystem::exists(file)) return;
  try {
    go_on(parse_json(read_file(file, "campaign")));
  } catch (const Json::exception& e) {
    throw ConfigError(text(file, " is no record of a campaign: ", words_of(e),
                           "; name another folder, or take the file away"));
  } catch (const ConfigError& e) {
    const std::string why = e.what();
    throw ConfigError(why.starts_with("--out")
                          ? why
                          : text(file, ": ", why, "; name another folder, or take the file away"));
  }
}

void Record::go_on(const Json& kept) {
  const Json now = to_json();
  for (const char* key : {"seed", "most_ranks", "worlds"}) {
    KUAFU_REQUIRE(kept.value(key, Json()) == now[key], "--out ", folder_, " holds plans of ", key,
                  " ", kept.value(key, Json()).dump(), ", not ", now[key].dump(),
                  "; go on with that, or name another folder");
  }
  blocks_ = kept.at("blocks");
  endings_ = kept.at("plan_endings");
  in_worlds_ = kept.at("plan_worlds");
  findings_ = kept.at("findings");
  for (const auto& [ending, causes] : kept.at("causes").items()) {
    causes_[ending] = causes.get<std::map<std::string, int64_t>>();
  }
  KUAFU_REQUIRE(endings_.size() == in_worlds_.size(), "it has ", endings_.size(),
                " endings of plans and ", in_worlds_.size(), " worlds");
  const Json again = to_json();
  for (const char* key : {"plans", "counts"}) {
    KUAFU_REQUIRE(kept.at(key) == again[key], "its ", key,
                  " are not those of its plan_endings and plan_worlds");
  }
  for (const Json& one : findings_) {
    one.at("plan").get<int64_t>();
    for (const char* key : {"world", "ending", "why", "command"}) one.at(key).get<std::string>();
  }
}

/// A program of another commit begins another block: what it ends is not what the one before would.
void Record::begin_block() {
  const auto same = [&](const char* key) {
    return blocks_.back()["provenance"].value(key, Json()) == now_[key];
  };
  const bool is_same =
      !blocks_.empty() && same("git_commit") && same("git_dirty") && same("kernels");
  if (is_same) return;
  blocks_.push_back({{"first", num_plans()}, {"provenance", now_}});
}

void Record::add(RealWorld world, const PlanOutcome& outcome, const Json& finding) {
  begin_block();
  endings_ += letter(outcome.ending);
  in_worlds_ += letter(world);
  if (!outcome.cause.empty()) ++causes_[to_string(outcome.ending)][outcome.cause];
  if (!finding.is_null()) findings_.push_back(finding);
}

int64_t Record::count(RealWorld world, PlanEnding ending) const {
  int64_t n = 0;
  for (size_t i = 0; i < endings_.size(); ++i) {
    if (endings_[i] == letter(ending) && in_worlds_[i] == letter(world)) ++n;
  }
  return n;
}

Json Record::to_json() const {
  Json counts = Json::object();
  for (const RealWorld world : worlds_) {
    for (int i = 0; i < kNumEndings; ++i) {
      const int64_t n = count(world, static_cast<PlanEnding>(i));
      if (n > 0) counts[to_string(world)][to_string(static_cast<PlanEnding>(i))] = n;
    }
  }
  return {{"seed", seed_},
          {"most_ranks", most_ranks_},
          {"worlds", names_of(worlds_)},
          {"plans", num_plans()},
          {"blocks", blocks_},
          {"counts", counts},
          {"causes", causes_},
          {"findings", findings_},
          {"letters", legend()},
          {"plan_endings", endings_},
          {"plan_worlds", in_worlds_}};
}

std::string Record::page() const {
  std::string worlds;  // as options, where they are not all of this build
  for (const RealWorld world : worlds_) {
    if (names_of(worlds_) != world_names()) worlds += text(" --world ", to_string(world));
  }
  std::string out =
      text("# Random plans\n\n", num_plans(), " plans of seed ", seed_,
           " over all plan keys of the programs below, worlds and modes of layers, of at most ",
           most_ranks_,
           " ranks each: certified, and metered as the same plan simulated for the world's ",
           "transport. `src/app/worker/README.md` says how a plan may end.\n\n```\nkuafu fuzz ",
           "--plans ", num_plans(), " --seconds 7200 --seed ", seed_, " --ranks ", most_ranks_,
           " --jobs 2", worlds, " --out ", folder_,
           "    # goes on where the record "
           "ends\n```\n\n`result.json` has a letter a plan, in the order of their ",
           "numbers. Programs that ran them:\n");
  for (const Json& block : blocks_) {
    const Json& made = block["provenance"];
    out +=
        text("\n- from plan ", block["first"], ": commit `", made["git_commit"].get<std::string>(),
             "`, ", made["git_dirty"].get<bool>() ? "with uncommitted changes" : "clean tree", ", ",
             made["compiler"].get<std::string>(), ", ", made["cpu_model"].get<std::string>());
  }
  out += "\n\n| ending |";
  for (const RealWorld world : worlds_) out += text(" ", to_string(world), " |");
  out += "\n|---|";
  for (size_t i = 0; i < worlds_.size(); ++i) out += "---|";
  for (int i = 0; i < kNumEndings; ++i) {
    std::string row = text("\n| ", to_string(static_cast<PlanEnding>(i)), " |");
    for (const RealWorld world : worlds_) {
      row += text(" ", count(world, static_cast<PlanEnding>(i)), " |");
    }
    out += row;
  }
  for (const auto& [ending, causes] : causes_) {
    out += text("\n\n", ending, ", by cause:\n");
    for (const auto& [cause, n] : causes) out += text("\n- ", n, ": ", cause);
  }
  out += "\n\nFindings: ";
  out += findings_.empty() ? "none." : "";
  for (const Json& one : findings_) {
    out += text("\n\n- plan ", one.at("plan"), ", ", one.at("world").get<std::string>(), ", ",
                one.at("ending").get<std::string>(), ": ", one.at("why").get<std::string>(),
                "\n\n  `", one.at("command").get<std::string>(), "`");
  }
  return out + "\n";
}

void Record::write() const {
  if (folder_.empty()) return;
  replace_file(folder_ + "/result.json", json_document(to_json()));
  replace_file(folder_ + "/README.md", page());
}

std::string Record::describe() const {
  std::string out = text(num_plans(), " plans:");
  for (int i = 0; i < kNumEndings; ++i) {
    const auto n = std::count(endings_.begin(), endings_.end(), letter(static_cast<PlanEnding>(i)));
    if (n > 0) out += text(" ", n, " ", to_string(static_cast<PlanEnding>(i)), ",");
  }
  if (endings_.empty()) return out + " none";
  out.pop_back();
  return out;
}

}  // namespace kuafu::fuzz
