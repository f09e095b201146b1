// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "kuafu/engine/run.h"

// Small plans of every kind of parallelism, and ways to run them on thread ranks.
namespace kuafu::tests {

/// A kind of plan: what it changes of the small GPT of small_plan().
struct Family {
  std::string name;
  Overrides overrides;
};
inline std::ostream& operator<<(std::ostream& out, const Family& f) { return out << f.name; }

/// Keys of [parallel] by what they are for.
namespace keys {
Overrides tensor(const std::string& mode, const std::string& size, const std::string& depth = "1");
Overrides sequence(const std::string& mode, const std::string& size);
/// With a model of four experts.
Overrides experts(const std::string& size);
/// `zero`: the stage.
Overrides replicas(const std::string& n, const std::string& zero);
/// Two stages of micro-batches of three.
Overrides stages();
/// The keys of both.
Overrides both(Overrides a, const Overrides& b);
}  // namespace keys

/// Every kind of plan there is.
const std::vector<Family>& families();
/// Every way in which parameters and gradients lie on ranks, for models that 12 samples and these
/// ranks divide: replicas and ZeRO, tensor modes, stages, experts, servers.
const std::vector<Family>& shardings();
/// The one of that name; those of these names, in this order.
const Family& sharding(const std::string& name);
std::vector<Family> shardings(const std::vector<std::string>& names);
/// The family of that name.
const Family& family(const std::string& name);

/// GPT of 2 layers, hidden 32, 4 heads, vocabulary 37, sequence 12, batch 8, f64, synthetic data,
/// AdamW with clipping; the overrides applied, resolved.
Plan small_plan(const Overrides& overrides = {});
Plan plan_of(const Family& family, const Overrides& more = {});

/// The dataset of a plan.
std::unique_ptr<Dataset> data_of(const Plan& plan);

/// run_rank on thread ranks; the result of each rank.
std::vector<RankResult> run_plan(const Plan& plan, RunOptions options = {});

/// What training leaves behind, whole and without padding.
struct Trained {
  std::vector<double> losses;
  std::map<std::string, Tensor> parameters;
};
/// The plan's steps on thread ranks.
Trained train(const Plan& plan);
/// True where all losses and parameters have the same bits.
bool is_same(const Trained& a, const Trained& b);

/// The certificate of a plan, from rank 0; checks that all ranks agree on it.
Certificate certificate_of(const Plan& plan, int64_t memory_limit = int64_t{1} << 40);

}  // namespace kuafu::tests
