// SPDX-License-Identifier: Apache-2.0
//
// How long an engine on one rank takes to read the weights of a folder of transformers, as `--init` does.
//
//   micro_init DIR       prints seconds of reading alone, and its commit: the folder is open and the model made before.
//                        Every element is compared with a second reading of its tensor by itself.
// Called by experiments/micro/import.py.

#include <ATen/ATen.h>

#include <chrono>
#include <iostream>
#include <map>

#include "kuafu/base/build_info.h"
#include "kuafu/base/errors.h"
#include "kuafu/checkpoint/boxes.h"
#include "kuafu/comm/worlds.h"
#include "kuafu/dataset/no_data.h"
#include "kuafu/engine/registries.h"
#include "kuafu/engine/saving/given_weights.h"
#include "kuafu/hf/folder.h"
#include "kuafu/meter/allocator.h"
#include "kuafu/plan/plan.h"

namespace kuafu {
namespace {

Slice whole(const Shape& shape) { return {Shape(shape.size(), 0), shape}; }

double seconds_to_read(const std::string& path) {
  const hf::Folder folder(path);
  Plan plan;
  plan.model = folder.config().model;
  plan.model.dtype = folder.type();
  plan.data.kind = "synthetic";
  plan.train.batch = 1;
  plan.optimizer = {.kind = "sgd", .momentum = 0};
  const Registries registries = builtin_registries();
  plan = resolve(plan, 1, registries.tensor_modes());
  NamedWeights weights{.path = path, .tensors = {}, .read = {}};
  std::map<std::string, const hf::Mapped*> by_name;
  for (const hf::Mapped& t : folder.tensors()) {
    weights.tensors.push_back({t.name, folder.type(), t.shape, nullptr});
    by_name[t.name] = &t;
  }
  weights.read = [&](const std::string& name, const Slice& box, char* out) {
    folder.read(*by_name.at(name), box, out);
  };
  double seconds = 0;
  run_on_threads(1, [&](Communicator& world) {
    const NoData data(plan.model);
    Engine engine(plan, registries, world, data, {});
    const auto began = std::chrono::steady_clock::now();
    begin_with(weights, engine, world);
    seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    for (const ParamShard& s : engine.shards()) {
      std::vector<char> bytes(s.value.nbytes());
      weights.read(s.param->name, whole(s.param->global), bytes.data());
      const Tensor again = at::from_blob(bytes.data(), s.value.sizes(), s.value.scalar_type());
      KUAFU_REQUIRE(at::equal(again, s.value), "tensor ", s.param->name, " was read as another");
    }
  });
  return seconds;
}

}  // namespace
}  // namespace kuafu

int main(int argc, char** argv) {
  kuafu::install_allocators();
  kuafu::initialise_tensors();
  try {
    KUAFU_REQUIRE(argc == 2, "micro_init takes one folder");
    std::cout << kuafu::seconds_to_read(argv[1]) << " s, by " << kuafu::git_state().commit
              << std::endl;
    return 0;
  } catch (const std::exception& e) {
    std::cerr << "micro_init: " << e.what() << std::endl;
    return 1;
  }
}
