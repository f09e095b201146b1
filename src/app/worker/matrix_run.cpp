// SPDX-License-Identifier: Apache-2.0
#include <sys/stat.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "app/worker/matrix.h"
#include "app/worker/options.h"
#include "kuafu/base/build_info.h"
#include "kuafu/base/config.h"
#include "kuafu/comm/worlds.h"
#include "kuafu/simulate/simulate.h"

namespace kuafu::matrix {
namespace {

constexpr std::chrono::seconds kLongestWait{60};

std::vector<RankResult> run_threads(const Plan& plan, const Registries& registries,
                                    bool is_certified) {
  RunOptions run;
  run.is_certified = is_certified;
  run.make_data = open_dataset;
  std::vector<RankResult> results(static_cast<size_t>(num_ranks(plan)));
  run_on_threads(static_cast<int>(results.size()),
                 [&](Communicator& world) {
                   results[static_cast<size_t>(world.rank())] =
                       run_rank(plan, registries, world, run);
                 },
                 {.timeout = kLongestWait});
  return results;
}

Outcome judged(const std::string& verdict, const std::string& worst, double gradient_error,
               double tolerance) {
  Outcome out;
  out.gradient_error = gradient_error;
  out.tolerance = tolerance;
  out.status = verdict == "equal" ? Status::kEqual : Status::kDifferent;
  if (verdict != "equal") {
    out.why = text("certificate: ", verdict, ", worst ", worst, ", gradient error ", gradient_error,
                   ", tolerance ", tolerance);
  }
  return out;
}

/// What two runs of a rank metered differently; empty where nothing.
std::string difference(const RankResult& a, const RankResult& b) {
  if (a.traffic != b.traffic) return "traffic";
  if (a.flops != b.flops || a.flops_recomputed != b.flops_recomputed) return "FLOPs";
  if (a.peak_bytes != b.peak_bytes) return "peak memory";
  return {};
}

/// The program that runs, as far as another build differs from it.
std::string program() {
  struct stat file {};
  ::stat("/proc/self/exe", &file);
  return text(file.st_size, " ", file.st_mtim.tv_sec, ".", file.st_mtim.tv_nsec);
}

Status status_of(const std::string& word) {
  for (const Status status : {Status::kEqual, Status::kRefused}) {
    if (word == to_string(status)) return status;
  }
  return Status::kDifferent;
}

}  // namespace

Runner::Runner(const Registries& registries, std::string folder)
    : registries_(registries), folder_(std::move(folder)) {
  go_on();
}

void Runner::go_on() {
  std::ifstream file(folder_ + "/done.jsonl");
  for (std::string line; std::getline(file, line);) {
    const Json row = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!row.is_object() || row.value("program", "") != program()) continue;  // cut off by a kill
    Outcome o;
    o.status = status_of(row.at("status"));
    o.why = row.at("why");
    o.ranks = row.at("ranks");
    o.gradient_error = row.at("gradient_error");
    o.tolerance = row.at("tolerance");
    done_[row.at("case")] = o;
  }
}

std::string to_string(Status status) {
  switch (status) {
    case Status::kEqual:
      return "equal";
    case Status::kRefused:
      return "refused";
    case Status::kDifferent:
      return "different";
  }
  return {};
}

Outcome Runner::run(const Overrides& settings, const std::string& world) {
  Plan plan;
  try {
    const TensorModes modes = registries_.tensor_modes();
    plan = resolve(parse_plan("", "plan", modes, settings, registries_.models.names()), 0, modes);
    check_placement(plan, registries_);
  } catch (const ConfigError& e) {  // Refused is one too
    return {Status::kRefused, e.what(), 0};
  }
  const std::string key = plan_hash(plan) + world;
  const auto found = done_.find(key);
  if (found != done_.end()) return found->second;
  Outcome out;
  try {
    out = run_plan(plan, world);
  } catch (const Refused& e) {  // by the world
    out = {Status::kRefused, e.what(), 0};
  } catch (const std::exception& e) {
    out.why = text("failed: ", e.what());
  }
  out.ranks = num_ranks(plan);
  done_[key] = out;
  const Json row = {{"program", program()},
                    {"case", key},
                    {"status", to_string(out.status)},
                    {"why", out.why},
                    {"ranks", out.ranks},
                    {"gradient_error", out.gradient_error},
                    {"tolerance", out.tolerance}};
  std::ofstream(folder_ + "/done.jsonl", std::ios::app)
      << row.dump(-1, ' ', false, Json::error_handler_t::replace) << "\n";
  return out;
}

Outcome Runner::run_plan(const Plan& plan, const std::string& world) {
  if (world == "mpi") return certified_by_mpi(plan);
  return world == "simulated" ? metered_alike(plan) : certified_on_threads(plan);
}

Outcome Runner::certified_on_threads(const Plan& plan) const {
  const Certificate c = run_threads(plan, registries_, true)[0].certificate;
  return judged(c.verdict, c.reason + c.worst().where, c.gradient.error, c.gradient.bound);
}

Outcome Runner::metered_alike(const Plan& plan) const {
  const std::vector<RankResult> real = run_threads(plan, registries_, false);
  const Prediction predicted = simulate(plan, registries_);
  Outcome out{Status::kEqual, {}, 0};
  for (size_t r = 0; r < real.size(); ++r) {
    const std::string what = difference(predicted.ranks[r], real[r]);
    if (what.empty()) continue;
    out.status = Status::kDifferent;
    out.why = text("rank ", r, ": ", what, " of the simulated world is not that of threads");
    break;
  }
  return out;
}

Outcome Runner::certified_by_mpi(const Plan& plan) const {
  const std::string stem = folder_ + "/mpi_case";
  std::ofstream(stem + ".toml") << to_toml(plan);
  std::error_code ignored;
  const std::string self = std::filesystem::read_symlink("/proc/self/exe", ignored).string();
  const std::string command =
      text("'", build_info::kSourceDir, "/scripts/mpirun.sh' -n ", num_ranks(plan), " '", self,
           "' run '", stem, ".toml' --certify --timeout 60 --json '", stem, ".json' > '", stem,
           ".log' 2>&1");
  std::filesystem::remove(stem + ".json", ignored);
  const int code = std::system(command.c_str());
  if (code != 0) {
    Outcome out;
    out.why = text("mpirun ended with ", WEXITSTATUS(code), ": ",
                   read_file(stem + ".log", "log").substr(0, 400));
    return out;
  }
  const Json c = Json::parse(read_file(stem + ".json", "document"))["certificate"];
  const auto error = [&](const char* name) {
    return c[name].is_number() ? c[name].get<double>() : 0;
  };
  return judged(c["verdict"], c["worst"].is_string() ? c["worst"].get<std::string>() : "",
                error("gradient_error"), error("tolerance"));
}

}  // namespace kuafu::matrix
