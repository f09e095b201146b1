// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kuafu/optim/optimizer.h"
#include "kuafu/parallel/data/gradient_sum.h"
#include "kuafu/tensor/param.h"

namespace kuafu {

/// Parameters whose gradients become complete together: those last used (in backward) by one block.
struct Group {
  std::string name;
  std::vector<Param*> params;
};

/// Indices of groups that are used together: those of a block, and of what it borrows.
using GroupSet = std::vector<int>;

/// One push that a parameter server has made an update of.
struct AppliedPush {
  int64_t worker = 0;
  int64_t step = 0;     ///< of the worker, from 0
  int64_t version = 0;  ///< of the parameters its gradient was computed with: updates they had seen
  bool operator==(const AppliedPush&) const = default;
};

/// What a server has applied, in its order: entry i made version i + 1 of its part.
using PushOrder = std::vector<AppliedPush>;

class LayerWatch;

/// Keeps replicas in agreement. Groups are blocks; a stage overrides only what it shards.
class DataParallel {
 public:
  virtual ~DataParallel() = default;
  virtual void attach(std::vector<Group> groups) = 0;
  /// The uses to come, in order, so that a stage can gather ahead. Other uses may come instead.
  virtual void expect(std::vector<GroupSet> uses) { (void)uses; }
  virtual void acquire(const GroupSet& groups) { (void)groups; }  ///< before use (ZeRO-3 gathers)
  virtual void release(const GroupSet& groups) { (void)groups; }  ///< after use (ZeRO-3 frees)
  /// Gradients of a micro-batch are complete in the group's .grad, on top of those before it where
  /// the stage left them there. `is_last`: of the step; at the latest now the sums over "data" and
  /// each param's grad_axes start.
  virtual void grads_ready(int group, bool is_last) = 0;
  /// Waits for all reductions; what my optimizer must update, gradients summed.
  virtual std::vector<ParamShard> finish() = 0;
  /// Everything my optimizer updates, used in a step or not, in the order of finish(); no
  /// gradients.
  virtual std::vector<ParamShard> shards() = 0;
  /// After the step, and after shards were loaded  (ZeRO-1/2 gather)
  virtual void publish() {}
  /// p's shard (in p.layout), whole over the replicas, wherever the stage keeps it. Collective over
  /// "data". The gradient is there from finish() to publish(); undefined where p was not used.
  virtual Tensor value(const Param& p) { return p.value.detach(); }
  virtual Tensor gradient(const Param& p) { return p.value.grad(); }

  /// False where replicas go on by themselves: finish() hands nothing out, publish() sends my
  /// gradients to servers that update, and nothing else is collective over "data" until settle().
  virtual bool is_in_step() const { return true; }
  /// Waits until all replicas have made as many steps, and hold the newest values. Collective.
  virtual void settle() {}
  /// What each server has applied so far, where replicas go on by themselves. Collective.
  virtual std::vector<PushOrder> pushes() { return {}; }

  /// It sees each replica's gradients before they are summed. @pre outlives the steps
  void watch(LayerWatch* watch) { watch_ = watch; }

 protected:
  LayerWatch* watch_ = nullptr;  ///< null: nobody watches
};

/// In which order the gradients of replicas are added: as the communicator does it, once a step; or
/// in rank order, every micro-batch, so that all stages agree to the bit.
enum class SumOrder : uint8_t { kAny, kRank };

struct AllReduceOptions {
  int64_t bucket_bytes = 25 * 1024 * 1024;
  bool is_overlapped = true;  ///< leave reductions under way while backward goes on
  SumOrder order = SumOrder::kAny;
  SumOptions sum = {};  ///< of the sums over replicas
};

/// By plan.parallel.zero and plan.parallel.data. `params` fills what parameters lack that it made
/// deferred; `script`, `rules`: see StaleOptions. @pre the plan is resolved
std::unique_ptr<DataParallel> make_data_parallel(
    const Plan& plan, const Mesh& mesh, const ParamFactory& params,
    const std::vector<int>& script = {}, const OptimizerRules& rules = builtin_optimizers());

/// Whole gradients, all-reduced in flat buckets of one group each.
std::unique_ptr<DataParallel> make_bucketed_all_reduce(const Mesh& mesh, AllReduceOptions options);

/// ZeRO of stage 1, 2 or 3.  [Rajbhandari et al., arXiv 1910.02054]
std::unique_ptr<DataParallel> make_zero(int64_t stage, const Mesh& mesh, AllReduceOptions options,
                                        const ParamFactory& params);

}  // namespace kuafu
