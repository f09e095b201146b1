// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include <map>

#include "kuafu/base/errors.h"
#include "kuafu/base/suggest.h"
#include "kuafu/optim/rule.h"

namespace kuafu {

void check_betas(const OptimizerPlan& plan) {
  KUAFU_REQUIRE(plan.beta1 >= 0 && plan.beta1 < 1 && plan.beta2 >= 0 && plan.beta2 < 1,
                "optimizer.beta1 = ", plan.beta1, ", beta2 = ", plan.beta2,
                "; allowed are 0 <= beta < 1");
}

void check_momentum(const OptimizerPlan& plan) {
  KUAFU_REQUIRE(plan.momentum >= 0 && plan.momentum < 1, "optimizer.momentum = ", plan.momentum,
                "; allowed are 0 <= momentum < 1");
}

Tensor is_zero_layer(const Tensor& norms) {
  return at::minimum(norms.select(1, 0), norms.select(1, 1)).sign().neg() + 1;
}

Rule make_rule(const OptimizerPlan& plan) {
  using Make = Rule (*)(const OptimizerPlan&);
  static const std::map<std::string, Make> rules = {{"sgd", make_sgd},
                                                    {"adam", make_adam},
                                                    {"adamw", make_adamw},
                                                    {"lars", make_lars},
                                                    {"lamb", make_lamb}};
  const auto found = rules.find(plan.kind);
  if (found != rules.end()) return found->second(plan);
  std::vector<std::string> names;
  for (const auto& [name, make] : rules) names.push_back(name);
  throw ConfigError(text("unknown optimizer.kind ", in_quotes(plan.kind),
                         "; allowed: ", join_or(in_quotes(names)),
                         "; nearest: ", in_quotes(nearest(plan.kind, names))));
}

}  // namespace kuafu
