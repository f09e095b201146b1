// SPDX-License-Identifier: Apache-2.0
#include "kuafu/engine/save.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "kuafu/base/config.h"
#include "kuafu/base/errors.h"
#include "kuafu/checkpoint/boxes.h"
#include "kuafu/checkpoint/claims.h"
#include "kuafu/checkpoint/weights.h"
#include "kuafu/comm/gather.h"
#include "kuafu/engine/held_elements.h"
#include "kuafu/meter/book.h"
#include "kuafu/record/json.h"

namespace kuafu {
namespace {

// Strings of the saved state.
constexpr const char* kPlan = "plan";
constexpr const char* kOptimizerSteps = "optimizer_steps";
constexpr const char* kLossScale = "loss_scale";  // all three where a run has had one
constexpr const char* kGoodSteps = "loss_scale_good_steps";
constexpr const char* kSkippedSteps = "skipped_steps";

/// Nothing of a run that never scaled its loss, so that its checkpoints are as they were.
void write_scale(const LossScaler& scaler, Metadata& state) {
  const LossScale& now = scaler.state();
  if (!scaler.is_active() && now.skipped == 0) return;
  state[kLossScale] = toml_number(now.scale);
  state[kGoodSteps] = text(now.good_steps);
  state[kSkippedSteps] = text(now.skipped);
}

void read_scale(const Checkpoint& from, LossScaler& scaler) {
  if (!from.state().contains(kLossScale)) return;
  scaler.restore({.scale = from.state_number(kLossScale),
                  .good_steps = from.state_count(kGoodSteps),
                  .skipped = from.state_count(kSkippedSteps)});
}

Plan saved_plan(const Checkpoint& from, const std::string& folder) {
  const auto toml = from.state().find(kPlan);
  KUAFU_REQUIRE(toml != from.state().end(), folder, " holds no run: it has no ", kPlan);
  return parse_values(toml->second, text("the plan of ", folder));
}

/// Imported, not saved by a run: there is a model, and nothing was learned by any plan.
bool is_weights_only(const Checkpoint& from) { return from.state().contains(weights::kStateKey); }

void check_agreement(const Checkpoint& from, const std::string& folder, const Plan& plan,
                     ResumeChanges changes) {
  if (is_weights_only(from)) return check_same_model(saved_plan(from, folder), plan, folder);
  check_resumable(saved_plan(from, folder), plan, folder, changes);
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
  for (const Json& c : Json::parse(words)) {
    claims.push_back({c.at(0).get<std::string>(), c.at(1).get<int64_t>()});
  }
  return claims;
}

bool is_ready(const std::future<void>& f) {
  return f.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

/// Cores are for the ranks: this thread writes where they leave one.
void yield_to_ranks() {
  constexpr int kNice = 10;
  ::setpriority(PRIO_PROCESS, static_cast<id_t>(::syscall(SYS_gettid)), kNice);
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
    return check_agreement(*from, folder, plan, options.changes);
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
  if (pending_) poll();
  if (is_last || (options_.every > 0 && steps % options_.every == 0)) save();
  if (is_last) finish();
}

void Saver::save_now() {
  if (saved_step_ != engine_.steps_done()) save();
  finish();
}

const std::vector<bool>& Saver::my_writes(const std::vector<ParamShard>& shards) {
  if (writes_.empty()) {
    std::vector<Claim> mine;
    for (const ParamShard& s : shards) {
      const HeldElements held = held_by(s, engine_.mesh());
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
  finish();  // one at a time
  saved_step_ = engine_.steps_done();
  const std::shared_ptr<Pending> saving(
      new Pending{{options_.folder, engine_.steps_done()}, options_.notes, {}, {}, {}, {}});
  saving->state[kPlan] = to_toml(engine_.plan());
  saving->state[kOptimizerSteps] = text(engine_.optimizer().state().num_steps);
  write_scale(engine_.loss_scaler(), saving->state);
  collect(*saving);
  if (options_.is_async) take_snapshot(*saving);
  if (world_.rank() == 0) saving->writer.prepare();
  world_.barrier();  // the folder is there
  const auto when = options_.is_async ? std::launch::async : std::launch::deferred;
  saving->writing = std::async(when, [&pending = *saving, rank = world_.rank(), when] {
    if (when == std::launch::async) yield_to_ranks();
    pending.writer.write(rank, pending.pieces,
                         when == std::launch::async ? &pending.pace : nullptr);
  });
  pending_ = saving;
  ++num_saves_;
  if (!options_.is_async) finish();
}

void Saver::collect(Pending& into) {
  const CategoryScope scope(Category::kTemporary);
  const at::NoGradGuard no_grad;
  const std::vector<ParamShard> shards = engine_.shards();
  const std::vector<bool>& writes = my_writes(shards);
  const OptimizerState state = engine_.optimizer().state();
  for (const SavedTensor& t : saved_tensors(shards, state, engine_.plan().optimizer.kind)) {
    if (!writes[t.shard]) continue;
    const HeldElements held = held_by(shards[t.shard], engine_.mesh());
    for (size_t b = 0; b < held.boxes.size(); ++b) {
      if (is_empty(held.inside[b])) continue;
      const Tensor box = box_of(t.tensor, held, b);
      into.data.push_back(options_.is_async ? box : box.contiguous().cpu());
      into.pieces.push_back({t.name, dtype_of(box), held.param->global, held.inside[b],
                             into.data.back().const_data_ptr()});
      saved_bytes_ += static_cast<int64_t>(box.nbytes());
    }
  }
}

void Saver::take_snapshot(Pending& of) {
  const CategoryScope scope(Category::kTemporary);
  const at::NoGradGuard no_grad;
  const auto room = [](const Tensor& t) {  // each on a multiple of 64 bytes
    return (static_cast<int64_t>(t.nbytes()) + 63) / 64 * 64;
  };
  int64_t bytes = 0;
  for (const Tensor& t : of.data) bytes += room(t);
  if (!snapshot_.defined() || snapshot_.numel() < bytes) snapshot_ = at::empty({bytes}, at::kByte);
  auto* place = static_cast<char*>(snapshot_.mutable_data_ptr());
  for (size_t i = 0; i < of.data.size(); ++i) {
    const Tensor& t = of.data[i];
    at::from_blob(place, t.sizes(), at::TensorOptions(t.scalar_type())).copy_(t);
    of.pieces[i].data = place;
    place += room(t);
  }
  of.data.clear();
}

void Saver::poll() {
  // Asked at every step boundary while a save is under way, so that all ranks make the same calls.
  std::future<void>& writing = pending_->writing;
  if (writing.valid() && is_ready(writing)) writing.get();  // throws what went wrong
  int64_t is_done = writing.valid() ? 0 : 1;
  world_.all_reduce({&is_done, 1, DType::kI64}, ReduceOp::kMin).wait_host();
  if (is_done == 0) return;
  if (world_.rank() == 0) {
    committing_ = std::async(std::launch::async, [saved = pending_, this] { commit(*saved); });
  }
  pending_.reset();
}

void Saver::finish() {
  if (pending_) {
    pending_->pace.hurry();
    if (pending_->writing.valid()) pending_->writing.get();
    world_.barrier();  // all files are there
    if (world_.rank() == 0) commit(*pending_);
    pending_.reset();
  }
  if (committing_.valid()) committing_.get();
}

void Saver::commit(const Pending& saved) const {
  saved.writer.commit(world_.size(), saved.state);
  if (options_.keep > 0) remove_checkpoints(options_.folder, options_.keep);
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
      changes_.clear();
      if (!is_weights_only(from))
        changes_ = resume_changes(saved_plan(from, folder), engine_.plan());
    } catch (const ConfigError& e) {
      why = e.what();
    }
    for (const std::string& words : gather_texts(world_, why)) {
      if (why.empty()) why = words;
    }
    if (why.empty()) {
      engine_.go_on_from(step);
      saved_step_ = step;
      return step;
    }
    reasons += "\n  " + why;
    if (options_.on_notice && world_.rank() == 0) {
      options_.on_notice(text("checkpoint ", folder, " is passed over: ", why));
    }
  }
  KUAFU_REQUIRE(found.empty(), "no checkpoint of ", options_.folder, " can be used:", reasons);
  if (options_.on_notice && world_.rank() == 0) {
    options_.on_notice(text(options_.folder, " holds no checkpoint yet: the run starts anew"));
  }
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
  engine_.optimizer().begin(stepped, from.state_count(kOptimizerSteps));
  for (const ParamShard& s : shards) fill(s.value, held_by(s, engine_.mesh()), from, s.param->name);
  const OptimizerState state = engine_.optimizer().state();
  for (const SavedTensor& t : saved_tensors(shards, state, kind)) {
    fill(t.tensor, held_by(shards[t.shard], engine_.mesh()), from, t.name);
  }
  read_scale(from, engine_.loss_scaler());
}

}  // namespace kuafu
