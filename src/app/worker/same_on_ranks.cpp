// SPDX-License-Identifier: Apache-2.0
#include "app/worker/same_on_ranks.h"

#include <algorithm>

#include "app/worker/plan_json.h"
#include "kuafu/base/build_info.h"
#include "kuafu/base/kernel_choice.h"
#include "kuafu/comm/gather.h"
#include "kuafu/record/json_text.h"
#include "kuafu/record/provenance.h"

namespace kuafu {
namespace {

using Json = nlohmann::ordered_json;

/// "plan.data.hash" of "/plan/data/hash".
std::string dotted(std::string pointer) {
  std::replace(pointer.begin(), pointer.end(), '/', '.');
  return pointer.substr(1);
}

/// The first value that two ranks have differently: "plan.train.steps is 3 on rank 0 and 4 on rank 1".
std::string difference(const Json& first, const Json& other, size_t rank) {
  const Json a = first.flatten(), b = other.flatten();
  const auto at = [](const Json& all, const std::string& key) {
    return all.contains(key) ? json_excerpt(all[key]) : std::string("not there");
  };
  for (const Json* all : {&a, &b}) {
    for (const auto& [key, value] : all->items()) {
      if (at(a, key) == at(b, key)) continue;
      return text(dotted(key), " is ", at(a, key), " on rank 0 and ", at(b, key), " on rank ",
                  rank);
    }
  }
  return "";
}

}  // namespace

Json read_by_this_rank(const Plan& plan, const std::vector<std::string>& plugins,
                       bool is_certified) {
  return {{"plan", plan_json(plan)},
          {"program", std::string(git_state().commit)},
          {"kernels", std::string(to_string(kernel_choice()))},
          {"plugins", plugin_hashes(plugins)},
          {"certify", is_certified}};
}

void check_same_on_ranks(Communicator& world, const Json& mine) {
  const std::vector<std::string> all = gather_texts(world, json_line(mine));
  for (size_t r = 1; r < all.size(); ++r) {
    if (all[r] == all[0]) continue;
    throw RanksDiffer(text("ranks were given different things: ",
                           difference(Json::parse(all[0]), Json::parse(all[r]), r),
                           "; give all ranks the same plan, data, program and plug-ins"));
  }
}

}  // namespace kuafu
