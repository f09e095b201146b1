// SPDX-License-Identifier: Apache-2.0
#include "kuafu/engine/save.h"

#include <ATen/ATen.h>

#include "kuafu/base/errors.h"
#include "kuafu/checkpoint/boxes.h"
#include "kuafu/checkpoint/claims.h"
#include "kuafu/comm/gather.h"
#include "kuafu/engine/held.h"
#include "kuafu/meter/book.h"
#include "kuafu/plan/resume.h"
#include "kuafu/record/json.h"

namespace kuafu {
namespace {

// Strings of the saved state.
constexpr const char* kPlan = "plan";
constexpr const char* kOptimizerSteps = "optimizer_steps";

Plan saved_plan(const Checkpoint& from, const std::string& folder) {
  const auto toml = from.state().find(kPlan);
  KUAFU_REQUIRE(toml != from.state().end(), folder, " holds no run: it has no ", kPlan);
  return parse_values(toml->second, text("the plan of ", folder));
}

void check_agreement(const Checkpoint& from, const std::string& folder, const Plan& plan) {
  check_resumable(saved_plan(from, folder), plan, folder);
  KUAFU_REQUIRE(from.step() <= plan.train.steps, folder, " is ", from.step(),
                " steps far, the plan ends after train.steps = ", plan.train.steps,
                "; set train.steps to ", from.step(), " or more");
}

/// Claims of a rank as text and back.
std::string to_text(const std::vector<Claim>& claims) {
  Json list = Json::array();
  for (const Claim& c : claims) list.push_back({c.key, c.bytes});
  return list.dump();
}

std::vector<Claim> claims_from(const std::string& words) {
  std::vector<Claim> claims;
  for (const Json& c : Json::parse(words)) claims.push_back({c.at(0), c.at(1)});
  return claims;
}

}  // namespace

void check_save_options(const SaveOptions& options, const Plan& plan) {
  const std::vector<std::string> complete = complete_checkpoints(options.folder);
  KUAFU_REQUIRE(complete.empty() || options.resumes, "--checkpoint ", options.folder,
                " holds the checkpoints of another run, the newest ", complete.front(),
                "; add --resume to go on from it, or choose another folder");
  for (const std::string& folder : complete) {
    std::optional<Checkpoint> from;
    try {
      from.emplace(folder);
    } catch (const ConfigError&) {
      continue;  // damaged: passed over, and told of, when it is loaded
    }
    return check_agreement(*from, folder, plan);
  }
}

Saver::Saver(Engine& engine, Communicator& world, SaveOptions options)
    : engine_(engine), world_(world), options_(std::move(options)) {
  check_save_options(options_, engine_.plan());
  if (world_.rank() != 0) return;
  make_writable_folder(options_.folder, "--checkpoint");
  lock_.emplace(options_.folder, std::chrono::seconds(3), "--checkpoint");
}

void Saver::after_step() {
  const int64_t steps = engine_.steps_done();
  const bool is_last = steps == engine_.plan().train.steps;
  if (is_last || (options_.every > 0 && steps % options_.every == 0)) save();
}

const std::vector<bool>& Saver::my_writes(const std::vector<ParamShard>& shards) {
  if (writes_.empty()) {
    std::vector<Claim> mine;
    for (const ParamShard& s : shards) {
      const Held held = held_by(s, engine_.mesh());
      mine.push_back({held.key(), static_cast<int64_t>(s.value.nbytes())});
    }
    std::vector<std::vector<Claim>> all;
    for (const std::string& words : gather_texts(world_, to_text(mine))) {
      all.push_back(claims_from(words));
    }
    writes_ = assign_writers(all)[static_cast<size_t>(world_.rank())];
  }
  return writes_;
}

void Saver::save() {
  const CategoryScope scope(Category::kTemporary);
  const at::NoGradGuard no_grad;
  const std::vector<ParamShard> shards = engine_.shards();
  const std::vector<bool>& writes = my_writes(shards);
  const OptimizerState state = engine_.optimizer().state();
  Tensors kept;  // the pieces' data
  std::vector<Piece> pieces;
  for (const SavedTensor& t : saved_tensors(shards, state, engine_.plan().optimizer.kind)) {
    if (!writes[t.shard]) continue;
    const Held held = held_by(shards[t.shard], engine_.mesh());
    for (size_t b = 0; b < held.boxes.size(); ++b) {
      if (is_empty(held.inside[b])) continue;
      kept.push_back(box_of(t.tensor, held, b).contiguous().cpu());
      pieces.push_back({t.name, dtype_of(kept.back()), held.param->global, held.inside[b],
                        kept.back().const_data_ptr()});
    }
  }
  for (const Tensor& t : kept) saved_bytes_ += static_cast<int64_t>(t.nbytes());

  const CheckpointWriter writer(options_.folder, engine_.steps_done());
  if (world_.rank() == 0) writer.prepare();
  world_.barrier();  // the folder is there
  writer.write(world_.rank(), pieces);
  world_.barrier();  // so are all files
  if (world_.rank() == 0) {
    Metadata strings = options_.notes;
    strings[kPlan] = to_toml(engine_.plan());
    strings[kOptimizerSteps] = text(state.num_steps);
    writer.commit(world_.size(), strings);
    if (options_.keep > 0) remove_checkpoints(options_.folder, options_.keep);
  }
  ++num_saves_;
}

std::optional<int64_t> Saver::resume() {
  // Rank 0 decides what there is: another rank's view of the folder may lag behind.
  Json found = Json::array();
  if (world_.rank() == 0) found = complete_checkpoints(options_.folder);
  found = Json::parse(gather_texts(world_, found.dump())[0]);
  std::string reasons;
  for (const auto& folder : found.get<std::vector<std::string>>()) {
    std::string why;
    int64_t step = 0;
    try {
      const Checkpoint from(folder);
      load(from);
      step = from.step();
    } catch (const ConfigError& e) {
      why = e.what();
    }
    for (const std::string& words : gather_texts(world_, why)) {
      if (why.empty()) why = words;
    }
    if (why.empty()) {
      engine_.go_on_from(step);
      return step;
    }
    reasons += "\n  " + why;
    if (options_.on_notice && world_.rank() == 0) {
      options_.on_notice(text("checkpoint ", folder, " is passed over: ", why));
    }
  }
  KUAFU_REQUIRE(found.empty(), "no checkpoint of ", options_.folder, " can be used:", reasons);
  return {};
}

void Saver::load(const Checkpoint& from) {
  const CategoryScope scope(Category::kTemporary);
  const at::NoGradGuard no_grad;
  const std::vector<ParamShard> shards = engine_.shards();
  const std::string& kind = engine_.plan().optimizer.kind;
  std::vector<ParamShard> stepped;  // a parameter that no step used has no state
  for (const ParamShard& s : shards) {
    if (has_state(from, kind, s.param->name)) stepped.push_back(s);
  }
  engine_.optimizer().begin(stepped, std::stoll(from.state().at(kOptimizerSteps)));
  for (const ParamShard& s : shards) fill(s.value, held_by(s, engine_.mesh()), from, s.param->name);
  const OptimizerState state = engine_.optimizer().state();
  for (const SavedTensor& t : saved_tensors(shards, state, kind)) {
    fill(t.tensor, held_by(shards[t.shard], engine_.mesh()), from, t.name);
  }
}

}  // namespace kuafu
