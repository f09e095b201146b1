// SPDX-License-Identifier: Apache-2.0
#include "kuafu/engine/proof/certificate.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <future>
#include <limits>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <utility>

#include "kuafu/comm/gather.h"
#include "kuafu/engine/plain_words.h"
#include "kuafu/engine/proof/certificate_replay.h"
#include "kuafu/engine/proof/certificate_step.h"
#include "kuafu/engine/proof/certificate_text.h"
#include "kuafu/engine/proof/check_queue.h"
#include "kuafu/engine/proof/miniature.h"
#include "kuafu/engine/proof/witness.h"
#include "kuafu/meter/book.h"

namespace kuafu {
namespace {

/// All digits: of two numbers that differ in the last bits.
std::string in_full(double number) {
  std::array<char, 32> digits;
  return {digits.data(), std::to_chars(digits.data(), digits.data() + digits.size(), number).ptr};
}

/// The same bits: NaN is equal to none, not to itself.
bool is_same(double a, double b) {
  return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b);
}

/// Parameters, gradients, AdamW state and the largest activations of one copy, roughly: decides
/// between "full" and "scaled" only.
int64_t estimated_bytes(const Plan& plan) {
  const ModelPlan& m = plan.model;
  const int64_t mixtures = m.has_mixtures() ? m.layers / m.moe_every : 0;
  const int64_t mlp = (m.mlp == "swiglu" ? 3 : 2) * m.hidden * m.ffn_width();
  const int64_t weights = m.layers * (4 * m.hidden * m.hidden + mlp) +
                          ((m.tied ? 1 : 2) * m.vocab + m.sequence) * m.hidden +
                          mixtures * (m.experts + m.shared_experts) * mlp;
  const int64_t tokens = plan.train.batch * m.sequence;
  // The reference keeps the scores of attention whole: their exponentials, and what both hand back.
  const int64_t scores = 4 * m.heads * m.sequence;
  const int64_t activations =
      tokens * (m.layers * (12 * m.hidden + 2 * m.ffn_width() + scores) + 3 * m.vocab);
  return 8 * (6 * weights + activations);
}

/// How many checks may run at once: a core each, and room for what each reads and makes.
int64_t num_checks(const Plan& plan, int64_t memory_limit) {
  const int64_t room = memory_limit / std::max<int64_t>(2 * estimated_bytes(plan), 1);
  cpu_set_t cores;
  const bool is_known = ::sched_getaffinity(::getpid(), sizeof cores, &cores) == 0;
  return std::min<int64_t>(room, is_known ? CPU_COUNT(&cores) : 1);
}

/// A plan whose steps are compared: lives until the last check of one has ended.
struct Proven {
  Plan plan;
  std::unique_ptr<Dataset> data;
  std::unique_ptr<CertificateReference> reference = nullptr;  ///< rank 0 only
};

/// Of steps that follow each other: the first measures rounding, the checks of the others wait for
/// it, and measure their own where it never came to that.
struct FollowingSteps {
  RoundingOf first, later;
};
FollowingSteps following_steps() {
  struct Told {
    std::promise<ReferenceError> promise;
    std::optional<ReferenceError> rounding;
  };
  const auto told = std::make_shared<Told>();  // of the first alone, which may be compared again
  const auto known = told->promise.get_future().share();
  return {.first =
              [told](const auto& measure) {
                if (!told->rounding) {
                  told->rounding = measure();
                  told->promise.set_value(*told->rounding);
                }
                return *told->rounding;
              },
          .later =
              [known](const auto& measure) {
                try {
                  return known.get();
                } catch (const std::future_error&) {
                  return measure();
                }
              }};
}

/// Everything that certifying takes, on one rank.
class Certification {
 public:
  using MakeData = std::function<std::unique_ptr<Dataset>(const Plan&)>;
  /// `threads`: checks that run at once.
  Certification(const Registries& registries, Communicator& world, const MakeData& make_data,
                const EngineOptions& options, const TimedRun& timed, Certificate& c,
                int64_t threads)
      : registries_(registries),
        world_(world),
        make_data_(make_data),
        options_(options),
        is_resumed_(timed.is_resumed),
        validation_loss_(timed.validation_loss),
        on_refuted_(timed.on_refuted),
        c_(c),
        checks_(threads) {
    options_.ledger = nullptr;
    options_.on_checked = [this](const std::string& refused) { agree(refused, world_); };
  }

  /// The f64 twin.
  void run_twin(Plan plan, Certificate& c) {
    plan.train.steps = std::max<int64_t>(plan.train.steps, kCertificateSteps);
    if (plan.has_dynamic_scale()) plan.train.loss_scale = TrainPlan::kDynamicScale;
    last_compared_ = {};
    scale_memory(plan.memory, size_of(DType::kF64) / size_of(plan.model.dtype));
    plan.model.dtype = DType::kF64;
    run_part(c, [&] { prove(plan, nullptr, kCertificateSteps, c, nullptr, Ops::kAny); });
  }

  /// Elements of `times` as many bytes: chunks of as many of them, and budgets for as many.
  static void scale_memory(MemoryPlan& m, int64_t times) {
    m.chunk_size *= times;
    for (std::optional<int64_t>* budget : {&m.device, &m.host, &m.disk}) {
      if (*budget) **budget *= times;
    }
  }

  /// The plan itself, as it was timed.
  void run_native(const Plan& plan, const Witness* witness, Proof& proof) {
    run_part(proof, [&] {
      if (witness == nullptr) {
        const int64_t steps = std::min(plan.train.steps, kCertificateSteps);
        if (steps > 0) prove(plan, nullptr, steps, proof, nullptr, Ops::kBooked);
      } else {
        for (const Snapshot& from : witness->snapshots()) {
          const bool is_first = from.step == witness->first();
          const int64_t left = plan.train.steps - from.step;
          const int64_t steps = is_first ? std::min(left, kCertificateSteps) : 1;
          prove(plan, &from, steps, proof, witness, is_first ? Ops::kBooked : Ops::kAny);
        }
      }
    });
  }

  /// Waits for the checks of all proofs.
  void finish() {
    await([this] { return checks_.is_finished(kPatience); });
    tell_refuted();
  }
  static void judge(Proof& proof) {
    if (proof.steps.empty() && proof.reason.empty()) proof.reason = "no step was made";
    proof.judge();
  }

 private:
  void tell_refuted() {
    if (world_.rank() != 0 || !on_refuted_) return;
    Certificate so_far = c_;
    so_far.native.judge();
    so_far.judge();
    so_far.conclude();
    if (so_far.verdict == "different") std::exchange(on_refuted_, {})(so_far);
  }

  /// Ranks that wait for rank 0 hear from it: a world gives up one that says nothing for minutes.
  static constexpr std::chrono::seconds kPatience{60};
  void await(const std::function<bool()>& is_done) {
    while (true) {
      const bool goes_on = world_.rank() == 0 && !is_done();
      if (gather_texts(world_, goes_on ? "checks" : "")[0].empty()) return;
    }
  }

  /// Refusals before the first step, on which ranks agree: what could not be certified, and why.
  /// Others end the run, as they do everywhere, and so does what a rank of several meets in a step:
  /// the others may be waiting for it.
  void run_part(Proof& proof, const std::function<void()>& part) {
    try {
      part();
    } catch (const ConfigError& e) {
      if (is_stepping_ && world_.size() > 1) throw;
      checks_.finish();
      proof.give_up(e.what());
    }
  }

  /// kBooked: the first step of a proof is watched for ops of LibTorch that nothing books, whose work is
  /// in no count.
  enum class Ops : uint8_t { kAny, kBooked };
  /// Makes steps of a plan, from a snapshot of it or from the start, and has each checked.
  void prove(const Plan& plan, const Snapshot* from, int64_t steps, Proof& proof,
             const Witness* witness, Ops ops) {
    const auto proven = std::make_shared<Proven>(plan, make_data_(plan));
    // Policies of tiers choose by what is in use beside the chunks, which a book alone knows.
    RankBook book(world_.rank());
    RankBook* const booked = plan.memory.has_tiers() ? &book : nullptr;
    std::optional<Engine> made;
    is_stepping_ = false;
    std::string refused;
    try {
      const BookScope scope(booked);
      made.emplace(proven->plan, registries_, world_, *proven->data, options_);
      if (from != nullptr) go_back_to(*from, *made);
    } catch (const ConfigError& e) {
      refused = e.what();
    }
    agree(refused, world_);
    Engine& engine = *made;
    is_stepping_ = true;
    if (proof.verdict == "not_run" && proof.reason.empty()) proof.verdict = "equal";
    if (world_.rank() == 0) make_reference_of(*proven, engine, proof);
    WholeState state = whole_state(engine, world_);
    // Later steps follow no other that was compared: they are looked at closer.
    const bool is_later = witness != nullptr && from->step != witness->first();
    const bool has_blocks = registries_.oracles.contains(plan.model.kind);
    const Look look = is_later && has_blocks ? Look::kBlocksToo : Look::kWhole;
    FollowingSteps following = following_steps();
    for (int64_t step = 0; step < steps; ++step) {
      await([this] { return checks_.has_room(kPatience); });
      std::set<std::string> unbooked;
      const auto e = std::make_shared<Evidence>(observe(
          engine, world_, std::move(state), look, booked,
          ops == Ops::kBooked && step == 0 && options_.device.is_cpu() ? &unbooked : nullptr));
      if (from != nullptr && is_resumed_) {
        e->is_first = false;
        e->more_updates = witness->snapshots().front().more_updates();
      }
      state = e->after;
      e->is_after_compared = last_compared_ && *last_compared_ + 1 == e->step;
      last_compared_ = e->step;
      std::vector<std::string> unlike_run = told_by_ranks(
          unbooked.empty() ? ""
                           : text(*unbooked.begin(),
                                  " of a step is booked by nothing: its work is in no count"));
      for (std::string& why : told_by_ranks(unmoved(engine))) unlike_run.push_back(std::move(why));
      for (std::string& why : unlike_reports(*e)) unlike_run.push_back(std::move(why));
      if (witness != nullptr) {
        for (std::string& why : differences(engine, *e, *witness))
          unlike_run.push_back(std::move(why));
      }
      if (!e->diverged.empty()) steps = 0;  // there is no further one
      if (world_.rank() != 0) continue;
      const bool is_last =
          witness != nullptr && e->diverged.empty() && e->step + 1 == plan.train.steps;
      const std::optional<double> validation = is_last ? validation_loss_ : std::nullopt;
      const auto check = [proven, e, validation,
                          rounding = std::exchange(following.first, following.later),
                          &rules = registries_.updates](Proof& part) {
        check_step(proven->plan, *e, *proven->reference, rounding, part, rules);
        if (!validation || part.verdict == "not_run") return;
        check_validation(proven->plan, e->after.values, *validation, *proven->reference, part);
      };
      checks_.add(proof, proven->reference == nullptr ? CheckQueue::Check{} : check,
                  std::move(unlike_run), proven->reference && proven->reference->is_stateless());
      tell_refuted();
    }
  }

  /// Chunks that are on the device without having come there; empty: none are.
  static std::string unmoved(const Engine& engine) {
    const MoveCounts moves = engine.moves();
    if (moves.chunks == 0 || moves.step_to_device > 0) return {};
    return text(moves.chunks, " chunks of parameters lie on the host, and none came to the device");
  }

  void make_reference_of(Proven& proven, Engine& engine, Proof& proof) {
    if (proof.verdict == "not_run") return;
    std::string why;
    try {
      proven.reference =
          make_reference(proven.plan, registries_, *proven.data, engine.all_params());
      return;
    } catch (const UnlikeWeights& error) {
      checks_.finish();
      return proof.refute(error.what());
    } catch (const std::exception& error) {
      why = words_of_oracle(error);
    } catch (...) {
      why = kNoException;
    }
    checks_.finish();
    proof.give_up(why);
  }

  /// Loss, norm and state after the timed run's step, to the bit: what differs, of all ranks.
  std::vector<std::string> differences(Engine& engine, const Evidence& e, const Witness& witness) {
    const auto place = static_cast<size_t>(e.step - witness.first());
    const bool was_made = place < witness.reports().size(), is_made = e.diverged.empty();
    const StepReport timed = was_made ? witness.reports()[place] : StepReport{};
    std::string why;
    if (was_made != is_made) {
      why = text("step ", e.step + 1, " of the run ", was_made ? "was made" : "diverged",
                 "; made again from the same state: ",
                 is_made ? text("loss ", e.report.loss) : e.diverged);
    } else if (!is_made) {
      // The reference is asked whether it was right to end there.
    } else if (!is_same(timed.loss, e.report.loss) ||
               !is_same(timed.grad_norm, e.report.grad_norm)) {
      why = text("step ", e.step + 1, " of the run had loss ", in_full(timed.loss),
                 " and gradient norm ", in_full(timed.grad_norm),
                 "; made again from the same state: ", in_full(e.report.loss), " and ",
                 in_full(e.report.grad_norm));
    }
    const std::optional<uint64_t> after = witness.hash_after(e.step);
    if (why.empty() && is_made && after && *after != hash_of(engine)) {
      why = text("step ", e.step + 1, " of the run left rank ", world_.rank(),
                 " with other bits than the same step made again");
    }
    return told_by_ranks(why);
  }

  /// Ranks whose report of a step is not the first's, which is the one that is compared and printed.
  std::vector<std::string> unlike_reports(const Evidence& e) {
    if (!e.diverged.empty()) return {};
    std::array<char, 96> exact{};
    std::snprintf(exact.data(), exact.size(), "loss %.17g and gradient norm %.17g", e.report.loss,
                  e.report.grad_norm);
    const std::vector<std::string> all = gather_texts(world_, exact.data());
    std::vector<std::string> unlike;
    for (size_t r = 1; r < all.size(); ++r) {
      if (all[r] == all[0]) continue;
      unlike.push_back(
          text("step ", e.step + 1, ": rank ", r, " reports ", all[r], ", rank 0 ", all[0]));
    }
    return unlike;
  }

  std::vector<std::string> told_by_ranks(const std::string& why) {
    std::vector<std::string> all = gather_texts(world_, why);
    std::erase(all, std::string());
    return all;
  }

  const Registries& registries_;
  Communicator& world_;
  const MakeData& make_data_;
  EngineOptions options_;
  bool is_resumed_;
  std::optional<double> validation_loss_;
  std::function<void(const Certificate& so_far)> on_refuted_;  ///< null once it was called
  const Certificate& c_;
  std::optional<int64_t> last_compared_;  ///< of the part that is being proven
  bool is_stepping_ = false;              ///< its engine is made on all ranks
  CheckQueue checks_;
};

/// Lines of a text that another one has not: of a miniature what was cut, whatever else the plan says.
std::string lines_beyond(const std::string& text, const std::string& other) {
  std::set<std::string> known;
  std::string line, out;
  for (std::istringstream in(other); std::getline(in, line);) known.insert(line);
  for (std::istringstream in(text); std::getline(in, line);) {
    if (!known.contains(line)) out += line + "\n";
  }
  return out;
}

/// Whether a document ends inside a window of one of these steps, so that a mask hides something.
bool has_documents(const Dataset& data, const Plan& plan, const std::vector<int64_t>& steps) {
  return std::ranges::any_of(steps, [&](int64_t step) {
    const Tokens t = data.train(step * plan.train.batch, plan.train.batch);
    for (size_t i = 0; i < t.inputs.size(); ++i) {
      const bool is_last = static_cast<int64_t>(i + 1) % t.sequence == 0;
      if (!is_last && t.inputs[i] == t.end_token) return true;
    }
    return false;
  });
}

/// A step that was skipped has neither gradient nor update to compare.
void require_gradients(const Plan& plan, Proof& native) {
  if (native.verdict != "equal" || !native.gradient.where.empty() || !native.blocks.where.empty())
    return;
  native.give_up(text(
      "every step that was compared was skipped, since a gradient overflowed: no gradient and no "
      "update was compared; lower ",
      plan.has_dynamic_scale() ? "train.loss_scale_start" : "train.loss_scale"));
}

/// What the native part could not see, though it was there. Rank 0 tells all.
void tell_unseen(const Plan& plan, bool has_validation,
                 const std::function<std::unique_ptr<Dataset>(const Plan&)>& make_data,
                 Certificate& c) {
  const auto leave_unseen = [&](const char* what) {
    c.native.unseen += text(c.native.unseen.empty() ? "" : "; ", what);
  };
  if (c.level == "scaled" && has_validation) {
    leave_unseen("the validation loss of the run, which is compared of whole models alone");
  }
  if (plan.data.document_mask && !c.native.steps.empty() &&
      !has_documents(*make_data(plan), plan, c.native.steps)) {
    leave_unseen("data.document_mask: no document ends inside a window of the steps compared");
  }
}

}  // namespace

void Measure::add(double e, double b, const std::string& name) {
  if (std::isnan(e)) e = std::numeric_limits<double>::infinity();
  const bool is_nearer = error == 0 ? e > 0 : e / b > error / bound;
  if (bound != 0 && !is_nearer) return;
  error = e;
  bound = b;
  where = name;
}

void Proof::take(const Proof& part) {
  for (Measure Proof::*m :
       {&Proof::loss, &Proof::gradient, &Proof::routes, &Proof::blocks, &Proof::update}) {
    const Measure& found = part.*m;
    if (!found.where.empty()) (this->*m).add(found.error, found.bound, found.where);
  }
  steps.insert(steps.end(), part.steps.begin(), part.steps.end());
  random_rounding = std::max(random_rounding, part.random_rounding);
  if (unseen.empty()) unseen = part.unseen;
  if (part.verdict == "different" && !part.reason.empty()) refute(part.reason);
  if (part.verdict == "not_run") give_up(part.reason);
}

void Proof::refute(const std::string& why) {
  if (verdict != "different" || reason.empty()) reason = why;
  verdict = "different";
}

void Proof::give_up(const std::string& why) {
  judge();
  if (verdict == "different") return;
  verdict = "not_run";
  reason = why;
}

void Proof::judge() {
  if (holds() || verdict == "different") return;
  verdict = "different";
  reason.clear();
}

const Measure& Proof::worst() const {
  const Measure* most = &gradient;
  for (const Measure* m : {&loss, &routes, &blocks, &update}) {
    const auto share = [](const Measure& x) { return x.bound > 0 ? x.error / x.bound : 0; };
    if (share(*m) > share(*most)) most = m;
  }
  return *most;
}

double Proof::ratio() const {
  const Measure& m = worst();
  return m.error > 0 ? m.bound / m.error : 0;
}

std::string Proof::why_far() const {
  if (steps.empty()) return {};
  if (worst().error == 0) return "everything compared has the bits of the reference";
  const auto is_far = [](const Measure& m) { return m.error > 0 && m.error * kFarRatio < m.bound; };
  if (is_far(gradient) || is_far(blocks) || is_far(update)) return kUnexplained;
  return is_far(loss) ? kOneNumber : is_far(routes) ? kFewRoutes : "";
}

std::string Proof::describe() const {
  const auto one = [](const Measure& m) {
    return text(m.error, " of ", m.bound, " (", m.where, ")");
  };
  return text(verdict, reason.empty() ? "" : ": ", reason, "; loss ", one(loss),
              gradient.where.empty() ? "" : ", gradient " + one(gradient),
              routes.where.empty() ? "" : ", routes " + one(routes),
              blocks.where.empty() ? "" : ", blocks " + one(blocks), ", update ", one(update),
              random_rounding > 0 ? text(", by random rounding of ", random_rounding) : "",
              unseen.empty() ? "" : text(", blind to ", unseen));
}

void Certificate::conclude() {
  const bool is_weaker = verdict == "equal" ? native.verdict != "equal"
                                            : verdict == "not_run" && native.verdict == "different";
  if (!is_weaker) return;
  verdict = native.verdict;
  reason = native.reason;
}

bool is_certified_whole(const Plan& plan, int64_t memory_limit) {
  return 2 * estimated_bytes(plan) <= memory_limit;
}

Certificate certify(const Plan& original, const Registries& registries, Communicator& world,
                    const std::function<std::unique_ptr<Dataset>(const Plan&)>& make_data,
                    const EngineOptions& options, int64_t memory_limit, const TimedRun& given,
                    int64_t threads) {
  const BookScope unbooked(nullptr);
  Certificate c;
  TimedRun timed = given;
  Plan plan = original;
  if (!is_certified_whole(plan, memory_limit)) {
    const Miniature small = miniature(plan, registries);
    c.level = c.native.level = "scaled";
    try {
      agree(small.reason, world);
      const std::string cut = lines_beyond(whole_toml(*small.plan), whole_toml(plan));
      agree(gather_texts(world, cut)[0] == cut ? "" : "its miniature is another", world);
    } catch (const ConfigError& e) {
      c.reason = c.native.reason = e.what();
      return c;
    }
    plan = *small.plan;
    timed = {.last_step = given.last_step, .on_refuted = given.on_refuted};
  }
  if (!registries.oracles.contains(plan.model.kind)) c.reference = "engine";
  if (is_replayed(plan)) {
    certify_replayed(plan, registries, world, make_data, options, timed.pushed, c);
    require_gradients(plan, c.native);
    c.conclude();
    if (world.rank() == 0) tell_unseen(plan, given.validation_loss.has_value(), make_data, c);
    return shared(c, world);
  }
  Certification certification(registries, world, make_data, options, timed, c,
                              threads > 0 ? threads : num_checks(plan, memory_limit));
  if (timed.last_step != nullptr) {
    c.native = *timed.last_step;
  } else {
    certification.run_native(plan, timed.witness, c.native);
  }
  const bool is_twin = plan.model.dtype == DType::kF64 && plan.train.steps >= kCertificateSteps &&
                       timed.last_step == nullptr;
  certification.finish();  // what ends the twin takes nothing from what is known by then
  if (!is_twin) {
    certification.run_twin(plan, c);
    certification.finish();
  }
  certification.judge(c.native);
  if (!is_twin) certification.judge(c);
  if (is_twin) static_cast<Proof&>(c) = c.native;
  require_gradients(plan, c.native);
  if (c.level == "scaled" && !given.diverged.empty()) {
    c.native.give_up(text("the run has diverged (", given.diverged,
                          "), and whether it was right to no smaller model can say"));
  }
  if (world.rank() == 0) tell_unseen(plan, given.validation_loss.has_value(), make_data, c);
  c.conclude();
  return shared(c, world);
}

}  // namespace kuafu
