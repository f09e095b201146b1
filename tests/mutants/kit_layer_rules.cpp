// SPDX-License-Identifier: Apache-2.0
//
// Wrong updates of layers (LARS, LAMB) and of whole matrices (Muon): norms, ratios, Newton-Schulz.

#include <ATen/ATen.h>

#include <array>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <tuple>
#include <vector>

#include "tests/mutants/update_kit.h"

namespace kuafu::tests {
namespace {

using at::Tensor;
using torch::jit::Stack;
using Right = OpFault::Right;

/// What ranks 0 and 1 add up of each other's tensors, call by call: a sum that should not be.
class Meeting {
 public:
  Tensor sum(int rank, const Tensor& mine) {
    std::unique_lock lock(mutex_);
    std::vector<Tensor>&own = given_[rank], &other = given_[1 - rank];
    const size_t call = own.size();
    own.push_back(mine.clone());
    changed_.notify_all();
    const bool is_there =
        changed_.wait_for(lock, std::chrono::seconds(10), [&] { return other.size() > call; });
    return is_there ? mine + other[call] : mine;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::array<std::vector<Tensor>, 2> given_;
};

/// Sums of squares of the fused matrix of a block, of which each stage has one.
OpFault meets(const std::string& norms, const std::shared_ptr<Meeting>& meeting, int rank) {
  OpFault fault = instead(norms, [meeting, rank](Stack& s, const Right& right) {
    const Tensor w = s[0].toTensor();
    const bool is_fused = w.dim() == 2 && w.size(1) == 3 * w.size(0);
    right(s);
    if (is_fused) s[0] = meeting->sum(rank, s[0].toTensor());
  });
  fault.rank = rank;
  return fault;
}

/// Norms of layers, on which both LARS and LAMB depend; `norms` gives them, `op` takes steps by
/// `rates`.
void add_layers(Kit& kit, const std::string& op, const std::string& step, size_t rates) {
  const std::string norms = op + "_norms";
  Overrides zero = kPlan, tensor = kPlan, pipeline = kPlan, experts = kPlan;
  zero.emplace_back("parallel.zero", "1");
  for (const auto& [key, value] : keys::tensor("1d", "2")) tensor.emplace_back(key, value);
  std::erase_if(pipeline, [](const auto& key) { return key.first == "parallel.data"; });
  pipeline.emplace_back("parallel.pipeline", "2");  // ranks 0 and 1 are its stages
  for (const auto& [key, value] : keys::experts("2")) experts.emplace_back(key, value);
  const auto add = [&](const std::string& what, const Overrides& o, const auto& fault) {
    kit.add(op + " " + what, o, fault).optimizer = op;
  };
  // An axis that is missing in the set of those that split a layer: the tables, the only sums of
  // f64 of that size in a step of f32, stay as each rank has them. An expert is whole on its rank:
  // without that axis nothing changes.
  constexpr int64_t kTable = 8;
  std::vector<std::pair<std::string, Overrides>> split = {{"data", zero}, {"tensor", tensor}};
  for (const auto& [axis, mode, size] : {std::tuple{"row", "2d", "4"},
                                         {"col", "2d", "4"},
                                         {"x", "3d", "8"},
                                         {"y", "3d", "8"},
                                         {"z", "3d", "8"}}) {
    Overrides grid = kPlan;
    std::erase_if(grid, [](const auto& key) { return key.first == "parallel.data"; });
    for (const auto& [key, value] : keys::tensor(mode, size)) grid.emplace_back(key, value);
    grid.emplace_back("train.micro_batch", "4");  // which the ranks of 3D divide
    split.emplace_back(axis, grid);
  }
  for (const auto& [axis, plan] : split) {
    const CommFault missing{
        .action = CommFault::Action::kDrop, .axis = axis, .at = 0, .least_f64 = kTable};
    Mutant& m = kit.add(text(op, " with norms that are not summed over ", axis), plan, missing);
    m.optimizer = op;
    m.dtype = DType::kF32;
  }
  for (const auto& [axis, plan] :
       {std::pair{"data", zero}, std::pair{"tensor", tensor}, std::pair{"expert", experts}}) {
    add(text("with norms that count one of the ranks along ", axis, " twice"), plan,
        on_rank_1(with_result_times(norms, 0, 2)));
  }
  // Both norms times the same would leave their quotient.
  const auto norms_by = [&](std::function<Tensor(const Tensor& sums)> f) {
    return with_formula(norms, 0, [f](const Arguments&, const Arguments& r) { return f(r[0]); });
  };
  // The pipeline's axis among those that split a layer: rows of one stage meet those of the next.
  const auto meeting = std::make_shared<Meeting>();
  Mutant& mixed = kit.add(op + " with norms of q, k and v that are summed over stages", pipeline,
                          meets(norms, meeting, 0));
  set_fault(mixed, meets(norms, meeting, 1));
  mixed.optimizer = op;
  add("with one norm for q, k and v", kPlan,
      norms_by([](const Tensor& sums) { return sums.mean(0, true).expand_as(sums).contiguous(); }));
  add("with squares for norms", kPlan, norms_by([](const Tensor& sums) { return sums.square(); }));
  const auto rates_by = [&](std::function<Tensor(const Tensor& rates)> f) {
    return with_argument(step, rates, [f](c10::IValue& v) { v = f(v.toTensor()).contiguous(); });
  };
  add("with 1.0001 times the ratios", kPlan, rates_by([](const Tensor& r) { return r * 1.0001; }));
  add("with the first layer's ratio for all", kPlan,
      rates_by([](const Tensor& r) { return r.narrow(0, 0, 1).expand_as(r); }));
  add("with ratios of one replica 1.01 times", kPlan,
      on_rank_1(rates_by([](const Tensor& r) { return r * 1.01; })));
  add("that keeps its weights", kPlan, forgets(step, 0));
  add("made twice", kPlan, twice(step));
  add("skipped for the third parameter", kPlan, in_call(skips(step), 3));
  add("with ratios kept below half of the largest", kPlan,
      rates_by([](const Tensor& r) { return r.clamp_max(0.5 * r.max().item<double>()); }));
  const auto believe = [&](const std::string& what, auto change) {
    kit.believe(op + ": " + what, kPlan, change).optimizer = op;
  };
  believe("replica 1 scales vectors too", [](Plan& p) { p.optimizer.exclude = "none"; });
}

void add_lamb(Kit& kit) {
  add_layers(kit, "lamb", "layer_step", 2);
  const auto add = [&](const std::string& what, const OpFault& fault) {
    kit.add("lamb " + what, kPlan, fault).optimizer = "lamb";
  };
  add("with beta1 0.9001", with_number("lamb_norms", 4, [](double b) { return b + 1e-4; }));
  add("with beta2 0.99901", with_number("lamb_norms", 5, [](double b) { return b + 1e-5; }));
  add("with a norm without decay", with_number("lamb_norms", 7, [](double) { return 0.0; }));
  const auto step_with = [](auto f) {  // the direction of each element, kept for the step
    return with_argument("layer_step", 1, [f](c10::IValue& v) { v = f(v.toTensor()); });
  };
  add("with a step of 1.0001 times the direction",
      step_with([](const Tensor& r) { return r * 1.0001; }));
  add("with a step by the signs of the direction",
      step_with([](const Tensor& r) { return r.sign() * r.abs().mean(); }));
  add("with norms without correction",
      with_argument("lamb_norms", 8, [](c10::IValue& v) { v = int64_t{0}; }));
  add("with ten times epsilon", with_number("lamb_norms", 6, [](double e) { return 10 * e; }));
  add("that keeps its first moment", forgets("lamb_norms", 2));
  add("that keeps its second moment", forgets("lamb_norms", 3));
  // Of half precision the direction is made a second time, from the moments.
  const auto again = [&](const std::string& what, const OpFault& fault) {
    Mutant& m = kit.add("lamb made again " + what, kPlan, fault);
    m.optimizer = "lamb";
    m.dtype = DType::kBF16;
  };
  again("with 1.0001 times the ratios",
        with_argument("lamb", 3, [](c10::IValue& v) { v = (v.toTensor() * 1.0001).contiguous(); }));
  again("with beta2 0.99", with_number("lamb", 5, [](double) { return 0.99; }));
  again("with ten times epsilon", with_number("lamb", 6, [](double e) { return 10 * e; }));
  again("without decay", with_number("lamb", 7, [](double) { return 0.0; }));
  again("without correction", with_argument("lamb", 8, [](c10::IValue& v) { v = int64_t{0}; }));
  again("from the second moments alone", instead("lamb", [](Stack& s, const Right& right) {
          s[1] = s[2].toTensor().sqrt();
          right(s);
        }));
  again("twice", twice("lamb"));
  again("but for the third parameter", in_call(skips("lamb"), 3));
  again("but not kept", forgets("lamb", 0));
  // The replicas' axis among those that split a layer: they hold the same, so both sums are doubled
  // to the bit. A quotient of norms stays what it is, as all ratios of LARS; not where weights are
  // bounded.
  Overrides bounded = kPlan;
  bounded.emplace_back("optimizer.bound", "weights");
  bounded.emplace_back("optimizer.ratio_max", "0.1");
  const OpFault doubled = with_formula(
      "lamb_norms", 0, [](const Arguments&, const Arguments& r) { return r[0] * 2.0; });
  kit.add("lamb with norms that are summed over the replicas too", bounded, doubled).optimizer =
      "lamb";
  const auto believe = [&](const std::string& what, auto change) {
    kit.believe("lamb: replica 1 " + what, kPlan, change).optimizer = "lamb";
  };
  believe("corrects in the rate", [](Plan& p) { p.optimizer.correction_in = "rate"; });
  believe("corrects nothing", [](Plan& p) { p.optimizer.bias_correction = false; });
  believe("scales all layers", [](Plan& p) { p.optimizer.scaled_layers = "all"; });
  believe("bounds weights", [](Plan& p) {
    p.optimizer.bound = "weights";
    p.optimizer.ratio_max = 0.1;
  });
}

void add_lars(Kit& kit) {
  add_layers(kit, "lars", "lars", 3);
  const auto add = [&](const std::string& what, const OpFault& fault) {
    kit.add("lars " + what, kPlan, fault).optimizer = "lars";
  };
  add("with momentum 0.9001", with_number("lars", 4, [](double m) { return m + 1e-4; }));
  add("without decay", with_number("lars", 5, [](double) { return 0.0; }));
  add("that keeps its velocity", forgets("lars", 2));
  const auto believe = [&](const std::string& what, auto change) {
    kit.believe("lars: replica 1 " + what, kPlan, change).optimizer = "lars";
  };
  believe("has the rate in the step", [](Plan& p) { p.optimizer.rate_in = "step"; });
  believe("has the ratio in the step too",
          [](Plan& p) { p.optimizer.rate_in = "step_with_ratio"; });
  believe("divides by the norm of the sum",
          [](Plan& p) { p.optimizer.denominator = "norm_of_sum"; });
  believe("bounds the rate", [](Plan& p) { p.optimizer.bound = "rate"; });
  add("with the rate outside of the velocity", instead("lars", [](Stack& s, const Right&) {
        const Tensor w = s[0].toTensor(), u = s[2].toTensor(), rates = s[3].toTensor();
        const double momentum = s[4].toDouble(), decay = s[5].toDouble();
        u.mul_(momentum).add_(s[1].toTensor() * s[6].toDouble() + decay * w);
        w.sub_(u * rates[0].item<double>());
        s.clear();
      }));
}

/// Newton-Schulz of each of `parts` runs of rows by itself.
OpFault by_parts_of_rows(int64_t parts) {
  return instead("newton_schulz", [parts](Stack& s, const Right& right) {
    std::vector<Tensor> made;
    for (const Tensor& rows : s[0].toTensor().chunk(parts, 0)) {
      Stack one = s;
      one[0] = rows.contiguous();
      right(one);
      made.push_back(one[0].toTensor());
    }
    s = {at::cat(made, 0)};
  });
}

/// What has gone wrong with Muon elsewhere: an optimizer that sees a flat or local view, without the
/// shape, the split or the end of accumulation.
void add_muon(Kit& kit) {
  const std::string whole = "newton_schulz";
  Overrides zero = kPlan, tensor = kPlan;
  zero.emplace_back("parallel.zero", "1");
  for (const auto& [key, value] : keys::tensor("1d", "2")) tensor.emplace_back(key, value);
  const auto add = [&](const std::string& what, const OpFault& fault, const Overrides& o = kPlan) {
    kit.add("muon " + what, o, fault).optimizer = "muon";
  };
  const OpFault no_iteration =
      instead(whole, [](Stack& s, const Right&) { s = {s[0].toTensor().clone()}; });
  add("without Newton-Schulz", no_iteration);
  add("without Newton-Schulz for the third matrix", in_call(no_iteration, 3));
  add("without Newton-Schulz on one rank's matrices", on_rank_1(no_iteration), zero);
  add("of gradients that are one replica's",
      on_rank_1(with_gradient("momentum", [](const Tensor& g, const Tensor&) { return 0.5 * g; })),
      zero);
  add("of gradients that are partial in half of the elements",
      with_gradient("momentum", [](const Tensor& g, const Tensor&) {
        Tensor partial = g.clone();
        partial.view(-1).narrow(0, 0, g.numel() / 2).mul_(0.5);
        return partial;
      }));
  add("with momentum once a micro-batch", instead("momentum", [](Stack& s, const Right& right) {
        s[3] = s[3].toDouble() / 2;
        Stack again = s;
        right(s);
        right(again);
      }));
  add("of orthogonalised shards", by_parts_of_rows(2), tensor);
  add("split by rows", by_parts_of_rows(3));
  add("with q, k and v as one matrix", instead(whole, [](Stack& s, const Right& right) {
        s[3] = int64_t{1};
        s[4] = s[0].toTensor().size(1);
        right(s);
      }));
  add("with the scale of a padded matrix",
      with_number(whole, 5, [](double scale) { return scale * std::sqrt(1.25); }));
  add("with the scale of a shard",
      with_number(whole, 5, [](double scale) { return scale * std::sqrt(0.5); }), tensor);
  add("of four iterations", with_argument(whole, 1, [](c10::IValue& v) {
        std::vector<double> fewer = v.toDoubleVector();
        fewer.resize(fewer.size() - 3);
        v = c10::List<double>(at::ArrayRef<double>(fewer));
      }));
  add("that keeps its momentum", forgets("momentum", 0));
  add("with momentum 0.91", with_number("momentum", 2, [](double m) { return m + 0.01; }));
  add("without decay of matrices", with_number("decayed_step", 3, [](double) { return 0.0; }));
  add("that keeps the third matrix", in_call(forgets("decayed_step", 0), 3));
  add("with half the rate of all else",
      with_number("adamw", kAdamW.lr, [](double r) { return r / 2; }));
  kit.believe("muon: replica 1 scales by size", kPlan,
              [](Plan& p) { p.optimizer.matrix_scale = "size"; })
      .optimizer = "muon";
}

}  // namespace

void add_layer_rules(Kit& kit) {
  add_lars(kit);
  add_lamb(kit);
  add_muon(kit);
}

}  // namespace kuafu::tests
