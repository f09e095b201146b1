// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <string_view>
#include <vector>

#include "experiments/micro/optimizer/streams.h"
#include "kuafu/optim/optimizer.h"

namespace kuafu::micro {

/// A GPT with a vocabulary of 256 and H positions: 12 H^2 + 13 H parameters a layer.
struct ModelSize {
  int64_t layers = 8, hidden = 1024;
};

/// A pass of a rule over the streams w(eights), g(radients), m, v: which it writes back in place,
/// which it only reads. A velocity is m.
struct RulePass {
  std::string_view written, read;
  PassKind kind() const {
    return {static_cast<int>(written.size()), static_cast<int>(read.size())};
  }
};

/// An optimizer, or "norm", the global norm of the gradients that comes before every update, and the least memory traffic of its step: what follows from all of a layer waits
/// for a pass over it.
struct TimedRule {
  std::string_view kind;
  std::vector<RulePass> passes;
  std::string_view peer;  ///< LibTorch's "fused" kernel, or its "foreach" ops
  int bytes() const;      ///< an f32 element
};
/// adamw and adam 28, sgd 20, lars 8 + 20, lamb 28 + 12 bytes (its direction lies in the place of the
/// gradient); norm 4.
const std::vector<TimedRule>& timed_rules();

/// The parameters of one rank and what updates them.
class Rank {
 public:
  Rank(const ModelSize& size, const TimedRule& rule);

  int64_t elements() const { return elements_; }
  /// One step of Kuafu's rule, of LibTorch's, and of the streams alone.
  void kuafu();
  void peer();
  void stream(const StreamLoop& loop);
  /// Throws where weights or state after a step of Kuafu's and one of LibTorch's differ by more than
  /// rounding.
  void check();

 private:
  static constexpr int64_t kStepsBefore = 1000;
  bool is_norm() const { return rule_.kind == "norm"; }
  void check_norm();
  void foreach_lars();
  void foreach_lamb();
  float* stream_of(char name, size_t param);
  /// These weights, and a state of positive numbers.
  void go_back_to(const Tensors& weights);

  const TimedRule& rule_;
  OptimizerPlan plan_;
  std::unique_ptr<Optimizer> optimizer_;
  std::deque<Param> params_;
  std::vector<ParamShard> shards_;
  Tensors w_, g_, m_, v_, steps_;
  int64_t elements_ = 0;
  double norm_ = 0;  ///< the last one, of either side
};

}  // namespace kuafu::micro
