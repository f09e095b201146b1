// SPDX-License-Identifier: Apache-2.0
#include "app/worker/same_on_ranks.h"

#include <algorithm>

#include "app/worker/plan_json.h"
#include "kuafu/base/build_info.h"
#include "kuafu/base/kernel_choice.h"
#include "kuafu/record/json_text.h"
#include "kuafu/record/provenance.h"

namespace kuafu {
namespace {

using Json = nlohmann::ordered_json;

/// "plan.data.hash" of "/plan/data/hash".
std::string dotted(std::string pointer) {
  std::replace(pointer.begin(), pointer.end(), '/', '.');
  return pointer.substr(1);
}

/// The first value that two ranks have differently: "plan.train.steps is 3 on rank 0 and 4 on rank 1".
std::string difference(const Json& first, const Json& other, int rank) {
  const Json a = first.flatten(), b = other.flatten();
  const auto at = [](const Json& all, const std::string& key) {
    return all.contains(key) ? json_excerpt(all[key]) : std::string("not there");
  };
  for (const Json* all : {&a, &b}) {
    for (const auto& [key, value] : all->items()) {
      if (at(a, key) == at(b, key)) continue;
      return text(dotted(key), " is ", at(a, key), " on rank 0 and ", at(b, key), " on rank ",
                  rank);
    }
  }
  return "";
}

constexpr int kTag = 0;

// By messages alone: ranks with other --mpi-collectives understand them too.
void send_text(Communicator& world, const std::string& words, int to) {
  std::string sent = words;
  auto length = static_cast<int64_t>(sent.size());
  world.send({&length, 1, DType::kI64}, to, kTag).wait_host();
  if (length > 0) world.send({sent.data(), length, DType::kU8}, to, kTag).wait_host();
}

std::string receive_text(Communicator& world, int from) {
  int64_t length = 0;
  world.recv({&length, 1, DType::kI64}, from, kTag).wait_host();
  std::string words(static_cast<size_t>(length), '\0');
  if (length > 0) world.recv({words.data(), length, DType::kU8}, from, kTag).wait_host();
  return words;
}

/// Those that change what a rank does or says to others; absent where they were not given.
void add_options(Json& all, const WorkerOptions& o) {
  const WorkerOptions none;
  const auto add = [&all](const char* name, const auto& value, const auto& without) {
    if (value != without) all[name] = value;
  };
  all["--mpi-collectives"] = o.mpi_collectives.empty() ? "own" : o.mpi_collectives;
  add("--certify-memory", o.certify_memory, none.certify_memory);
  add("--no-meter", !o.is_metered, !none.is_metered);
  add("--timeout", o.timeout_s, none.timeout_s);
  add("--stop-after", o.stop_after_s, none.stop_after_s);
  add("--stop-at", o.stop_at, none.stop_at);
  add("--log", o.log_file, none.log_file);
  add("--log-every", o.log_every, none.log_every);
  add("--tensorboard", o.tensorboard, none.tensorboard);
  add("--trace", o.trace_file, none.trace_file);
  add("--timeline", o.timeline_file, none.timeline_file);
  add("--checkpoint", o.checkpoint, none.checkpoint);
  add("--every", o.save_every, none.save_every);
  add("--keep", o.keep, none.keep);
  add("--from", o.begin_from, none.begin_from);
  add("--init", o.init, none.init);
  add("--resume", o.is_resumed, none.is_resumed);
  add("--resume-with-changes", o.is_resumed_with_changes, none.is_resumed_with_changes);
  add("--async", o.is_save_async, none.is_save_async);
}

}  // namespace

Json read_by_this_rank(const Plan& plan, const WorkerOptions& options) {
  Json all = {{"plan", plan_json(plan)},
              {"program", std::string(git_state().commit)},
              {"kernels", std::string(to_string(kernel_choice()))},
              {"plugins", plugin_hashes(options.plugins)},
              {"certify", options.is_certified}};
  // The corpus is known by its bytes: each machine may have it in a place of its own.
  if (!plan.data.hash.empty()) {
    for (const char* place : {"path", "tokenizer"}) all["plan"]["data"].erase(place);
  }
  add_options(all, options);
  return all;
}

void check_same_on_ranks(Communicator& world, const Json& mine) {
  const std::string words = json_line(mine);
  std::string found;
  if (world.rank() != 0) {
    send_text(world, words, 0);
    found = receive_text(world, 0);
  } else {
    for (int r = 1; r < world.size(); ++r) {
      const std::string theirs = receive_text(world, r);
      if (found.empty() && theirs != words) found = difference(mine, Json::parse(theirs), r);
    }
    for (int r = 1; r < world.size(); ++r) send_text(world, found, r);
  }
  if (found.empty()) return;
  throw RanksDiffer(text("ranks were given different things: ", found,
                         "; give all ranks the same plan, data, program, options and plug-ins"));
}

}  // namespace kuafu
