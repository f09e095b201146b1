// SPDX-License-Identifier: Apache-2.0
#include "app/bench_step/start.h"

#include "kuafu/checkpoint/safetensors.h"
#include "kuafu/comm/worlds.h"
#include "kuafu/engine/registries.h"
#include "kuafu/engine/whole.h"

namespace kuafu {

void write_start(const Plan& plan, int64_t steps, const std::string& file) {
  const Registries registries = builtin_registries();
  const auto data = make_dataset(plan.data, plan.model, plan.train.seed, "");
  const auto alone = make_self();
  Engine engine(plan, registries, *alone, *data, {});
  const WholeTensors weights = whole_parameters(engine, Keep::kYes);
  const Tokens tokens = data->train(0, steps * plan.train.batch);
  std::vector<TensorBytes> tensors;
  for (const auto& [name, value] : weights) {
    tensors.push_back({name, view(value).dtype, shape_of(value), value.const_data_ptr()});
  }
  const Shape shape{tokens.samples, tokens.sequence};
  tensors.push_back({"data.inputs", DType::kI64, shape, tokens.inputs.data()});
  tensors.push_back({"data.targets", DType::kI64, shape, tokens.targets.data()});
  write_safetensors(file, tensors, {});
}

}  // namespace kuafu
