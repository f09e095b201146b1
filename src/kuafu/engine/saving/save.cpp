// SPDX-License-Identifier: Apache-2.0
#include "kuafu/engine/saving/save.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <system_error>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "kuafu/base/errors.h"
#include "kuafu/checkpoint/boxes.h"
#include "kuafu/checkpoint/writers.h"
#include "kuafu/comm/gather.h"
#include "kuafu/engine/saving/held_elements.h"
#include "kuafu/engine/saving/saved_run.h"
#include "kuafu/meter/book.h"
#include "kuafu/record/json.h"

namespace kuafu {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

/// Why it failed, in words for all ranks; empty where it did not.
template <class F>
std::string failure_of(const F& work) {
  try {
    work();
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "";
}

/// Whether a checkpoint without this tensor is damaged. Imported weights have no slots yet; a run that
/// was resumed with changes may have slots that the one before had of no parameter.
bool must_have(const Checkpoint& from, const SavedTensor& t, const OptimizerPlan& now) {
  if (t.slot.empty()) return true;
  if (saved_run::is_weights_only(from)) return false;
  OptimizerPlan then = saved_run::plan_of(from, "a checkpoint").optimizer;
  then.schedule_steps = now.schedule_steps;  // a run under --stop-at names its horizon
  if (then == now) return true;
  const std::string all = text(now.kind, ".", t.slot, ".");
  const auto found = from.tensors().lower_bound(all);
  return found != from.tensors().end() && found->first.starts_with(all);
}

/// Cores are for the ranks: this thread writes where they leave one.
void yield_to_ranks() {
  constexpr int kNice = 10;
  ::setpriority(PRIO_PROCESS, static_cast<id_t>(::syscall(SYS_gettid)), kNice);
}

int64_t bytes_of(const TensorPiece& p) { return volume(p.slice.extent) * size_of(p.dtype); }

}  // namespace

Saver::Saver(Engine& engine, Communicator& world, SaveOptions options)
    : engine_(engine), world_(world), options_(std::move(options)), rolling_(options_.rolling) {
  try {
    if (world_.rank() == 0) {
      make_writable_folder(options_.folder, "--checkpoint");
      lock_.emplace(options_.folder, 3s, "--checkpoint");
    }
    check_save_options(options_, engine_.plan());  // again: another run may have saved meanwhile
  } catch (const Unwritten&) {                     // a full disk
    throw;
  } catch (const ConfigError& e) {
    throw UnusableCheckpoints(e.what());
  }
}

void Saver::tell(const std::string& words) const {
  if (options_.on_notice && world_.rank() == 0) options_.on_notice(words);
}

bool Saver::is_due(int64_t steps) const {
  const bool is_last = steps == engine_.plan().train.steps;
  return is_last || (options_.every > 0 && steps % options_.every == 0);
}

void Saver::after_step(const ValidationSeries& validation) {
  const int64_t steps = engine_.steps_done();
  if (pending_) poll();
  if (is_due(steps) || validation.is_best(steps)) save(validation);
  if (steps == engine_.plan().train.steps) finish();
}

void Saver::save_now(const ValidationSeries& validation) {
  if (saved_step_ != engine_.steps_done()) save(validation);
  finish();
}

bool Saver::wants_rolling() const { return world_.rank() == 0 && !pending_ && rolling_.is_due(); }

void Saver::roll(const ValidationSeries& validation) {
  const int64_t step = engine_.steps_done();
  if (saved_step_ == step) return;
  save(validation);
  rolling_.add(step);
}

void Saver::remove_rolled() {
  const bool is_proven = saved_step_ >= 0 && saved_step_ <= sound_;
  if (world_.rank() != 0 || pending_ || is_committing_ || !is_proven) return;
  for (const int64_t step : rolling_.take_before(saved_step_))
    remove_checkpoint(options_.folder, step);
}

void Saver::found_sound(int64_t step) {
  sound_ = step;
  remove_rolled();
  const bool is_on_disk = saved_step_ == step && !pending_ && !is_committing_;
  if (is_on_disk && world_.rank() == 0) rotate();
}

std::string Saver::leave_unsound(int64_t step) {
  finish();
  if (world_.rank() != 0) return "";
  if (sound_ < step) set_aside(options_.folder, step);
  return newest_checkpoint(options_.folder).value_or("");
}

const std::vector<bool>& Saver::my_writes(const std::vector<ParamShard>& shards) {
  if (!writes_) {
    std::vector<HeldPiece> mine;
    for (const ParamShard& s : shards) {
      const HeldElements held = held_by(s, engine_.mesh());
      mine.push_back({held.key(), static_cast<int64_t>(s.value.nbytes())});
    }
    std::vector<std::vector<HeldPiece>> all;
    for (const std::string& words : gather_texts(world_, to_text(mine))) {
      all.push_back(held_pieces_from(words));
    }
    writes_ = assign_writers(all)[static_cast<size_t>(world_.rank())];
  }
  return *writes_;
}

void Saver::save(const ValidationSeries& validation) {
  finish();  // one at a time
  remove_rolled();
  const auto start = std::chrono::steady_clock::now();
  saved_step_ = engine_.steps_done();
  const std::shared_ptr<Pending> saving(new Pending{{options_.folder, saved_step_},
                                                    saved_step_,
                                                    validation.is_best(saved_step_),
                                                    options_.notes});
  saving->state[saved_run::kPlan] = to_toml(engine_.plan());
  saved_run::write_updates(engine_.optimizer().state().num_steps, saved_step_,
                           engine_.loss_scaler(), saving->state);
  saved_run::write_scale(engine_.loss_scaler(), saving->state);
  saved_run::write_validation(validation, saving->state);
  if (saved_telemetry_ != nullptr) saved_run::write_telemetry(*saved_telemetry_, saving->state);
  collect(*saving);
  if (options_.is_async) take_snapshot(*saving);
  agree(failure_of([&] {
    if (world_.rank() == 0) saving->writer.prepare();
  }));  // the folder is there
  const auto when = options_.is_async ? std::launch::async : std::launch::deferred;
  saving->writing = std::async(when, [this, &pending = *saving, rank = world_.rank(), when] {
    if (when == std::launch::async) yield_to_ranks();
    if (when == std::launch::deferred &&
        engine_.optimizer().has_slots_away()) {  // one comes after another
      Tensor now;
      const auto data = [&](size_t i) { return (now = read(pending, i)).const_data_ptr(); };
      pending.writer.write(rank, pending.pieces, data);
      return engine_.optimizer().rest();
    }
    pending.writer.write(rank, pending.pieces,
                         when == std::launch::async ? &pending.pace : nullptr);
  });
  pending_ = saving;
  if (!options_.is_async) finish();
  rolling_.put_off(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
}

void Saver::collect(Pending& into) {
  const CategoryScope scope(Category::kTemporary);
  const BookScope booked(engine_.home_book());
  const at::NoGradGuard no_grad;
  const std::vector<ParamShard> shards = engine_.shards();
  const std::vector<bool>& writes = my_writes(shards);
  const OptimizerState state = engine_.optimizer().state();
  for (const SavedTensor& t : saved_tensors(shards, state, engine_.plan().optimizer.kind)) {
    if (!writes[t.shard]) continue;
    const HeldElements held = held_by(shards[t.shard], engine_.mesh());
    const bool is_away =
        engine_.optimizer().has_slots_away() && !t.slot.empty() && t.slot != "master";
    for (size_t b = 0; b < held.boxes.size(); ++b) {
      if (is_empty(held.inside[b])) continue;
      TensorPiece& piece = into.pieces.emplace_back(
          TensorPiece{t.name, dtype_of(t.tensor), held.param->global, held.inside[b], nullptr});
      saved_bytes_ += bytes_of(piece);
      Tensor& data = into.data.emplace_back();
      std::function<Tensor()>& away = into.away.emplace_back();
      if (is_away) {
        away = [this, t, held, b] {
          engine_.optimizer().bring(t.shard, RuleSlots::Use::kRead);
          return box_of(t.tensor, held, b).contiguous();
        };
        continue;
      }
      const Tensor box = box_of(t.tensor, held, b);
      data = options_.is_async ? box : box.contiguous().cpu();
      piece.data = data.const_data_ptr();
    }
  }
}

Tensor Saver::read(const Pending& of, size_t piece) {
  return of.away[piece] ? of.away[piece]() : of.data[piece].contiguous();
}

void Saver::take_snapshot(Pending& of) {
  const CategoryScope scope(Category::kTemporary);
  const BookScope booked(engine_.home_book());
  const at::NoGradGuard no_grad;
  const auto room = [](const TensorPiece& p) {  // each on a multiple of 64 bytes
    return (bytes_of(p) + 63) / 64 * 64;
  };
  int64_t bytes = 0;
  for (const TensorPiece& p : of.pieces) bytes += room(p);
  if (!snapshot_.defined() || snapshot_.numel() < bytes) snapshot_ = at::empty({bytes}, at::kByte);
  auto* place = static_cast<char*>(snapshot_.mutable_data_ptr());
  for (size_t i = 0; i < of.data.size(); ++i) {
    const Tensor t = of.away[i] ? of.away[i]() : of.data[i];
    at::from_blob(place, t.sizes(), at::TensorOptions(t.scalar_type())).copy_(t);
    of.pieces[i].data = place;
    place += room(of.pieces[i]);
  }
  of.data.clear();
  engine_.optimizer().rest();
}

void Saver::poll() {
  // Asked at every step boundary while a save is under way, so that all ranks make the same calls.
  std::future<void>& writing = pending_->writing;
  std::string why;
  const bool is_ready = writing.valid() && writing.wait_for(0s) == std::future_status::ready;
  if (is_ready) why = failure_of([&] { writing.get(); });
  constexpr int64_t kFailed = -1, kWriting = 0, kDone = 1;
  int64_t least = !why.empty() ? kFailed : writing.valid() ? kWriting : kDone;
  world_.all_reduce({&least, 1, DType::kI64}, ReduceOp::kMin).wait_host();
  if (least == kWriting) return;
  const auto saved = std::exchange(pending_, nullptr);
  if (least == kFailed) agree(why);
  is_committing_ = true;
  if (world_.rank() != 0) return;
  committing_ = std::async(std::launch::async, [saved, this] { commit(*saved); });
}

void Saver::finish() {
  if (const auto saved = std::exchange(pending_, nullptr)) {
    saved->pace.hurry();
    agree(failure_of([&] {
      if (saved->writing.valid()) saved->writing.get();
    }));  // all files are there
    agree(failure_of([&] {
      if (world_.rank() == 0) commit(*saved);
    }));
    ++num_saves_;
  }
  if (!std::exchange(is_committing_, false)) return;
  agree(failure_of([&] {
    if (committing_.valid()) committing_.get();
  }));
  ++num_saves_;
}

void Saver::agree(const std::string& why) {
  for (const std::string& words : gather_texts(world_, why)) {
    if (!words.empty()) throw SaveFailed(words);
  }
}

void Saver::commit(const Pending& saved) const {
  saved.writer.commit(world_.size(), saved.state);
  if (saved.is_best) name_best(options_.folder, saved.step);
  rotate();
}

void Saver::rotate() const {
  const Rotation rotation{.keep = options_.keep, .sound = sound_};
  if (options_.keep > 0) remove_checkpoints(options_.folder, rotation);
}

std::vector<std::string> Saver::found_checkpoints() {
  Json found = {{"folders", Json::array()}, {"link", nullptr}};
  if (world_.rank() == 0) {
    found["folders"] = checkpoints(options_.folder);
    if (const auto link = linked_checkpoint(options_.folder)) found["link"] = *link;
    if (found["folders"].empty() && !options_.from.empty()) {
      found["folders"].push_back(named_checkpoint(options_.from));
    }
  }
  found = Json::parse(gather_texts(world_, found.dump())[0]);
  if (found["link"].is_string()) {
    const std::string why =
        text(found["link"].get<std::string>(),
             " is a link, which no run makes; allowed: the folder in its place");
    if (found["folders"].empty()) throw UnusableCheckpoints(why);
    tell(text("checkpoint passed over: ", why));
  }
  return found["folders"].get<std::vector<std::string>>();
}

std::optional<int64_t> Saver::resume() {
  const std::vector<std::string> found = found_checkpoints();
  std::string reasons;
  for (const std::string& folder : found) {
    std::string why;
    DType saved_type = engine_.plan().model.dtype;
    int64_t step = 0;
    try {
      const Checkpoint from(folder);
      load(from, folder);
      step = from.step();
      changes_.clear();
      if (!saved_run::is_weights_only(from)) {
        const Plan saved = saved_run::plan_of(from, folder);
        changes_ = resume_changes(saved, engine_.plan());
        saved_type = saved.model.dtype;
      }
      validation_ = saved_run::read_validation(from, folder, engine_.plan());
      telemetry_ = saved_run::read_telemetry(from, folder, engine_.layer_names());
    } catch (const ConfigError& e) {
      why = e.what();
    }
    for (const std::string& words : gather_texts(world_, why)) {
      if (why.empty()) why = words;
    }
    if (why.empty()) {
      if (saved_type != engine_.plan().model.dtype) {
        tell(text(folder, " was saved in ", to_string(saved_type), "; the run goes on in ",
                  to_string(engine_.plan().model.dtype)));
      }
      engine_.go_on_from(step);
      go_on_in(folder, step);
      return step;
    }
    reasons += "\n  " + why;
    tell(text("checkpoint ", folder, " is passed over: ", why));
  }
  if (!found.empty()) {
    const std::string where =
        checkpoints(options_.folder).empty() ? options_.from : options_.folder;
    throw UnusableCheckpoints(text("no checkpoint of ", where, " can be used:", reasons));
  }
  tell(text(options_.folder, " holds no checkpoint yet: the run starts anew"));
  return {};
}

void Saver::go_on_in(const std::string& folder, int64_t step) {
  std::error_code error;
  if (!fs::equivalent(fs::path(folder).parent_path(), options_.folder, error)) {
    validation_ = {};  // another run's
    telemetry_ = {};
    return;
  }
  saved_step_ = step;
  rolling_.put_off(0);
  agree(failure_of([&] {  // a kill may have come between a save and its link
    const auto best = validation_.best();
    if (world_.rank() != 0 || !best) return;
    const int64_t lowest = validation_.steps[*best];
    const std::string there = options_.folder + "/" + step_folder(lowest);
    if (fs::exists(there) &&
        step_of_folder(best_checkpoint(options_.folder).value_or("")) != lowest)
      name_best(options_.folder, lowest);
  }));
}

void Saver::load(const Checkpoint& from, const std::string& folder) {
  const CategoryScope scope(Category::kTemporary);
  const at::NoGradGuard no_grad;
  saved_run::check_consistent(from, folder);
  const std::vector<ParamShard> shards = engine_.shards();
  for (const ParamShard& s : shards) fill(s.value, held_by(s, engine_.mesh()), from, s.param->name);
  engine_.optimizer().begin(shards, saved_run::read_updates(from, folder));
  const OptimizerState state = engine_.optimizer().state();
  for (const SavedTensor& t : saved_tensors(shards, state, engine_.plan().optimizer.kind)) {
    const bool is_there = from.tensors().contains(t.name);
    if (is_there || must_have(from, t, engine_.plan().optimizer)) {
      engine_.optimizer().bring(t.shard, RuleSlots::Use::kChange);
      fill(t.tensor, held_by(shards[t.shard], engine_.mesh()), from, t.name);
    }
  }
  engine_.optimizer().rest();
  saved_run::read_scale(from, engine_.loss_scaler());
}

}  // namespace kuafu
