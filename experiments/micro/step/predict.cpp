// SPDX-License-Identifier: Apache-2.0
//
// Motivation: whether a step takes the time that its arithmetic and its traffic must take, or more.
// What is compared: steps of a training run, and
//
//   predicted = F / R + B / L                                       ratio = predicted / measured
//
//   F  FLOPs of a rank and step, B  bytes a rank receives in a step: both from the meters of the
//   run. R  FLOP/s of a rank that makes the matrix products of the step, each shape as often as the
//   step
//      does, and nothing else, while all other ranks do the same.
//   L  bytes/s of a rank that makes the calls of the step (verb, axis and size, each as often as
//   the
//      step does) and nothing else, while all other ranks do the same.
//   Three things take turns in one run of the same ranks: products, calls, steps. A ratio is that
//   of one round. No overlap of products and calls is assumed, for the schemes have none. What the
//   model leaves out is charged to the program: norms, GELU, embedding, loss, optimizer, waiting
//   for slower ranks, Kuafu's own code; and attention counts at the rate of the products. That the
//   benchmark repeats what the step does is checked: FLOPs and bytes agree exactly. The steps that
//   are timed are certified.
// Last result: results/benchmarks/predicted-h1024.json.

#include <ATen/ATen.h>

#include <iostream>
#include <optional>

#include "experiments/micro/proven.h"
#include "experiments/micro/step/op_watch.h"
#include "experiments/micro/step/step.h"
#include "experiments/micro/step/watched_world.h"
#include "kuafu/comm/worlds.h"
#include "kuafu/engine/engine.h"
#include "kuafu/meter/book.h"
#include "kuafu/meter/flops.h"
#include "kuafu/record/table.h"
#include "kuafu/tensor/ops.h"
#include "kuafu/tensor/tensor.h"

namespace kuafu::micro {
namespace {

constexpr int64_t kWarmUp = 1;

/// What one rank does in one step.
struct StepWork {
  std::map<Product, int64_t> products;
  std::map<CallKind, int64_t> calls;
  int64_t flops = 0, matmul_flops = 0, bytes = 0;
};

int64_t received(const Ledger& ledger) {
  int64_t bytes = 0;
  for (const auto& [label, axis] : ledger.axes()) bytes += axis.bytes_received;
  return bytes;
}

/// Seconds of `body` from the moment all ranks begin to the moment the last one ends.
template <class Body>
double timed(Communicator& world, const Body& body) {
  world.barrier();
  const double start = wall_now();
  body();
  world.barrier();
  return wall_now() - start;
}

/// One step taken down. @pre a book is open on this thread.
StepWork work_of(const Plan& plan, const Registries& registries, Communicator& world,
                 const Dataset& data, RankBook& book) {
  CommWatch comm;
  Ledger ledger;
  const auto listening = watched(world, comm);
  Engine engine(plan, registries, *listening, data, {.ledger = &ledger});
  engine.step();  // the first also makes the optimizer's state
  ledger.clear();
  book.restart();
  comm.is_on = true;
  StepWork work;
  {
    const OpWatch ops(OpWatch::Of::kProducts);
    engine.step();
    work.products = ops.products();
  }
  work.calls = comm.calls;
  work.flops = book.flops() + book.flops_recomputed();
  work.bytes = received(ledger);
  for (const auto& [p, times] : work.products) {
    work.matmul_flops += times * flops::matmul(p.m, p.k, p.n);
  }
  KUAFU_CHECK(work.matmul_flops <= work.flops, work.matmul_flops, " of ", work.flops);
  return work;
}

/// Operands of every product of a step, and the products themselves.
class Products {
 public:
  explicit Products(const StepWork& work) : work_(work) {
    for (const auto& [p, times] : work.products) {
      operands_.push_back({at::ones({p.m, p.k}), at::ones({p.k, p.n})});
    }
  }
  void make() const {
    size_t i = 0;
    for (const auto& [p, times] : work_.products) {
      const auto& [a, b] = operands_[i++];
      for (int64_t t = 0; t < times; ++t) ops::matmul(a, b);
    }
  }

 private:
  const StepWork& work_;
  std::vector<std::pair<Tensor, Tensor>> operands_;
};

/// The calls of a step on the groups of a mesh.
class Calls {
 public:
  Calls(const StepWork& work, const Mesh& mesh) : work_(work), mesh_(mesh) {
    int64_t most = 0, longest = 0;
    for (const auto& [kind, times] : work.calls) {
      most = std::max(most, kind.bytes);
      longest = std::max<int64_t>(longest, mesh.comm(kind.axis).size());
    }
    for (Tensor* t : {&big_, &small_}) *t = at::ones({longest * (most / 4 + 2)}, at::kFloat);
  }
  void make() const {
    for (const auto& [kind, times] : work_.calls) {
      Communicator& c = mesh_.comm(kind.axis);
      for (int64_t t = 0; t < times; ++t) call(c, kind, static_cast<int>(t % c.size()));
    }
  }

 private:
  void call(Communicator& c, const CallKind& kind, int root) const {
    // Scalars are f64; whatever else a step sends here is f32.
    const DType type = kind.bytes % 4 == 0 ? DType::kF32 : DType::kU8;
    const int64_t count = type == DType::kF32 ? kind.bytes / 4 : kind.bytes;
    const Buffer whole{big_.mutable_data_ptr(), count, type};
    const Buffer part{small_.mutable_data_ptr(), count / c.size(), type};
    switch (kind.verb) {
      case Verb::kBroadcast:
        return c.broadcast(whole, root).wait_host();
      case Verb::kReduce:
        return c.reduce(whole, root, ReduceOp::kSum).wait_host();
      case Verb::kAllReduce:
        return c.all_reduce(whole, ReduceOp::kMax).wait_host();
      case Verb::kAllGather:
        return c.all_gather(whole, part).wait_host();
      case Verb::kReduceScatter:
        return c.reduce_scatter(part, whole, ReduceOp::kSum).wait_host();
      default:
        KUAFU_CHECK(false, "a step of a tensor scheme makes no ", to_string(kind.verb));
    }
  }

  const StepWork& work_;
  const Mesh& mesh_;
  Tensor big_, small_;
};

/// Seconds by round, and what they are for.
struct Measured {
  std::vector<double> products, calls, steps;
  int64_t flops = 0, matmul_flops = 0, bytes = 0, num_calls = 0;
  Json certificate;
  double predicted(size_t round) const {
    const double rate = static_cast<double>(matmul_flops) / products[round];
    return static_cast<double>(flops) / rate + calls[round];
  }
};

void measure(const Plan& plan, int64_t rounds, Communicator& world, Measured& out) {
  const Registries registries = builtin_registries();
  const auto data = make_dataset(plan.data, plan.model, plan.train.seed, "");
  RankBook book(world.rank());
  const BookScope booked(&book);
  const StepWork work = work_of(plan, registries, world, *data, book);
  Ledger ledger;
  std::optional<Engine> engine;
  engine.emplace(plan, registries, world, *data, EngineOptions{.ledger = &ledger});
  ProvenSteps proven(plan);
  const Products products(work);
  const Calls calls(work, engine->mesh());
  for (int64_t round = -kWarmUp; round < rounds; ++round) {
    book.restart();
    const double product_s = timed(world, [&] { products.make(); });
    KUAFU_CHECK(book.flops() == work.matmul_flops, book.flops(), " for ", work.matmul_flops);
    ledger.clear();
    const double call_s = timed(world, [&] { calls.make(); });
    KUAFU_CHECK(received(ledger) == work.bytes, received(ledger), " for ", work.bytes);
    const double step_s =
        proven.step(*engine, [&](const auto& body) { return timed(world, body); });
    if (round < 0 || world.rank() != 0) continue;
    out.products.push_back(product_s);
    out.calls.push_back(call_s);
    out.steps.push_back(step_s);
  }
  engine.reset();
  book.is_counting = false;
  const Json certificate = proven.certificate(registries, world);
  if (world.rank() != 0) return;
  out.certificate = certificate;
  out.flops = work.flops;
  out.matmul_flops = work.matmul_flops;
  out.bytes = work.bytes;
  for (const auto& [kind, times] : work.calls) out.num_calls += times;
}

Json to_json(const Measured& m) {
  std::vector<double> predicted, ratios, rates, links;
  for (size_t r = 0; r < m.steps.size(); ++r) {
    predicted.push_back(m.predicted(r));
    ratios.push_back(predicted.back() / m.steps[r]);
    rates.push_back(static_cast<double>(m.matmul_flops) / m.products[r]);
    links.push_back(static_cast<double>(m.bytes) / m.calls[r]);
  }
  return {{"flops_per_rank", m.flops},           {"matmul_flops_per_rank", m.matmul_flops},
          {"bytes_received_per_rank", m.bytes},  {"calls_per_rank", m.num_calls},
          {"matmul_flops_per_s", spread(rates)}, {"link_bytes_per_s", spread(links)},
          {"calls_s", spread(m.calls)},          {"predicted_s", spread(predicted)},
          {"step_s", spread(m.steps)},           {"ratio", spread(ratios)},
          {"certificate", m.certificate}};
}

}  // namespace

Json predict(const Shape& shape, int64_t rounds) {
  using Align = Table::Align;
  Table table({{"scheme"},
               {"GFLOP/s a rank", Align::kRight},
               {"GB/s a rank", Align::kRight},
               {"calls ms", Align::kRight},
               {"predicted ms", Align::kRight},
               {"step ms", Align::kRight},
               {"predicted / step", Align::kRight},
               {"quartiles", Align::kRight}});
  Json document = {{"benchmark", "predicted_step"}, {"schemes", Json::array()}};
  for (const Scheme& scheme : {Scheme{"2d", 4, 1}, Scheme{"2.5d", 8, 2}, Scheme{"3d", 8, 1}}) {
    const Plan plan = plan_of(scheme, shape, kWarmUp + rounds);
    Measured measured;
    run_on_threads(static_cast<int>(num_ranks(plan)),
                   [&](Communicator& world) { measure(plan, rounds, world, measured); });
    Json entry = to_json(measured);
    entry["settings"] = to_json(scheme, shape);
    const auto shown = [](const Json& value, double factor) {
      return human_number(factor * value.get<double>(), 3);
    };
    const Json& quartiles = entry["ratio"]["quartiles"];
    table.add({to_string(scheme), shown(entry["matmul_flops_per_s"]["median"], 1e-9),
               shown(entry["link_bytes_per_s"]["median"], 1e-9),
               shown(entry["calls_s"]["median"], 1e3), shown(entry["predicted_s"]["median"], 1e3),
               shown(entry["step_s"]["median"], 1e3), shown(entry["ratio"]["median"], 1),
               text(shown(quartiles[0], 1), " to ", shown(quartiles[1], 1))});
    document["schemes"].push_back(entry);
  }
  std::cout << table.str() << std::flush;
  return document;
}

}  // namespace kuafu::micro
