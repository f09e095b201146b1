// SPDX-License-Identifier: Apache-2.0
//
// Tensor schemes out of tree that go wrong in the middle of a run: 1D, until rank 1 of the group
// does what the scheme's name says in its 6th contraction, which lies in the second step of a model
// of two blocks. It prints the time of it, in ms, first.

#include <signal.h>
#include <torch/version.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "kuafu/engine/plugin.h"
#include "kuafu/parallel/tensor/products.h"

namespace {

using namespace kuafu;

enum class Fault : uint8_t { kThrow, kExit, kExitAtOnce, kCrash, kKill, kSkip };

constexpr int64_t kContraction = 6;

class Faulty : public TensorParallel {
 public:
  Faulty(const Mesh& mesh, Fault fault)
      : TensorParallel(mesh), fault_(fault), sound_(make_megatron_1d(mesh)) {}

  Layout activation(Stream s) const override { return sound_->activation(s); }
  Layout weight(Role r) const override { return sound_->weight(r); }
  Tensor forward(const Tensor& x, const Tensor& w, Role r) const override {
    if (r == Role::kContract && ++num_contractions_ == kContraction &&
        mesh().coord("tensor") == 1) {
      err();
      if (fault_ == Fault::kSkip) return multiply_rows(x, w);
    }
    return sound_->forward(x, w, r);
  }
  Tensor input_grad(const Tensor& dy, const Tensor& w, Role r) const override {
    return sound_->input_grad(dy, w, r);
  }
  Tensor weight_grad(const Tensor& x, const Tensor& dy, Role r) const override {
    return sound_->weight_grad(x, dy, r);
  }
  Cost cost(const LinearShape& s, Role r) const override { return sound_->cost(s, r); }

 private:
  void err() const {
    using std::chrono::system_clock, std::chrono::milliseconds;
    std::fprintf(stderr, "time %lld\n",
                 static_cast<long long>(system_clock::now().time_since_epoch() / milliseconds(1)));
    if (fault_ == Fault::kThrow) throw std::runtime_error("the scheme gives up");
    if (fault_ == Fault::kExit) std::exit(3);
    if (fault_ == Fault::kExitAtOnce) ::_exit(0);
    if (fault_ == Fault::kCrash) std::abort();
    if (fault_ == Fault::kKill) ::raise(SIGKILL);
  }

  Fault fault_;
  std::unique_ptr<TensorParallel> sound_;
  mutable std::atomic<int64_t> num_contractions_ = 0;
};

void add(Registries& registries) {
  struct Row {
    const char* name;
    Fault fault;
  };
  for (const Row& row : {Row{"1d-throw", Fault::kThrow}, Row{"1d-exit", Fault::kExit},
                         Row{"1d-exit-at-once", Fault::kExitAtOnce}, Row{"1d-crash", Fault::kCrash},
                         Row{"1d-kill", Fault::kKill}, Row{"1d-skip", Fault::kSkip}}) {
    const TensorMode mode{.name = row.name,
                          .summary = "1d that goes wrong on rank 1",
                          .axes = [](int64_t size, int64_t) -> std::vector<Axis> {
                            return {{"tensor", size}};
                          }};
    registries.tensor.add(mode.name, mode.summary,
                          TensorScheme{mode, [fault = row.fault](const Mesh& mesh) {
                                         return std::make_unique<Faulty>(mesh, fault);
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
