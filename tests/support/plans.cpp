// SPDX-License-Identifier: Apache-2.0
#include "tests/support/plans.h"

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "kuafu/engine/whole.h"
#include "tests/support/ranks.h"
#include "tests/support/tensors.h"

namespace kuafu::tests {
namespace {

constexpr const char* kSmall = R"(
[model]
layers = 2
hidden = 32
heads = 4
vocab = 37
sequence = 12
dtype = "f64"
[optimizer]
lr = 0.01
clip = 0.5
[data]
kind = "synthetic"
[train]
batch = 8
steps = 3
validation_batches = 1
)";

const Family& named(const std::string& name, const std::vector<Family>& all) {
  for (const Family& f : all) {
    if (f.name == name) return f;
  }
  throw ConfigError("no family " + name);
}

}  // namespace

Overrides keys::tensor(const std::string& mode, const std::string& size, const std::string& depth) {
  Overrides o = {{"parallel.tensor.mode", mode}, {"parallel.tensor.size", size}};
  if (depth != "1") o.emplace_back("parallel.tensor.depth", depth);
  return o;
}

Overrides keys::sequence(const std::string& mode, const std::string& size) {
  return {{"parallel.sequence.mode", mode}, {"parallel.sequence.size", size}};
}

Overrides keys::experts(const std::string& size) {
  return {{"model.kind", "moe_gpt"}, {"model.experts", "4"}, {"parallel.expert.size", size}};
}

Overrides keys::replicas(const std::string& n, const std::string& zero) {
  return {{"parallel.data", n}, {"parallel.zero", zero}};
}

Overrides keys::stages() { return {{"parallel.pipeline", "2"}, {"train.micro_batch", "3"}}; }

Overrides keys::both(Overrides a, const Overrides& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

const std::vector<Family>& families() {
  static const std::vector<Family> all = {
      {"one_rank", {}},
      {"data_2", {{"parallel.data", "2"}}},
      {"data_3", {{"parallel.data", "3"}, {"train.batch", "6"}}},
      {"t1d_2", keys::tensor("1d", "2")},
      {"t1d_4", keys::tensor("1d", "4")},
      {"t1d_sp_2", keys::tensor("1d-sp", "2")},
      {"t2d_4", keys::tensor("2d", "4")},
      {"t2p5d_8", keys::tensor("2.5d", "8", "2")},
      {"t3d_8", keys::tensor("3d", "8")},
      {"data_2_t1d_2", keys::both(keys::tensor("1d", "2"), {{"parallel.data", "2"}})},
      {"data_2_t1d_sp_2", keys::both(keys::tensor("1d-sp", "2"), {{"parallel.data", "2"}})},
      {"ring_3", keys::sequence("ring", "3")},
      {"zigzag_2_t1d_2", keys::both(keys::sequence("ring-zigzag", "2"), keys::tensor("1d", "2"))},
      {"data_2_ulysses_2", keys::both(keys::sequence("ulysses", "2"), {{"parallel.data", "2"}})},
      {"t1d_with_2d_layer_4",
       keys::both(keys::tensor("1d", "4"),
                  {{"parallel.layers", R"([{ from = 1, to = 1, mode = "2d" }])"}})},
      {"data_2_t2d_4", keys::both(keys::tensor("2d", "4"), {{"parallel.data", "2"}})},
  };
  return all;
}

const std::vector<Family>& shardings() {
  using namespace keys;  // NOLINT: the rows below are a table
  static const std::vector<Family> all = {
      {"one_rank", {}},
      {"data_3", replicas("3", "0")},
      {"zero_1", replicas("3", "1")},
      {"zero_2", replicas("2", "2")},
      {"zero_3", replicas("3", "3")},
      {"t1d_2", tensor("1d", "2")},
      {"t1d_sp_2", tensor("1d-sp", "2")},
      {"t2d_4", tensor("2d", "4")},
      {"t2p5d_8", tensor("2.5d", "8", "2")},
      {"t3d_8", tensor("3d", "8")},
      {"pipeline_2", stages()},
      {"ring_3", sequence("ring", "3")},
      {"experts_2", both(experts("2"), replicas("2", "0"))},
      {"experts_2_zero_3", both(experts("2"), replicas("4", "3"))},
      {"server_2",
       {{"parallel.data", "3"},
        {"parallel.data.mode", "parameter_server"},
        {"parallel.data.servers", "2"}}},
      {"mixed", both(both(tensor("1d", "2"), stages()), replicas("2", "1"))}};
  return all;
}

const Family& sharding(const std::string& name) { return named(name, shardings()); }

std::vector<Family> shardings(const std::vector<std::string>& names) {
  std::vector<Family> out;
  for (const std::string& name : names) out.push_back(sharding(name));
  return out;
}

const Family& family(const std::string& name) { return named(name, families()); }

Plan small_plan(const Overrides& overrides) {
  const Registries registries = builtin_registries();
  const TensorModes modes = registries.tensor_modes();
  return resolve(parse_plan(kSmall, "small.toml", modes, overrides, registries.models.names()), 0,
                 modes);
}

Plan plan_of(const Family& family, const Overrides& more) {
  return small_plan(keys::both(family.overrides, more));
}

std::unique_ptr<Dataset> data_of(const Plan& plan) {
  return make_dataset(plan.data, plan.model, plan.train.seed, "");
}

std::vector<RankResult> run_plan(const Plan& plan, RunOptions options) {
  const Registries registries = builtin_registries();
  if (!options.make_data) options.make_data = data_of;
  std::vector<RankResult> results(static_cast<size_t>(num_ranks(plan)));
  run_ranks(static_cast<int>(num_ranks(plan)), [&](Communicator& world) {
    results[static_cast<size_t>(world.rank())] = run_rank(plan, registries, world, options);
  });
  return results;
}

Trained train(const Plan& plan) {
  const Registries registries = builtin_registries();
  Trained trained;
  run_ranks(static_cast<int>(num_ranks(plan)), [&](Communicator& world) {
    const auto data = data_of(plan);
    Engine engine(plan, registries, world, *data, {});
    for (int64_t step = 0; step < plan.train.steps; ++step) {
      const double loss = engine.step().loss;
      if (world.rank() == 0) trained.losses.push_back(loss);
    }
    WholeTensors whole = whole_parameters(engine, world.rank() == 0 ? Keep::kYes : Keep::kNo);
    if (world.rank() == 0) trained.parameters = std::move(whole);
  });
  return trained;
}

bool is_same(const Trained& a, const Trained& b) {
  bool same = a.losses == b.losses && a.parameters.size() == b.parameters.size();
  for (const auto& [name, tensor] : a.parameters) {
    const auto found = b.parameters.find(name);
    same = same && found != b.parameters.end() && is_same(tensor, found->second);
  }
  return same;
}

Certificate certificate_of(const Plan& plan, int64_t memory_limit) {
  const Registries registries = builtin_registries();
  std::vector<Certificate> all(static_cast<size_t>(num_ranks(plan)));
  run_ranks(static_cast<int>(num_ranks(plan)), [&](Communicator& world) {
    all[static_cast<size_t>(world.rank())] =
        certify(plan, registries, world, data_of, {}, memory_limit);
  });
  for (const Certificate& c : all) {
    EXPECT_EQ(c.verdict, all[0].verdict);
    EXPECT_EQ(c.gradient.error, all[0].gradient.error);
    EXPECT_EQ(c.gradient.bound, all[0].gradient.bound);
  }
  return all[0];
}

}  // namespace kuafu::tests
