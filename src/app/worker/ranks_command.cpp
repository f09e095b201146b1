// SPDX-License-Identifier: Apache-2.0
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "app/worker/document.h"
#include "app/worker/messages.h"
#include "app/worker/mpi_ranks.h"
#include "app/worker/options.h"
#include "kuafu/base/plugin_error.h"
#include "kuafu/base/reason.h"
#include "kuafu/engine/proof/certificate_text.h"
#include "kuafu/record/json_text.h"
#include "kuafu/tensor/tensor.h"

namespace kuafu {
namespace {

File go_to(const std::string& door) {
  sockaddr_un at{};
  at.sun_family = AF_UNIX;
  KUAFU_REQUIRE(door.size() + 1 < sizeof at.sun_path, "--door: too long a name");
  std::copy(door.begin(), door.end(), at.sun_path + 1);
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + door.size());
  File line(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  KUAFU_REQUIRE(::connect(line.descriptor(), reinterpret_cast<sockaddr*>(&at), size) == 0,
                "nobody waits at ", door, ": ", std::strerror(errno));
  return line;
}

Json answer_of(const RankResult& mine, int rank) {
  Json answer = {{"result", to_json(mine)}, {"skipped", mine.skipped}};
  if (rank == 0) answer["certificate"] = words_of(mine.certificate);
  return answer;
}

/// Tells why a plan ended here and waits to be ended: other ranks may be in the middle of a call
/// that this one will never make.
[[noreturn]] void end_with(const Json& error, const File& line) {
  send(line, json_line(error));
  while (true) ::pause();
}

void try_plan(const std::string& words, const Registries& registries, Communicator& world,
              const File& line) {
  const TensorModes modes = registries.tensor_modes();
  const Json asked = Json::parse(words);
  const std::string toml = asked.at("plan");
  const Plan plan = resolve(parse_plan(toml, "plan", registries.choices()), 0, modes);
  const auto ranks = static_cast<int>(num_ranks(plan));
  const auto group = world.split([ranks](int r) { return SplitKey{r < ranks ? 0 : -1, r}; });
  if (group == nullptr) return;
  TrialOptions options{.is_certified = asked.at("is_certified")};
  options.checkpoint.folder = asked.at("checkpoint");
  options.checkpoint.every = asked.at("every");
  options.checkpoint.from = asked.at("from");
  options.checkpoint.resumes = asked.at("resumes");
  const RunOptions run = run_options_of(plan, options);
  send(line, json_line(answer_of(run_rank(plan, registries, *group, run), group->rank())));
}

void serve(const Registries& registries, const std::vector<std::string>& plugins,
           Communicator& world, const File& line) {
  send(line, text(world.rank()));
  while (const auto words = receive(line)) {
    try {
      with_plugins(plugins, [&] { try_plan(*words, registries, world, line); });
    } catch (const OutOfMemory& e) {
      end_with({{"error", "out_of_memory"},
                {"what", what_of(e)},
                {"rank", e.rank},
                {"requested", e.requested},
                {"live", e.live},
                {"budget", e.budget}},
               line);
    } catch (const SaveFailed& e) {
      end_with({{"error", "unsaved"}, {"what", what_of(e)}}, line);
    } catch (const Refused& e) {
      end_with({{"error", "refused"}, {"what", what_of(e)}}, line);
    } catch (const ConfigError& e) {
      end_with({{"error", "config"}, {"what", what_of(e)}}, line);
    } catch (const std::exception& e) {
      end_with({{"error", "other"}, {"what", what_of(e)}}, line);
    }
  }
}

}  // namespace

int ranks_command(const RanksOptions& options) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // with the launcher
  WorkerOptions with_plugins;
  with_plugins.plugins = options.plugins;
  const Registries registries = load_registries(with_plugins);
  initialise_tensors();
  const File line = go_to(options.door);
  const bool is_native = options.mpi_collectives == "native";
  run_on_mpi([&](Communicator& world) { serve(registries, options.plugins, world, line); },
             is_native ? MpiCollectives::kNative : MpiCollectives::kOwn);
  return kOk;
}

}  // namespace kuafu
