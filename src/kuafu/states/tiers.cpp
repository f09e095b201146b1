// SPDX-License-Identifier: Apache-2.0
//
// What is in use beside the chunks at each moment was foretold, or is not known before it was seen:
// then the first training step is played by "host" without prefetch, which needs the least, and
// measured (a warm-up). From then on the policy has the whole trace. Steps of which no update follows
// (validation), and engines of which nobody keeps books (certificates), are played like a warm-up; but
// forwards that are alike and foretold, one a generated token, are the policy's, each a step of one
// trace without an update.

#include "kuafu/states/tiers.h"

#include <unistd.h>

#include <algorithm>
#include <limits>

#include <ATen/ATen.h>

#include "kuafu/base/errors.h"
#include "kuafu/base/plugin_error.h"
#include "kuafu/base/trace.h"
#include "kuafu/memory/play.h"
#include "kuafu/meter/allocator.h"
#include "kuafu/plan/plan.h"

namespace kuafu {
namespace {

using device::Direction;

/// Beyond all sums of bytes, and their sum is not beyond 2^63 - 1.
constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max() / 4;

/// Address space behind the budget of a device: for scratch, which no budget counts, headers of
/// blocks, and what fragmentation costs.
int64_t reserve_of(int64_t budget) { return (int64_t{64} << 20) + budget / 4; }

int64_t physical_bytes() { return int64_t{::sysconf(_SC_PHYS_PAGES)} * ::sysconf(_SC_PAGESIZE); }

}  // namespace

int64_t TierOptions::budget() const { return device > 0 ? device : kUnlimited; }

std::optional<TierOptions> tier_options(const Plan& plan, const memory::PolicyRules& policies) {
  const MemoryPlan& m = plan.memory;
  if (!m.has_tiers()) return {};
  TierOptions options{
      .name = m.policy,
      .policy = policies.find(m.policy),
      .knobs = {.prefetch = m.prefetch,
                .static_share = m.static_share,
                .margin = m.margin,
                .horizon = m.horizon == "cycle" ? memory::Horizon::kCycle : memory::Horizon::kStep},
      .device = m.device.value_or(0),
      .host = m.host.value_or(0),
      .has_activations = m.has_activations_away()};
  if (m.throttle) options.host_gbs = plan.cluster.host_gbs;
  if (!m.has_disk()) return options;
  options.disk = DiskTier{.folder = m.disk_path,
                          .bytes = m.disk.value_or(0),
                          .chunk_bytes = m.chunk_size,
                          .ahead = m.prefetch};
  if (m.throttle) options.disk->gbs = plan.cluster.disk_gbs;
  options.has_gradients_on_disk = m.has_gradients_on_disk();
  if (options.has_gradients_on_disk) {
    options.disk->link = std::make_shared<device::SharedLink>(options.disk->gbs);
  }
  return options;
}

RankBook device_book(const Plan& plan, int rank, at::Device device) {
  const int64_t budget = plan.memory.device.value_or(0);
  if (!plan.memory.has_tiers()) return RankBook(rank, budget);
  const int64_t space = budget > 0 ? budget + reserve_of(budget) : physical_bytes();
  return RankBook(
      rank, TierBook{.tier = "device", .budget = budget, .arena = device.is_cpu() ? space : 0});
}

MoveCounts MoveCounts::stretched(int64_t recorded, int64_t steps) const {
  MoveCounts all = *this;
  const int64_t more = std::max<int64_t>(0, steps - recorded);
  all.to_device += more * step_to_device;
  all.foretold += more * step_to_device;
  all.to_host += more * step_to_host;
  all.disk.read += more * disk.step_read;
  all.disk.written += more * disk.step_written;
  all.activations += more * step_activations;
  const int64_t chosen = std::max<int64_t>(1, recorded - warm_ups);  // steps that the policy played
  all.prefetches += more * (prefetches / chosen);
  all.prefetch_hits += more * (prefetch_hits / chosen);
  return all;
}

Tiers::Tiers(const TierOptions& options, at::Device device)
    : options_(options), device_(current_book()), copies_(!device.is_meta(), options.host_gbs) {
  KUAFU_REQUIRE(device.is_cpu() || device.is_meta(), "tiers of memory on ", device.str(),
                ": this build moves chunks on CPU ranks alone; use memory.policy = \"plain\"");
  if (device_ != nullptr) {
    const int64_t space =
        options.host > 0 ? options.host + reserve_of(options.host) : physical_bytes();
    host_ = std::make_unique<RankBook>(device_->rank(),
                                       TierBook{.tier = "host",
                                                .budget = options.host,
                                                .arena = copies_.has_memory() ? space : 0,
                                                .is_traced = false});
    host_->put_beside(*device_);
    device_->put_beside(*host_);
  }
  if (options.has_activations) {
    activations_ = std::make_unique<AwayActivations>(copies_, host_.get());
  }
}

Tiers::~Tiers() = default;

int Tiers::add(const Tensor& home, const Tensor& here, const std::string& group) {
  KUAFU_CHECK(home.numel() == here.numel() && home.is_contiguous(), "a chunk of ", group, " has ",
              home.numel(), " elements at home and ", here.numel(), " on the device");
  chunks_.push_back({home, here, group});
  ++counts_.chunks;
  return static_cast<int>(chunks_.size()) - 1;
}

void Tiers::put_homes_on_disk(const std::vector<StateFile::Row>& rows) {
  homes_ = std::make_unique<StateFile>(
      options_.disk.value(), rows, host_.get(),
      StatesOnDisk{.name = "parameters", .category = Category::kParameter, .has_lone_rows = true});
}

void Tiers::bring(int chunk, StateFile::Use use) {
  if (!homes_) return;
  wait_for_home();
  homes_->use(static_cast<size_t>(chunk), use);
}

void Tiers::rest() {
  if (!homes_) return;
  wait_for_home();
  homes_->rest();
}

void Tiers::wait_for_home() {
  if (read_from_) copies_.wait(chunks_[*read_from_].load);
  read_from_.reset();
}

/// Each of them that is not on the device, in the order of the first uses.
void Tiers::expect_homes(const std::vector<std::vector<int>>& reads) {
  if (!homes_) return;
  wait_for_home();
  homes_->begin_step();
  std::vector<size_t> rows;
  std::vector<bool> is_known(chunks_.size());
  for (const std::vector<int>& chunks : reads) {
    for (const int chunk : chunks) {
      const auto c = static_cast<size_t>(chunk);
      if (chunks_[c].is_here || is_known[c]) continue;
      is_known[c] = true;
      rows.push_back(c);
    }
  }
  homes_->expect(rows);
}

/// f(). Moves that break a rule are told with the policy that chose them.
template <class F>
auto Tiers::told(const F& f) const {
  try {
    return f();
  } catch (const ConfigError& e) {
    throw PluginError(text("memory.policy = ", in_quotes(options_.name), ": ", e.what()));
  }
}

memory::UseTrace Tiers::trace_of(const std::vector<std::vector<int>>& reads, Then then) const {
  memory::UseTrace trace;
  for (const TierChunk& chunk : chunks_) {
    trace.chunks.push_back(
        {.bytes = static_cast<int64_t>(chunk.home.nbytes()), .group = chunk.group});
  }
  for (const std::vector<int>& chunks : reads) {
    memory::Moment& moment = trace.moments.emplace_back();
    for (const int c : chunks) moment.uses.push_back({c, memory::Access::kRead});
  }
  if (then == Then::kUpdate) {
    memory::Moment& update = trace.moments.emplace_back();
    for (int64_t c = 0; c < trace.num_chunks(); ++c) {
      update.uses.push_back({c, memory::Access::kAtHome});
    }
  }
  return trace;
}

std::unique_ptr<Tiers::Course> Tiers::course_of(const std::vector<std::vector<int>>& reads,
                                                Then then,
                                                const std::vector<int64_t>* in_use) const {
  auto course = std::make_unique<Course>();
  memory::UseTrace& trace = course->trace;
  trace = trace_of(reads, then);
  course->budget = kUnlimited;
  course->policy = memory::host_policy;
  if (in_use != nullptr) {
    for (size_t t = 0; t < in_use->size(); ++t) trace.moments[t].in_use = (*in_use)[t];
    course->budget = options_.budget();
    course->knobs = options_.knobs;
  }
  memory::check(trace);
  if (in_use != nullptr) {
    memory::check_fits(trace, course->budget);
    course->policy = memory::policy_of(options_.policy, trace, course->budget);
  }
  course->player =
      std::make_unique<memory::Player>(trace, course->budget, course->policy, course->knobs);
  if (then == Then::kUpdate) {
    const memory::Played played =
        told([&] { return memory::play(trace, course->budget, course->policy, course->knobs); });
    course->foretold = played.traffic.loaded / played.steps;
  }
  return course;
}

void Tiers::begin(const std::vector<std::vector<int>>& reads, Then then) {
  if (is_measuring_) note_in_use();  // of the update
  moment_ = 0;
  is_measuring_ = false;
  is_training_ = then == Then::kUpdate;
  if (!is_training_ && is_alike_ && begin_alike(reads)) return expect_homes(reads);
  drop_all();
  expect_homes(reads);
  copies_.count_waits(is_training_ ? &counts_.wait_seconds : nullptr);
  held_to_.reset();
  if (std::exchange(is_mended_, false)) steady_ = nullptr;
  if (is_training_ && reads != reads_) {
    reads_ = reads;
    in_use_ = std::exchange(foretold_, {});
    steady_ = nullptr;
    if (in_use_.size() == reads.size() + 1) held_to_ = 0;
  }
  const bool is_measured = in_use_.size() == reads.size() + 1;
  if (is_training_ && is_measured) {
    if (!steady_) steady_ = course_of(reads, then, &in_use_);
    now_ = steady_.get();
  } else {
    other_ = course_of(reads, then, nullptr);
    now_ = other_.get();
  }
  if (!is_training_) {
    seen_.clear();
    is_measuring_ = is_alike_ && device_ != nullptr;
    return;
  }
  is_measuring_ = device_ != nullptr && (!is_measured || held_to_);
  if (!is_measured) in_use_.clear();
  for (const Direction queue : {Direction::kToDevice, Direction::kToHost}) {
    before_[static_cast<size_t>(queue)] = copied(queue);
  }
  activations_before_ = activations_ ? activations_->bytes() : 0;
}

/// The device holds what the forward before has left there, where it was alike too.
bool Tiers::begin_alike(const std::vector<std::vector<int>>& reads) {
  if (alike_in_use_.size() != reads.size()) return false;
  if (now_ == nullptr || now_ != alike_.get() || reads != alike_reads_) {
    drop_all();
    alike_reads_ = reads;
    try {
      alike_ = course_of(reads, Then::kNothing, &alike_in_use_);
    } catch (const memory::DoesNotFit&) {
      alike_in_use_.clear();
      return false;
    }
  }
  copies_.count_waits(nullptr);
  now_ = alike_.get();
  return true;
}

std::vector<int64_t> Tiers::seen_in_use() {
  if (std::exchange(is_measuring_, false)) note_in_use();
  return seen_;
}

/// Of the moment that ends here.
void Tiers::note_in_use() {
  if (device_ == nullptr) return;
  const int64_t in_use = device_->take_most() - bytes_here();
  if (!is_training_) return seen_.push_back(in_use);
  if (!held_to_) return in_use_.push_back(in_use);
  const size_t moment = (*held_to_)++;
  if (in_use == in_use_.at(moment)) return;
  KUAFU_CHECK(!is_exact_, "moment ", moment, " of the first step has ", in_use,
              " bytes in use on the device beside its chunks; foretold were ", in_use_[moment]);
  in_use_[moment] = in_use;  // what is chosen from the next step on follows from it
  is_mended_ = true;
}

void Tiers::foretell(std::vector<int64_t> in_use, bool is_exact) {
  foretold_ = std::move(in_use);
  is_exact_ = is_exact;
}

memory::UseTrace Tiers::uses() {
  if (steady_) return steady_->trace;
  const bool is_made = is_measuring_ && moment_ == reads_.size() + 1;
  if (is_made && in_use_.size() < moment_) note_in_use();
  if (in_use_.size() != reads_.size() + 1) return {};
  memory::UseTrace trace = trace_of(reads_, Then::kUpdate);
  for (size_t t = 0; t < in_use_.size(); ++t) trace.moments[t].in_use = in_use_[t];
  return trace;
}

void Tiers::next() {
  KUAFU_CHECK(now_ != nullptr && moment_ < now_->trace.moments.size(), "moment ", moment_,
              " of a step that has fewer");
  if (is_measuring_ && moment_ > 0) note_in_use();
  const memory::Player::Moment moment = told([&] { return now_->player->next(); });
  for (const memory::Move& move : moment.moves) {
    if (move.kind == memory::MoveKind::kDrop) drop(chunks_[static_cast<size_t>(move.chunk)]);
  }
  if (is_measuring_) device_->take_most();  // what has left is none of this moment's
  for (const memory::Move& move : moment.moves) {
    if (move.kind == memory::MoveKind::kLoad) load(chunks_[static_cast<size_t>(move.chunk)]);
  }
  for (const memory::ChunkUse& use : now_->trace.moments[moment_].uses) {
    if (memory::needs_device(use.access))
      copies_.wait(chunks_[static_cast<size_t>(use.chunk)].load);
  }
  ++moment_;
}

void Tiers::go_home() {
  arrive();
  if (now_ == nullptr || moment_ + 1 != now_->trace.moments.size() || !is_training_) {
    return drop_all();  // a step that was left, or is none of an optimizer
  }
  next();
  const auto of_step = [this](Direction queue) {
    return copied(queue) - before_[static_cast<size_t>(queue)];
  };
  counts_.step_to_device = of_step(Direction::kToDevice);
  counts_.step_to_host = of_step(Direction::kToHost);
  counts_.to_device += counts_.step_to_device;
  counts_.to_host += counts_.step_to_host;
  counts_.foretold += now_->foretold;
  if (activations_) counts_.step_activations = activations_->bytes() - activations_before_;
  counts_.activations += counts_.step_activations;
  if (now_ != steady_.get()) ++counts_.warm_ups;
}

int64_t Tiers::copied(Direction queue) const {
  return copies_.copied(queue) - (activations_ ? activations_->bytes() : 0);
}

void Tiers::load(TierChunk& chunk) {
  const CategoryScope scope(Category::kParameter);
  allocate_storage(chunk.here, static_cast<int64_t>(chunk.home.nbytes()));
  let_pages_leave(chunk.here);
  const auto number = static_cast<size_t>(&chunk - chunks_.data());
  bring(static_cast<int>(number), StateFile::Use::kRead);
  read_from_ = number;
  chunk.load = copies_.copy(Direction::kToDevice, chunk.here, chunk.home, "parameter");
  chunk.is_here = true;
  loaded_ += static_cast<int64_t>(chunk.home.nbytes());
}

void Tiers::drop(TierChunk& chunk) {
  copies_.wait(chunk.load);
  free_storage(chunk.here);
  chunk.is_here = false;
}

void Tiers::drop_all() {
  for (TierChunk& chunk : chunks_) {
    if (chunk.is_here) drop(chunk);
  }
}

int64_t Tiers::bytes_here() const {
  int64_t bytes = 0;
  for (const TierChunk& chunk : chunks_) {
    if (chunk.is_here) bytes += static_cast<int64_t>(chunk.home.nbytes());
  }
  return bytes;
}

Tensor Tiers::leave(const Tensor& gradient, Tensor there) {
  if (!there.defined()) {
    const BookScope where(host_.get());
    const CategoryScope scope(Category::kGradient);
    there = at::empty(gradient.sizes(), gradient.options());
  }
  leaving_.push_back({gradient, copies_.copy(Direction::kToHost, there, gradient, "gradient")});
  return there;
}

void Tiers::arrive() {
  for (Leaving& leaving : leaving_) copies_.wait(leaving.copy);
  leaving_.clear();
}

MoveCounts Tiers::counts() const {
  MoveCounts all = counts_;
  if (host_) all.host_peak = host_->peak();
  if (steady_) {
    all.prefetches = steady_->player->prefetches();
    all.prefetch_hits = steady_->player->prefetch_hits();
  }
  return all;
}

}  // namespace kuafu
