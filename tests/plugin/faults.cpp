// SPDX-License-Identifier: Apache-2.0
//
// Tensor schemes out of tree that go wrong in the middle of a run: 1D, until rank 1 of the group
// does what the scheme's name says in its 6th contraction, which lies in the second step of a model
// of two blocks; of "1d-kill-backward" it is the gradient of that contraction, of "1d-kill-update"
// an update of the optimizer in that step. It prints the time of it, in ms, first. Those of
// "-certifying" come later than 3 steps and a batch of validation: while the run is certified.
//
// And four that end well and are wrong: "1d-tenth" multiplies each sum of f32 by 0.1, "1d-late"
// doubles weight gradients of f32 after its 30th, "1d-wide" those of inputs of more than 64 elements
// a row, "1d-hoard" keeps memory that it does not take simulated. Those of "-twin" are "1d-tenth", and do
// in the first contraction of f64 what their names say.

#include <signal.h>
#include <torch/version.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include <ATen/record_function.h>

#include "kuafu/engine/plugin.h"
#include "kuafu/parallel/tensor/products.h"

namespace {

using namespace kuafu;

enum class Fault : uint8_t {
  kThrow,
  kExit,
  kExitAtOnce,
  kExitInC,
  kCrash,
  kKill,
  kSkip,
  kHang,
  kKillBackward,
  kKillUpdate,
  kTenth,
  kLate,
  kWide,
  kHoard
};

constexpr int64_t kContraction = 6, kLastOfRun = 16, kLastRight = 30, kWidest = 64;

enum class When : uint8_t { kInAStep, kCertifying, kTwin };

class Faulty : public TensorParallel {
 public:
  Faulty(const Mesh& mesh, Fault fault, When when)
      : TensorParallel(mesh), fault_(fault), when_(when), sound_(make_megatron_1d(mesh)) {}

  Layout activation(Stream s) const override { return sound_->activation(s); }
  Layout weight(Role r) const override { return sound_->weight(r); }
  Tensor forward(const Tensor& x, const Tensor& w, Role r) const override {
    const bool is_tenth = fault_ == Fault::kTenth || when_ == When::kTwin;
    if (is_tenth && r == Role::kContract && x.scalar_type() == at::kFloat) {
      return sound_->forward(x, w, r).mul_(0.1);
    }
    if (fault_ == Fault::kHoard && !x.is_meta()) hoard_.push_back(x.new_empty(x.sizes()));
    if (is_silent()) return sound_->forward(x, w, r);
    if (r == Role::kContract && is_time(x) && mesh().coord("tensor") == 1) {
      if (fault_ == Fault::kKillUpdate) die_in_update();
      if (fault_ == Fault::kKillBackward || fault_ == Fault::kKillUpdate) {
        return sound_->forward(x, w, r);
      }
      err();
      if (fault_ == Fault::kSkip) return multiply_rows(x, w);
    }
    return sound_->forward(x, w, r);
  }
  Tensor input_grad(const Tensor& dy, const Tensor& w, Role r) const override {
    if (r == Role::kContract && num_contractions_ >= kContraction &&
        fault_ == Fault::kKillBackward && mesh().coord("tensor") == 1) {
      die();
    }
    return sound_->input_grad(dy, w, r);
  }
  Tensor weight_grad(const Tensor& x, const Tensor& dy, Role r) const override {
    const bool is_late = fault_ == Fault::kLate && ++num_weight_grads_ > kLastRight;
    const bool is_wide = fault_ == Fault::kWide && x.size(-1) > kWidest;
    const Tensor dw = sound_->weight_grad(x, dy, r);
    if ((is_late && x.scalar_type() == at::kFloat) || is_wide) dw.mul_(2);
    return dw;
  }
  Cost cost(const LinearShape& s, Role r) const override { return sound_->cost(s, r); }

 private:
  /// Counted in an engine, or in all that this rank's thread has had.
  bool is_time(const Tensor& x) const {
    thread_local int64_t num_of_rank = 0;
    if (!x.is_meta()) ++num_of_rank;
    ++num_contractions_;
    if (when_ == When::kTwin) return !x.is_meta() && x.scalar_type() == at::kDouble;
    return when_ == When::kInAStep ? num_contractions_ == kContraction
                                   : num_of_rank == kLastOfRun + kContraction;
  }

  bool is_silent() const {
    return fault_ == Fault::kTenth || fault_ == Fault::kLate || fault_ == Fault::kWide ||
           fault_ == Fault::kHoard;
  }

  [[noreturn]] void die() const {
    print_time();
    ::raise(SIGKILL);
    std::abort();
  }

  /// From now on the optimizer's operator is the end of the process. A process is one rank or all.
  static void die_in_update() {
    at::addGlobalCallback(at::RecordFunctionCallback([](const at::RecordFunction& f)
                                                         -> std::unique_ptr<at::ObserverContext> {
                            if (std::strcmp(f.name(), "kuafu::adamw") == 0) {
                              print_time();
                              ::raise(SIGKILL);
                            }
                            return nullptr;
                          }).scopes({at::RecordScope::FUNCTION}));
  }

  static void print_time() {
    using std::chrono::system_clock, std::chrono::milliseconds;
    std::fprintf(stderr, "time %lld\n",
                 static_cast<long long>(system_clock::now().time_since_epoch() / milliseconds(1)));
  }

  void err() const {
    print_time();
    if (fault_ == Fault::kThrow) throw std::runtime_error("the scheme gives up");
    if (fault_ == Fault::kExit) std::exit(3);
    if (fault_ == Fault::kExitAtOnce) ::_exit(0);
    if (fault_ == Fault::kExitInC) std::_Exit(0);
    if (fault_ == Fault::kCrash) std::abort();
    if (fault_ == Fault::kKill) ::raise(SIGKILL);
    while (fault_ == Fault::kHang) ::pause();
  }

  Fault fault_;
  When when_;
  std::unique_ptr<TensorParallel> sound_;
  mutable std::atomic<int64_t> num_contractions_ = 0, num_weight_grads_ = 0;
  mutable std::vector<Tensor> hoard_;  // of one rank
};

void add(Registries& registries) {
  struct Row {
    const char* name;
    Fault fault;
    When when = When::kInAStep;
  };
  for (const Row& row : {Row{"1d-throw", Fault::kThrow},
                         Row{"1d-exit", Fault::kExit},
                         Row{"1d-exit-at-once", Fault::kExitAtOnce},
                         Row{"1d-exit-in-c", Fault::kExitInC},
                         Row{"1d-crash", Fault::kCrash},
                         Row{"1d-kill", Fault::kKill},
                         Row{"1d-skip", Fault::kSkip},
                         Row{"1d-hang", Fault::kHang},
                         Row{"1d-kill-backward", Fault::kKillBackward},
                         Row{"1d-kill-update", Fault::kKillUpdate},
                         Row{"1d-tenth", Fault::kTenth},
                         Row{"1d-late", Fault::kLate},
                         Row{"1d-wide", Fault::kWide},
                         Row{"1d-hoard", Fault::kHoard},
                         Row{"1d-throw-certifying", Fault::kThrow, When::kCertifying},
                         Row{"1d-exit-certifying", Fault::kExit, When::kCertifying},
                         Row{"1d-kill-certifying", Fault::kKill, When::kCertifying},
                         Row{"1d-hang-certifying", Fault::kHang, When::kCertifying},
                         Row{"1d-throw-twin", Fault::kThrow, When::kTwin},
                         Row{"1d-exit-at-once-twin", Fault::kExitAtOnce, When::kTwin},
                         Row{"1d-kill-twin", Fault::kKill, When::kTwin}}) {
    const TensorMode mode{.name = row.name,
                          .summary = "1d that goes wrong",
                          .axes = [](int64_t size, int64_t) -> std::vector<Axis> {
                            return {{"tensor", size}};
                          }};
    registries.tensor.add(mode.name, mode.summary, TensorScheme{mode, [row](const Mesh& mesh) {
                                                                  return std::make_unique<Faulty>(
                                                                      mesh, row.fault, row.when);
                                                                }});
  }
}

}  // namespace

extern "C" const kuafu::PluginInfo* kuafu_plugin() {
  static const kuafu::PluginInfo kInfo = {.abi = KUAFU_PLUGIN_ABI,
                                          .torch = TORCH_VERSION,
                                          .name = "faults",
                                          .version = "1",
                                          .add = add};
  return &kInfo;
}
