// SPDX-License-Identifier: Apache-2.0
#include "app/bench_step/start_file.h"

#include <ATen/ATen.h>

#include "kuafu/checkpoint/safetensors.h"
#include "kuafu/comm/worlds.h"
#include "kuafu/engine/whole.h"

namespace kuafu {

void write_start(const Plan& plan, int64_t steps, const std::string& path) {
  const Registries registries = builtin_registries();
  run_on_threads(1, [&](Communicator& world) {
    const auto data = make_dataset(plan.data, plan.model, plan.train.seed, "");
    Engine engine(plan, registries, world, *data, {});
    const WholeTensors parameters = whole_parameters(engine, Keep::kYes);
    const Tokens tokens = data->train(0, steps * plan.train.batch);
    const Shape shape = {steps, plan.train.batch, tokens.sequence};
    std::vector<TensorBytes> tensors = {
        {"batches.inputs", DType::kI64, shape, tokens.inputs.data()},
        {"batches.targets", DType::kI64, shape, tokens.targets.data()}};
    for (const auto& [name, value] : parameters) {
      KUAFU_CHECK(value.is_contiguous() && value.scalar_type() == at::kFloat, name);
      tensors.push_back({name, DType::kF32, shape_of(value), value.const_data_ptr()});
    }
    write_safetensors(path, tensors, {});
  });
}

}  // namespace kuafu
