// SPDX-License-Identifier: Apache-2.0
#include "app/bench_step/start_file.h"

#include <ATen/ATen.h>

#include "kuafu/checkpoint/safetensors.h"
#include "kuafu/comm/worlds.h"
#include "kuafu/engine/whole.h"

namespace kuafu {
namespace {

std::vector<TensorBytes> samples_of(const Tokens& t, int64_t steps, int64_t batch) {
  const Shape shape = {steps, batch, t.sequence};
  std::vector<TensorBytes> all;
  if (t.patches == 0) {
    all.push_back({"batches.inputs", DType::kI64, shape, t.inputs.data()});
    all.push_back({"batches.targets", DType::kI64, shape, t.targets.data()});
  } else {
    const Shape images = {steps, batch, t.patches, t.pixels};
    all.push_back({"batches.images", DType::kF32, images, t.images.data()});
  }
  if (t.is_pair) all.push_back({"batches.segments", DType::kI64, shape, t.segments.data()});
  if (!t.labels.empty()) {
    all.push_back({"batches.labels", DType::kI64, {steps, batch}, t.labels.data()});
  }
  return all;
}

}  // namespace

void write_start(const Plan& plan, int64_t steps, const std::string& path) {
  KUAFU_REQUIRE(num_ranks(plan) == 1 && plan.model.dtype == DType::kF32, "--export of a plan of ",
                num_ranks(plan), " ranks in ", to_string(plan.model.dtype),
                "; allowed: 1 rank, dtype = \"f32\"");
  KUAFU_REQUIRE(!plan.data.document_mask,
                "--export of a plan with data.document_mask = true, which the peers do not know");
  const Registries registries = builtin_registries();
  run_on_threads(1, [&](Communicator& world) {
    const auto data = make_dataset(plan.data, plan.model, plan.train.seed, "");
    Engine engine(plan, registries, world, *data, {});
    const WholeTensors parameters = whole_parameters(engine, Keep::kYes);
    const Tokens tokens = data->train(0, steps * plan.train.batch);
    std::vector<TensorBytes> tensors = samples_of(tokens, steps, plan.train.batch);
    for (const auto& [name, value] : parameters) {
      KUAFU_CHECK(value.is_contiguous() && value.scalar_type() == at::kFloat, name);
      tensors.push_back({name, DType::kF32, shape_of(value), value.const_data_ptr()});
    }
    write_safetensors(path, tensors, {{"plan", to_toml(plan)}});
  });
}

}  // namespace kuafu
