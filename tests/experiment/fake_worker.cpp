// SPDX-License-Identifier: Apache-2.0
//
// Stands in for kuafu-worker where a runner is tested: takes the same command line, trains nothing,
// and ends in the way that the last word of `data.path` names ("ok", "refuse", "hang", ...).

#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <stdexcept>
#include <string>

#include "kuafu/base/config.h"
#include "kuafu/base/errors.h"
#include "kuafu/base/philox.h"
#include "kuafu/base/reason.h"
#include "kuafu/record/schema.h"
#include "tests/record/support.h"

namespace kuafu::test {
namespace {

struct Call {
  std::string plan, json, world = "mpi";
  int64_t ranks = 1;
  bool is_certified = false;  ///< asked for: so it is of a suite's first round
};

Call read_call(int argc, char** argv) {
  Call call;
  KUAFU_REQUIRE(argc > 2 && std::string(argv[1]) == "run", "expected: run PLAN ...");
  call.plan = argv[2];
  for (int i = 3; i + 1 < argc; ++i) {
    const std::string word = argv[i];
    call.is_certified = call.is_certified || word == "--certify";
    if (word == "--json") call.json = argv[i + 1];
    if (word == "--ranks") call.ranks = std::atoll(argv[i + 1]);
    if (word == "--world") call.world = argv[i + 1];
  }
  return call;
}

void write_document(const Call& call, const Json& document) {
  write_text(call.json + ".part", document.dump(1));
  std::rename((call.json + ".part").c_str(), call.json.c_str());
}

Json document_of_status(const Call& call, const std::string& status, const std::string& reason) {
  return {{"status", status}, {"reason", reason}, {"world", call.world}, {"ranks", call.ranks}};
}

[[noreturn]] void sleep_for_ever() {
  while (true) ::pause();
}

/// A process in a session of its own, as MPI launchers make them; its number goes beside the
/// document.
void leave_grandchild(const Call& call) {
  if (::fork() != 0) return;
  ::setsid();
  if (::fork() != 0) ::_exit(0);
  write_text(call.json + ".grandchild", text(::getpid()));
  sleep_for_ever();
}

void wait_for_grandchild(const Call& call) {
  while (read_text(call.json + ".grandchild").empty()) ::usleep(1000);
}

Json good_document(const Call& call) {
  const auto tag = static_cast<int64_t>(
      hash_name(to_string(parse_toml(read_text(call.plan), call.plan))) % 1000);
  Json document = sample_document(call.ranks, tag);
  document["world"] = call.world;
  return document;
}

int succeed(const Call& call, const Json& certificate = nullptr, int code = 0) {
  Json document = good_document(call);
  if (!certificate.is_null()) document["certificate"] = certificate;
  write_document(call, document);
  return code;
}

/// The first time in this folder.
bool is_first(const Call& call) {
  const std::string mark = call.json + ".seen";
  const bool is_new = read_text(mark).empty();
  write_text(mark, "seen");
  return is_new;
}

int run_out_of_memory(const Call& call, int64_t budget) {
  Json document = document_of_status(call, "out_of_memory", "rank 1 asked for 4096 bytes");
  document["out_of_memory"] = {
      {"rank", 1}, {"requested_bytes", 4096}, {"live_bytes", 100}, {"budget_bytes", budget}};
  write_document(call, document);
  return 4;
}

/// Behaviours of the rounds after the first.
int act_later(const std::string& how, const Call& call) {
  if (call.is_certified) return succeed(call);
  if (how == "throw_later") throw std::runtime_error("thrown on purpose");
  if (how == "kill_once_later") {
    if (is_first(call)) ::raise(SIGKILL);
    return succeed(call);
  }
  Json document = good_document(call);
  document["loss"][4] = 0.125;
  if (how == "stale_later") document["pushes"] = Json::object();
  if (how == "elsewhere_later") document["provenance"]["cpu_model"] = "another";
  write_document(call, document);
  return 0;
}

/// Behaviours that change: the second run ends well.
int act_once(const std::string& how, const Call& call) {
  if (!is_first(call)) return succeed(call);
  if (how == "throw_once") throw std::runtime_error("thrown on purpose");
  if (how == "bad_alloc_once") throw std::bad_alloc();
  if (how == "kill_once") ::raise(SIGKILL);
  if (how == "rank_killed_once") return 128 + SIGKILL;
  if (how == "refused_memory_once") return run_out_of_memory(call, 0);
  if (how == "budget_once") return run_out_of_memory(call, 1000);
  if (how == "hang_once") sleep_for_ever();
  if (how == "full_once") {
    std::cerr << "kuafu: " << call.json << ": No space left on device\n";
    return 7;
  }
  if (how == "late_proof_once") {
    return succeed(call, {{"verdict", "not_run"},
                          {"reason", text(kCutShort, ": the case took longer than 0.3 s")}});
  }
  if (how == "starved_check_once") {
    return succeed(call, {{"verdict", "not_run"}, {"reason", reason_of(OutOfMemory(0, 9, 0, 0))}});
  }
  if (how == "starved_proof_once") {
    return succeed(call, {{"verdict", "not_run"},
                          {"reason", text(kCutShort, ": ", reason_of(OutOfMemory(0, 9, 0, 0)))}});
  }
  if (how == "unwritten_proof_once") {  // a full disk cut the document of the certificate off
    succeed(call, {{"verdict", "not_run"}, {"reason", kCutShort}});
    return 7;
  }
  if (how == "launcher_killed_once") {  // mpirun by SIGTERM, and no rank had the time to say so
    return succeed(call, {{"verdict", "not_run"}, {"reason", kCutShort}}, 1);
  }
  if (how == "exit_told_once") {  // a plug-in called exit(1) on a rank
    const std::string told = text(kCutShort, ": rank 1 called exit(1) in the middle of the run");
    return succeed(call, {{"verdict", "not_run"}, {"reason", told}}, 1);
  }
  if (how == "library_once") {
    std::cerr << "libgomp: Thread creation failed: Resource temporarily unavailable\n";
    write_document(
        call, document_of_status(call, "failed", "rank 0 called exit(1) in the middle of the run"));
    return 1;
  }
  if (how == "wordless_once") return 1;
  if (how == "talking_once") {
    std::cerr << "something called exit(1)\n";
    return 1;
  }
  if (how == "loader_once") {
    std::cerr
        << "error while loading shared libraries: libtorch_cpu.so: failed to map segment from "
           "shared object\n";
    return 127;
  }
  if (how == "mpi_once") {
    std::cerr << "[vm:22871] *** An error occurred in MPI_Init_thread\n";
    return 1;
  }
  throw ConfigError(text("unknown behaviour ", how));
}

int act(const std::string& how, const Call& call) {
  if (how.ends_with("_once")) return act_once(how, call);
  if (how.ends_with("_later")) return act_later(how, call);
  if (how == "ok") return succeed(call);
  if (how == "late") {  // it has measured all and does not end
    succeed(call);
    sleep_for_ever();
  }
  if (how == "different" || how == "shrugs") {
    const Json refuted = {{"verdict", "different"}, {"gradient_error", 0.25}, {"tolerance", 1e-9}};
    return succeed(call, refuted, how == "different" ? 1 : 0);
  }
  if (how == "of_another_commit") {
    Json document = good_document(call);
    document["provenance"]["git_commit"] = "0123abc";
    write_document(call, document);
    return 0;
  }
  if (how == "not_run") {
    return succeed(call, {{"verdict", "not_run"}, {"reason", "no legal miniature"}});
  }
  if (how == "slow") {
    ::usleep(30'000);
    return succeed(call);
  }
  if (how == "refuse") {
    write_document(call,
                   document_of_status(call, "refused", "2 ranks are no square; nearest: 1, 4"));
    return 3;
  }
  if (how == "out_of_memory") return run_out_of_memory(call, 1000);
  if (how == "throw") throw std::runtime_error("thrown on purpose");
  if (how == "abort") std::abort();
  if (how == "crash") {
    ::signal(SIGSEGV, SIG_DFL);  // not what a sanitizer makes of it
    ::raise(SIGSEGV);
  }
  if (how == "silent") return 0;
  if (how == "usage") {
    std::cerr << "kuafu: the corpus is not there\n";
    return 2;
  }
  if (how == "broken") {
    write_document(call, {{"status", "fine"}});
    return 0;
  }
  if (how == "liar") {
    succeed(call);
    return 1;
  }
  if (how == "hang") {
    std::cerr << "rank 1 waits for rank 0\n";
    sleep_for_ever();
  }
  if (how == "grandchild_hang" || how == "grandchild_ok") {
    leave_grandchild(call);
    wait_for_grandchild(call);
    if (how == "grandchild_hang") sleep_for_ever();
    return succeed(call);
  }
  throw ConfigError(text("unknown behaviour ", how));
}

}  // namespace
}  // namespace kuafu::test

int main(int argc, char** argv) {
  using namespace kuafu;
  const test::Call call = test::read_call(argc, argv);
  for (int i = 1; i < argc; ++i) std::cout << argv[i] << std::endl;
  const ConfigValue plan = parse_toml(read_file(call.plan, "plan"), call.plan);
  const ConfigValue* data = plan.find("data");
  const ConfigValue* path = data == nullptr ? nullptr : data->find("path");
  const std::filesystem::path behaviour = path == nullptr ? "ok" : path->string;
  return test::act(behaviour.filename(), call);
}
