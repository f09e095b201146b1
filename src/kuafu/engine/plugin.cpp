// SPDX-License-Identifier: Apache-2.0
#include "kuafu/engine/plugin.h"

#include <dlfcn.h>
#include <elf.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <typeinfo>

#include <ATen/ATen.h>
#include <torch/csrc/api/include/torch/version.h>

#include "kuafu/base/errors.h"
#include "kuafu/base/names.h"
#include "kuafu/base/plugin_error.h"
#include "kuafu/base/suggest.h"
#include "kuafu/engine/plugin_file.h"
#include "kuafu/optim/checked_rule.h"

namespace kuafu {
namespace {

/// Whether the symbol at this address is of data: a call of it would end the process.
bool is_data(void* address) {
  Dl_info info{};
  void* entry = nullptr;
  if (::dladdr1(address, &info, &entry, RTLD_DL_SYMENT) == 0 || entry == nullptr) return false;
  const int type = ELF64_ST_TYPE(static_cast<const Elf64_Sym*>(entry)->st_info);
  return type != STT_FUNC && type != STT_GNU_IFUNC;
}

const PluginInfo& info_of(const std::string& path) {
  // A bare name would be searched in system folders: a plug-in is a file.
  const std::string file = path.find('/') == std::string::npos ? "./" + path : path;
  check_plugin_file(file);
  void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  KUAFU_REQUIRE(library != nullptr, "cannot load plug-in ", path, ": ", dlerror());
  using Entry = const PluginInfo* (*)();
  void* const symbol = dlsym(library, "kuafu_plugin");
  const auto entry = reinterpret_cast<Entry>(symbol);
  KUAFU_REQUIRE(entry == nullptr || !is_data(symbol), path,
                " is no Kuafu plug-in: its kuafu_plugin is data; allowed: a function, extern \"C\" "
                "const kuafu::PluginInfo* kuafu_plugin()");
  KUAFU_REQUIRE(entry != nullptr, path,
                " is no Kuafu plug-in: it has no symbol kuafu_plugin (extern \"C\" const "
                "kuafu::PluginInfo* kuafu_plugin())");
  const PluginInfo* info = entry();
  const auto described = [](uint32_t abi) {
    return text("interface ", abi / 100000000, " of GCC ", abi / 1000000 % 100);
  };
  const uint32_t abi = info == nullptr ? 0 : info->abi;
  KUAFU_REQUIRE(abi == KUAFU_PLUGIN_ABI, "plug-in ", path, " has ABI ", abi, " (", described(abi),
                "), this build has ", KUAFU_PLUGIN_ABI, " (", described(KUAFU_PLUGIN_ABI),
                "); rebuild the plug-in with this build's headers and compiler");
  KUAFU_REQUIRE(info->torch != nullptr && info->name != nullptr && info->add != nullptr, "plug-in ",
                path, " leaves torch, name or add of its PluginInfo empty; fill in all three");
  KUAFU_REQUIRE(std::string_view(info->torch) == TORCH_VERSION, "plug-in ", info->name,
                " was built with LibTorch ", info->torch, ", this build with ", TORCH_VERSION,
                "; rebuild the plug-in");
  return *info;
}

template <class Factory>
void check_names(const Registry<Factory>& all, const Registry<Factory>& before, const char* kind) {
  for (size_t i = before.entries().size(); i < all.entries().size(); ++i) {
    const std::string& name = all.entries()[i].name;
    KUAFU_REQUIRE(is_plain_name(name), kind, " ", problem_of_name(name));
  }
}

void check_names(const Registries& all, const Registries& before) {
  check_names(all.tensor, before.tensor, "tensor mode");
  check_names(all.sequence, before.sequence, "sequence mode");
  check_names(all.models, before.models, "model");
  check_names(all.schedules, before.schedules, "pipeline schedule");
  check_names(all.optimizers, before.optimizers, "optimizer");
  check_names(all.updates, before.updates, "formula of an optimizer");
  check_names(all.oracles, before.oracles, "oracle");
  check_names(all.policies, before.policies, "memory policy");
}

/// run_foreign() of what may refuse with a ConfigError, which passes as it is.
void run_or_refuse(const std::string& who, const std::string& what,
                   const std::function<void()>& f) {
  std::exception_ptr refusal;
  run_foreign(who, what, [&] {
    try {
      f();
    } catch (const ConfigError&) {
      refusal = std::current_exception();
    }
  });
  if (refusal) std::rethrow_exception(refusal);
}

/// run_or_refuse() of what has to say why.
void run_or_refuse_with_reason(const std::string& who, const std::string& what,
                               const std::function<void()>& f) {
  try {
    run_or_refuse(who, what, f);
  } catch (const ConfigError& e) {
    if (*e.what() != '\0') throw;
    throw PluginError(text(who, ": ", what, " refused without a reason"));
  }
}

/// The same with `who` before its words.
void run_or_refuse_as(const std::string& who, const std::string& what,
                      const std::function<void()>& f) {
  try {
    run_or_refuse_with_reason(who, what, f);
  } catch (const Refused& e) {
    if (typeid(e) != typeid(Refused)) throw;
    throw Refused(text(who, ": ", e.what()));
  } catch (const ConfigError& e) {
    if (typeid(e) != typeid(ConfigError)) throw;
    throw ConfigError(text(who, ": ", e.what()));
  }
}

/// What a rule was made with last.
struct MadeRule {
  std::mutex mutex;
  std::optional<OptimizerPlan> plan;
  std::vector<std::string> slots;
};

OptimizerRule held(const OptimizerRule& given, const std::string& name, const std::string& who) {
  if (!given.make) return given;  // check_optimizers() says so
  OptimizerRule out = given;
  const auto last = std::make_shared<MadeRule>();
  out.make = [make = given.make, name, who, last](const OptimizerPlan& plan) {
    Rule rule;
    run_or_refuse_as(who, "make", [&] { rule = make(plan); });
    try {
      check_rule(name, rule);
    } catch (const ConfigError& e) {
      const std::string said = e.what(), named = text("optimizer ", in_quotes(name));
      throw PluginError(
          text(who, said.starts_with(named) ? said.substr(named.size()) : ": " + said));
    }
    const std::lock_guard lock(last->mutex);
    if (last->plan == plan && last->slots != rule.slots) {
      throw PluginError(text(who, ": make declares the slots ", join(rule.slots),
                             " where it declared ", join(last->slots),
                             " for the same plan; allowed: the same each time"));
    }
    last->plan = plan;
    last->slots = rule.slots;
    return checked(rule, who);
  };
  return out;
}

oracle::UpdateRule held(const oracle::UpdateRule& given, const std::string& who) {
  if (!given.update) return given;
  oracle::UpdateRule out = given;
  out.rounding = {};  // measured
  out.update = [update = given.update, who](const oracle::Step& s, const at::Tensor& g,
                                            const at::Tensor& theta) {
    at::Tensor after;
    run_foreign(who, "its formula", [&] { after = update(s, g, theta); });
    for (const auto& [slot, tensors] : s.state.slots) {
      const auto own = tensors.find(s.name);
      if (own == tensors.end() || own->second.defined()) continue;
      throw PluginError(text(who, ": its formula left no tensor in the slot ", in_quotes(slot),
                             " of ", s.name, "; allowed: a tensor of the weight's shape"));
    }
    const bool is_right = after.defined() && after.sizes() == theta.sizes() &&
                          after.scalar_type() == theta.scalar_type();
    if (is_right) return after;
    const auto described = [](const at::Tensor& t) {
      return t.defined() ? text(t.scalar_type(), " ", to_string(shape_of(t))) : "no tensor";
    };
    throw PluginError(text(who, ": its formula gave ", described(after), " for ", s.name,
                           "; allowed: ", described(theta), ", the weight after the step"));
  };
  return out;
}

/// What a policy throws itself is told with its path; what its moves break is, where they are made.
memory::PolicyRule held(const memory::PolicyRule& given, const std::string& who) {
  const auto held_policy = [who](const memory::Policy& choose) -> memory::Policy {
    return [choose, who](const memory::Known& known) {
      memory::Choice choice;
      run_foreign(who, "choose", [&] { choice = choose(known); });
      return choice;
    };
  };
  memory::PolicyRule out = given;
  if (given.choose) out.choose = held_policy(given.choose);
  if (!given.make) return out;
  out.make = [make = given.make, who, held_policy](const memory::UseTrace& trace, int64_t budget) {
    memory::Policy policy;
    run_foreign(who, "make", [&] { policy = make(trace, budget); });
    if (!policy) throw PluginError(text(who, ": make gave nothing; allowed: a memory::Policy"));
    return held_policy(policy);
  };
  return out;
}

void require_made(bool is_made, const std::string& who, const char* allowed) {
  if (!is_made) throw PluginError(text(who, ": it made nothing; allowed: ", allowed));
}

TensorScheme held(const TensorScheme& given, const std::string& who) {
  TensorScheme out = given;
  out.make = [make = given.make, who](const Mesh& mesh) {
    auto code = make ? make(mesh) : nullptr;
    require_made(code != nullptr, who, "a TensorParallel");
    return code;
  };
  return out;
}

MakeAttention held(const MakeAttention& make, const std::string& who) {
  return [make, who](const AttentionSetup& setup) {
    auto code = make ? make(setup) : nullptr;
    require_made(code != nullptr, who, "an AttentionParallel");
    return code;
  };
}

MakeModel held(const MakeModel& make, const std::string& who) {
  return [make, who](const ModelPlan& plan, const Context& context) {
    Model model = make ? make(plan, context) : Model{};
    const bool is_made =
        !model.blocks.empty() && std::all_of(model.blocks.begin(), model.blocks.end(),
                                             [](const auto& block) { return block != nullptr; });
    require_made(is_made, who, "a Model of at least one block, none of them null");
    model.origin = who;
    return model;
  };
}

pipeline::Schedule held(const pipeline::Schedule& given, const std::string& who) {
  pipeline::Schedule out = given;
  out.make = [make = given.make, who](pipeline::PipeShape shape) {
    require_made(make != nullptr, who, "a make, which gives its timetable");
    pipeline::Timetable timetable;
    run_or_refuse_as(who, "make", [&] { timetable = make(shape); });
    return timetable;
  };
  if (!given.most_alive) return out;
  out.most_alive = [most_alive = given.most_alive, who](pipeline::PipeShape shape, int rank) {
    int most = 0;
    run_or_refuse_as(who, "most_alive", [&] { most = most_alive(shape, rank); });
    return most;
  };
  return out;
}

/// An oracle whose errors are told with its path; WrongRoutes pass as they are.
class HeldOracle : public oracle::Model {
 public:
  HeldOracle(std::unique_ptr<oracle::Model> own, std::string who)
      : own_(std::move(own)), who_(std::move(who)) {}

  std::vector<std::string> blocks() const override {
    return called<std::vector<std::string>>("blocks", [&] { return own_->blocks(); });
  }
  std::vector<std::string> params_of(size_t block) const override {
    return called<std::vector<std::string>>("params_of", [&] { return own_->params_of(block); });
  }
  std::map<std::string, oracle::Weight> weights() const override {
    return called<std::map<std::string, oracle::Weight>>("weights",
                                                         [&] { return own_->weights(); });
  }
  oracle::Flow forward(size_t block, const oracle::Flow& in, const oracle::Tensors& weights,
                       const oracle::Samples& samples, oracle::Extra& extra) const override {
    return called<oracle::Flow>("forward",
                                [&] { return own_->forward(block, in, weights, samples, extra); });
  }

 private:
  template <class T, class F>
  T called(const char* what, const F& f) const {
    T out;
    run_or_refuse_as(who_, what, [&] { out = f(); });
    return out;
  }

  const std::unique_ptr<oracle::Model> own_;
  const std::string who_;
};

oracle::MakeModel held(const oracle::MakeModel& make, const std::string& who) {
  return [make, who](const ModelPlan& plan, uint64_t seed) -> std::unique_ptr<oracle::Model> {
    std::unique_ptr<oracle::Model> own;
    run_or_refuse_as(who, "make", [&] { own = make ? make(plan, seed) : nullptr; });
    require_made(own != nullptr, who, "an oracle::Model");
    return std::make_unique<HeldOracle>(std::move(own), who);
  };
}

/// The registry with the entries that a plug-in added held to what they may make.
template <class Factory>
void hold(Registry<Factory>& all, const Registry<Factory>& before, const std::string& path,
          const char* kind) {
  Registry<Factory> out(kind);
  for (const auto& e : all.entries()) {
    const std::string who = text("plug-in ", path, ": ", kind, " ", in_quotes(e.name));
    out.add(e.name, e.summary, before.contains(e.name) ? e.make : held(e.make, who));
  }
  all = out;
}

/// What rules of this plug-in do in steps is held to what rules may do, and told with its path.
void hold_rules(const std::string& path, const Registries& before, Registries& registries) {
  const auto who = [&](const std::string& name) {
    return text("plug-in ", path, ": optimizer ", in_quotes(name));
  };
  Registries held_ones;
  for (const auto& e : registries.optimizers.entries()) {
    held_ones.optimizers.add(
        e.name, e.summary,
        before.optimizers.contains(e.name) ? e.make : held(e.make, e.name, who(e.name)));
  }
  for (const auto& e : registries.updates.entries()) {
    held_ones.updates.add(e.name, e.summary,
                          before.updates.contains(e.name) ? e.make : held(e.make, who(e.name)));
  }
  registries.optimizers = held_ones.optimizers;
  registries.updates = held_ones.updates;
}

}  // namespace

void load_plugin(const std::string& path, Registries& registries) {
  const std::string who = "plug-in " + path;
  const PluginInfo& info = info_of(path);
  const Registries before = registries;
  try {
    run_or_refuse(who, "add", [&] { info.add(registries); });
    check_names(registries, before);
    hold(registries.tensor, before.tensor, path, "tensor mode");
    hold(registries.sequence, before.sequence, path, "sequence mode");
    hold(registries.models, before.models, path, "model");
    hold(registries.policies, before.policies, path, "memory policy");
    hold(registries.schedules, before.schedules, path, "pipeline schedule");
    hold(registries.oracles, before.oracles, path, "oracle");
    hold_rules(path, before, registries);
    check_optimizers(registries);
    check_policies(registries);
  } catch (const PluginError& error) {
    throw ConfigError(error.what());
  } catch (const ConfigError& error) {
    const std::string said = error.what();
    throw ConfigError(said.starts_with(who + ": ") ? said : text(who, ": ", said));
  }
}

}  // namespace kuafu
