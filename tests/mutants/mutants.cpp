// SPDX-License-Identifier: Apache-2.0
//
// Tries the mutants and writes the table. README.md says what counts.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <map>
#include <random>

#include "kuafu/base/config.h"
#include "kuafu/base/errors.h"
#include "kuafu/record/files.h"
#include "kuafu/record/json_text.h"
#include "kuafu/record/provenance.h"
#include "kuafu/tensor/tensor.h"
#include "tests/mutants/mutant.h"

namespace kuafu::tests {
namespace {

using Kind = Fate::Kind;

struct Options {
  uint64_t seed = 1;
  std::string kit, only, out;
  size_t sample = 0;
};

/// Of those counted: by comparison or by an error that names the cause, and by comparison. Of rules
/// whose own mutants are the known mistakes of others, by layers and Adam, all are caught.
constexpr double kLeastCaught = 0.95, kLeastCompared = 0.85;

/// Whether one of a rule's own mutants must be caught.
bool must_be_caught(const std::string& optimizer) {
  const std::vector<OptimizerKind>& all = builtin_optimizer_kinds();
  return std::any_of(all.begin(), all.end(), [&](const OptimizerKind& kind) {
    return kind.name == optimizer && (kind.is_by_layers || kind.name == "adam");
  });
}

constexpr const char* kFates[] = {"comparison", "error", "survived", "unreached", "same bits"};

struct Tried {
  std::string name;
  Combination combination;
  Fate fate;
};

struct Row {
  std::string kit;
  std::vector<Tried> tried = {};
  std::vector<std::string> wrong = {};  ///< what makes the table worthless

  int64_t count(Kind kind) const {
    return std::count_if(tried.begin(), tried.end(),
                         [&](const Tried& t) { return t.fate.kind == kind; });
  }
  int64_t counted() const {
    return static_cast<int64_t>(tried.size()) - count(Kind::kOutOfReach) - count(Kind::kNothing);
  }
  double compared() const {
    return static_cast<double>(count(Kind::kComparison)) / static_cast<double>(counted());
  }
  double caught() const {
    return compared() + static_cast<double>(count(Kind::kError)) / static_cast<double>(counted());
  }
};

std::vector<Combination> combinations() {
  std::vector<Combination> all;
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16}) {
    for (const char* optimizer : {"adamw", "sgd", "adam", "lars", "lamb", "muon"}) {
      // Of those that say so themselves: an op of LAMB is met in half precision alone.
      const std::string_view in_f32[] = {"adamw", "lars"};
      if (dtype == DType::kBF16 && std::ranges::count(in_f32, optimizer) > 0) continue;
      for (const char* level : {"full", "scaled"}) all.push_back({dtype, optimizer, level});
    }
  }
  return all;
}

/// Deals the combinations of a kit out: to each mutant one of those that were dealt least often,
/// drawn by the seed.
class Deal {
 public:
  explicit Deal(uint64_t seed) : random_(seed) {}

  const Combination& next(const Mutant& m) {
    std::vector<size_t> least;
    for (size_t i = 0; i < all_.size(); ++i) {
      const Combination& c = all_[i];
      const bool is_for_any = c.optimizer == "adamw" || c.optimizer == "sgd";
      if (m.optimizer.empty() ? !is_for_any : m.optimizer != c.optimizer) continue;
      if (m.dtype ? m.dtype != c.dtype : c.dtype == DType::kBF16) continue;
      if (!least.empty() && dealt_[i] > dealt_[least[0]]) continue;
      if (!least.empty() && dealt_[i] < dealt_[least[0]]) least.clear();
      least.push_back(i);
    }
    const size_t chosen = least[random_() % least.size()];
    ++dealt_[chosen];
    return all_[chosen];
  }

 private:
  std::vector<Combination> all_ = combinations();
  std::map<size_t, int64_t> dealt_;
  std::mt19937_64 random_;
};

/// Mutants of a kit, or `sample` of them by the seed.
std::vector<Mutant> drawn(std::vector<Mutant> all, const Options& options) {
  if (!options.only.empty()) {
    std::erase_if(all, [&](const Mutant& m) { return m.name.find(options.only) == m.name.npos; });
  }
  if (options.sample == 0) return all;
  std::mt19937_64 random(options.seed);
  std::shuffle(all.begin(), all.end(), random);
  all.resize(std::min(all.size(), options.sample));
  return all;
}

/// The decorators alone change nothing, under every combination; of a sample under one.
void try_harmless(Kit& kit, const Options& options, Row& row) {
  const std::vector<Combination> all = combinations();
  const size_t count = options.sample == 0 ? all.size() : 1;
  for (size_t i = 0; i < count; ++i) {
    const Combination& c = all[(i + options.seed) % all.size()];
    Mutant& m = kit.harmless[i % kit.harmless.size()];
    const Fate fate = fate_of(m, c);
    if (fate.words.starts_with("equal")) continue;
    row.wrong.push_back(text(m.name, " (", to_string(c), ") is not equal: ", fate.words));
  }
}

Row try_kit(Kit kit, const Options& options) {
  Row row{.kit = kit.name};
  if (options.only.empty()) try_harmless(kit, options, row);
  Deal deal(options.seed + std::hash<std::string>{}(kit.name));
  for (Mutant& m : drawn(std::move(kit.mutants), options)) {
    const Combination& c = deal.next(m);
    const Fate fate = fate_of(m, c);
    const bool is_here = *m.fired > 0 || fate.kind == Kind::kError || fate.kind == Kind::kNothing ||
                         fate.kind == Kind::kOutOfReach;
    if (!is_here) {
      row.wrong.push_back(text(m.name, " (", to_string(c), ") never came true: ", fate.words));
    }
    row.tried.push_back({m.name, c, fate});
    if (fate.kind == Kind::kSurvived && must_be_caught(m.optimizer)) {
      row.wrong.push_back(text(m.name, " (", to_string(c), ") survived; of ", m.optimizer,
                               " all are to be caught"));
    }
    if (fate.kind == Kind::kComparison && options.only.empty()) continue;
    std::cout << kit.name << ": " << kFates[static_cast<size_t>(fate.kind)] << ": " << m.name
              << " (" << to_string(c) << "): " << fate.words << std::endl;
  }
  for (const std::string& words : row.wrong) std::cout << "WRONG " << words << std::endl;
  return row;
}

Row sum_of(const std::vector<Row>& rows) {
  Row all{.kit = "all"};
  for (const Row& row : rows) {
    all.tried.insert(all.tried.end(), row.tried.begin(), row.tried.end());
    all.wrong.insert(all.wrong.end(), row.wrong.begin(), row.wrong.end());
  }
  return all;
}

std::string percent(double share) { return text(std::round(1000 * share) / 10, " %"); }

std::string table_of(const std::vector<Row>& rows) {
  std::string t =
      "| kit | counted | by comparison | by an error that names the cause | survived | caught | by "
      "comparison | changed nothing | out of reach |\n|---|---|---|---|---|---|---|---|---|\n";
  for (const Row& r : rows) {
    t += text("| ", r.kit, " | ", r.counted(), " | ", r.count(Kind::kComparison), " | ",
              r.count(Kind::kError), " | ", r.count(Kind::kSurvived), " | ", percent(r.caught()),
              " | ", percent(r.compared()), " | ", r.count(Kind::kNothing), " | ",
              r.count(Kind::kOutOfReach), " |\n");
  }
  const auto is_of_one = [](const Tried& m) { return m.name.find("in both") == m.name.npos; };
  for (const Row& r : rows) {
    if (r.kit != "trace") continue;
    t += text("\nOf trace, ", std::count_if(r.tried.begin(), r.tried.end(), is_of_one),
              " change one of two equal traces and cannot survive: they say that the comparison "
              "looks at every field.\n");
  }
  t += "\n| combination | counted | by comparison | by an error | survived "
       "|\n|---|---|---|---|---|\n";
  for (const Combination& c : combinations()) {
    Row of{.kit = to_string(c), .tried = rows.back().tried};
    std::erase_if(of.tried, [&](const Tried& m) { return !(m.combination == c); });
    t += text("| ", of.kit, " | ", of.counted(), " | ", of.count(Kind::kComparison), " | ",
              of.count(Kind::kError), " | ", of.count(Kind::kSurvived), " |\n");
  }
  for (const auto& [kind, title] : {std::pair{Kind::kSurvived, "Survived"},
                                    {Kind::kError, "Caught by an error"},
                                    {Kind::kNothing, "Changed nothing"},
                                    {Kind::kOutOfReach, "Out of reach"}}) {
    t += text("\n", title, ":\n\n");
    for (const Row& r : rows) {
      if (r.kit == "all") continue;
      for (const Tried& m : r.tried) {
        if (m.fate.kind != kind) continue;
        t += text("- ", r.kit, ": ", m.name, " (", to_string(m.combination), "): ", m.fate.words,
                  "\n");
      }
    }
  }
  return t;
}

Json json_of(const std::vector<Row>& rows, const Options& options, double seconds) {
  Json all = {{"seed", options.seed},
              {"provenance", provenance()},
              {"seconds", seconds},
              {"kits", Json::array()}};
  for (const Row& r : rows) {
    if (r.kit == "all") continue;
    Json mutants = Json::array();
    for (const Tried& m : r.tried) {
      mutants.push_back({{"name", m.name},
                         {"dtype", std::string(to_string(m.combination.dtype))},
                         {"optimizer", m.combination.optimizer},
                         {"level", m.combination.level},
                         {"fate", kFates[static_cast<size_t>(m.fate.kind)]},
                         {"words", m.fate.words}});
    }
    all["kits"].push_back({{"kit", r.kit},
                           {"counted", r.counted()},
                           {"comparison", r.count(Kind::kComparison)},
                           {"error", r.count(Kind::kError)},
                           {"survived", r.count(Kind::kSurvived)},
                           {"changed_nothing", r.count(Kind::kNothing)},
                           {"out_of_reach", r.count(Kind::kOutOfReach)},
                           {"mutants", mutants}});
  }
  return all;
}

/// Kits that were tried before by the same seed and commit: rows of the file that is continued.
std::vector<Row> known_rows(const Options& options) {
  const std::string path = options.out + "/result.json";
  if (options.out.empty() || !std::filesystem::exists(path)) return {};
  const Json known = parse_json(read_file(path, "results"));
  const bool is_same = known.at("seed") == options.seed &&
                       known.at("provenance").at("git_commit") == provenance().at("git_commit");
  std::vector<Row> rows;
  if (!is_same) return rows;
  for (const Json& kit : known.at("kits")) {
    Row& row = rows.emplace_back(Row{.kit = kit.at("kit").get<std::string>()});
    for (const Json& m : kit.at("mutants")) {
      const auto word = [&](const char* key) { return m.at(key).get<std::string>(); };
      const Combination c{dtype_from(word("dtype")), word("optimizer"), word("level")};
      const auto kind = std::find(std::begin(kFates), std::end(kFates), word("fate")) - kFates;
      row.tried.push_back({word("name"), c, {static_cast<Kind>(kind), word("words")}});
    }
  }
  return rows;
}

int run(const Options& options) {
  require_recordable(options.out);
  const auto begin = std::chrono::steady_clock::now();
  std::vector<Row> rows;
  for (Kit& kit : all_kits(options.seed)) {
    if (!options.kit.empty() && kit.name != options.kit) continue;
    rows.push_back(try_kit(std::move(kit), options));
  }
  for (const Row& row : known_rows(options)) {
    const auto is_it = [&](const Row& r) { return r.kit == row.kit; };
    if (std::none_of(rows.begin(), rows.end(), is_it)) rows.push_back(row);
  }
  KUAFU_REQUIRE(!rows.empty(), "--kit ", options.kit,
                ": no such kit; there are communication, layouts, kernels, optimizer, schedule and "
                "trace");
  rows.push_back(sum_of(rows));
  KUAFU_REQUIRE(!rows.back().tried.empty(), "--only ", options.only,
                ": no mutant has these words in its name; try fewer of them");
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const std::string table = table_of(rows);
  std::cout << table.substr(0, table.find("\nSurvived")) << "\n" << seconds << " s" << std::endl;
  if (!options.out.empty()) {
    std::filesystem::create_directories(options.out);
    replace_file(options.out + "/table.md", table);
    replace_file(options.out + "/result.json", json_document(json_of(rows, options, seconds)));
  }
  const Row& all = rows.back();
  const bool is_enough = all.caught() >= kLeastCaught && all.compared() >= kLeastCompared;
  if (!is_enough) {
    std::cout << "caught " << percent(all.caught()) << " of at least " << percent(kLeastCaught)
              << ", by comparison " << percent(all.compared()) << " of at least "
              << percent(kLeastCompared) << std::endl;
  }
  return is_enough && all.wrong.empty() ? 0 : 1;
}

}  // namespace
}  // namespace kuafu::tests

int main(int argc, char** argv) {
  kuafu::tests::Options options;
  CLI::App app(
      "Puts small wrongs into plans and says which are caught. Exit code 1 where too few are, one "
      "never comes true, or decorators alone change something.\n"
      "Example: mutants --seed 1 --out results/mutants");
  app.add_option("--seed", options.seed, "draws calls and combinations")->capture_default_str();
  app.add_option("--kit", options.kit, "one kit instead of all");
  app.add_option("--only", options.only, "mutants with these words in their name");
  app.add_option("--sample", options.sample, "so many mutants of a kit; 0: all");
  app.add_option("--out", options.out,
                 "FOLDER for table.md and result.json; kits tried there by the same seed and "
                 "commit are kept");
  CLI11_PARSE(app, argc, argv);
  kuafu::initialise_tensors();
  try {
    return kuafu::tests::run(options);
  } catch (const kuafu::Error& e) {
    std::cerr << "mutants: " << e.what() << std::endl;
    return 2;
  }
}
