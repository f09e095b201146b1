// SPDX-License-Identifier: Apache-2.0
//
// micro_step profile    where the CPU time of a training step goes (profile.cpp)
// micro_step predict    a step beside what measured rates predict (predict.cpp)

#include <algorithm>
#include <iostream>

#include <CLI/CLI.hpp>

#include "experiments/micro/step/step.h"
#include "kuafu/engine/registries.h"
#include "kuafu/meter/allocator.h"
#include "kuafu/record/files.h"
#include "kuafu/record/json_text.h"
#include "kuafu/record/provenance.h"
#include "kuafu/tensor/tensor.h"

namespace kuafu::micro {

std::string to_string(const Scheme& s) { return text(s.mode, " on ", s.ranks); }

Plan plan_of(const Scheme& scheme, const Shape& shape, int64_t steps) {
  Plan plan;
  plan.model.layers = shape.layers;
  plan.model.hidden = shape.hidden;
  plan.model.heads = shape.heads;
  plan.model.sequence = shape.sequence;
  plan.parallel.tensor = {.mode = scheme.mode, .size = scheme.ranks, .depth = scheme.depth};
  plan.optimizer.clip = 0;
  plan.data.kind = "synthetic";
  plan.train.batch = shape.batch;
  plan.train.steps = steps;
  return resolve(plan, scheme.ranks, builtin_registries().tensor_modes());
}

Json to_json(const Scheme& scheme, const Shape& shape) {
  return {{"mode", scheme.mode},        {"ranks", scheme.ranks},  {"depth", scheme.depth},
          {"layers", shape.layers},     {"hidden", shape.hidden}, {"heads", shape.heads},
          {"sequence", shape.sequence}, {"batch", shape.batch}};
}

Json spread(std::vector<double> samples) {
  const std::vector<double> given = samples;
  std::sort(samples.begin(), samples.end());
  const auto at = [&](double share) {
    const double place = share * static_cast<double>(samples.size() - 1);
    const auto low = static_cast<size_t>(place);
    const size_t high = std::min(low + 1, samples.size() - 1);
    return samples[low] + (place - static_cast<double>(low)) * (samples[high] - samples[low]);
  };
  return {{"median", at(0.5)},
          {"quartiles", {at(0.25), at(0.75)}},
          {"minimum", samples.front()},
          {"maximum", samples.back()},
          {"samples", given}};
}

namespace {

int main_with(int argc, char** argv) {
  CLI::App app("Training steps taken apart");
  app.footer("Example: micro_step predict --hidden 1024 --rounds 7 --json results.json");
  Shape shape;
  int64_t rounds = 7;
  std::string json_file;
  CLI::App* profiles = app.add_subcommand("profile", "CPU time of a step by what it is spent on");
  CLI::App* predicts = app.add_subcommand("predict", "steps beside what measured rates predict");
  for (CLI::App* sub : {profiles, predicts}) {
    for (auto& [name, value] :
         {std::pair{"--layers", &shape.layers}, std::pair{"--hidden", &shape.hidden},
          std::pair{"--heads", &shape.heads}, std::pair{"--sequence", &shape.sequence},
          std::pair{"--batch", &shape.batch}, std::pair{"--rounds", &rounds}}) {
      sub->add_option(name, *value)->check(CLI::PositiveNumber)->capture_default_str();
    }
    sub->add_option("--json", json_file, "where the document goes");
  }
  app.require_subcommand(1);
  CLI11_PARSE(app, argc, argv);
  initialise_tensors();
  require_recordable(json_file);
  const Json before = provenance();
  Json document = *profiles ? profile(shape, rounds) : predict(shape, rounds);
  document["provenance"] = before;
  if (json_file.empty()) return 0;
  replace_file(json_file, json_document(document));
  return 0;
}

}  // namespace
}  // namespace kuafu::micro

int main(int argc, char** argv) {
  kuafu::install_allocators();  // before the first tensor
  try {
    return kuafu::micro::main_with(argc, argv);
  } catch (const std::exception& e) {
    std::cerr << "micro_step: " << e.what() << std::endl;
    return 1;
  }
}
