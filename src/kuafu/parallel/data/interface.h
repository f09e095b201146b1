// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kuafu/optim/optimizer.h"
#include "kuafu/tensor/param.h"

namespace kuafu {

/// Parameters whose gradients become complete together: those last used (in backward) by one block.
struct Group {
  std::string name;
  std::vector<Param*> params;
};

/// Keeps replicas in agreement. Groups are blocks; a stage overrides only what it shards.
class DataParallel {
 public:
  virtual ~DataParallel() = default;
  virtual void attach(std::vector<Group> groups) = 0;
  virtual void acquire(int group) { (void)group; }  ///< before use      (ZeRO-3 gathers)
  virtual void release(int group) { (void)group; }  ///< after use       (ZeRO-3 frees)
  /// Every gradient of the group is there: start reducing over "data" and each param's grad_axes.
  virtual void grads_ready(int group) = 0;
  /// Waits for all reductions; what my optimizer must update, gradients summed.
  virtual std::vector<ParamShard> finish() = 0;
  virtual void publish() {}  ///< after the step  (ZeRO-1/2 gather)
};

struct AllReduceOptions {
  int64_t bucket_bytes = 25 * 1024 * 1024;
  bool is_overlapped = true;  ///< leave reductions under way while backward goes on
};

/// Whole gradients, all-reduced in flat buckets of one group each.
std::unique_ptr<DataParallel> make_bucketed_all_reduce(const Mesh& mesh, AllReduceOptions options);

}  // namespace kuafu
