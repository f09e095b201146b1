// SPDX-License-Identifier: Apache-2.0
//
// Motivation: what the program itself costs beside the arithmetic it arranges.
// What is compared: the CPU time that the ranks of one training step spend, all ranks together,
//   by the outermost op they are in (thread CPU clocks, so waits for others do not count):
//     matmul      products of matrices, what they copy inside included
//     attention   the attention kernels
//     copies      copies, concatenations, fills; and all communication, which on thread ranks is
//                 copying and adding
//     model       the other kernels: norms, GELU, embedding, loss, optimizer
//     own         the rest of the step: in no kernel. Dispatch, views, allocation, autograd,
//                 layouts, samples, meters, and the observer of this benchmark itself: an upper
//                 bound
//   "own" is the overhead of Kuafu's code; "all but matmul, attention, copies" is model + own.
//   The steps that are watched are certified.
// Last result: results/benchmarks/overhead-h1024.json.

#include <iostream>
#include <optional>

#include "experiments/micro/proven.h"
#include "experiments/micro/step/op_watch.h"
#include "experiments/micro/step/step.h"
#include "experiments/micro/step/watched_world.h"
#include "kuafu/comm/worlds.h"
#include "kuafu/engine/engine.h"
#include "kuafu/meter/book.h"
#include "kuafu/record/table.h"

namespace kuafu::micro {
namespace {

constexpr int64_t kProfileWarmUp = 2;

/// CPU seconds of one step on one rank, or on all.
struct Spent {
  double all = 0, matmul = 0, attention = 0, copies = 0, model = 0;
  double own() const { return all - matmul - attention - copies - model; }
  void add(const Spent& s) {
    all += s.all;
    matmul += s.matmul;
    attention += s.attention;
    copies += s.copies;
    model += s.model;
  }
};

/// What one scheme spent: by step, all ranks together; the ops of rank 0 by name.
struct Profile {
  std::vector<Spent> steps;
  std::map<std::string, double> by_op;
  int64_t calls = 0;
  Json certificate;
};

template <class Body>
Spent watched_step(const Body& step, CommWatch& comm, Profile* profile) {
  const OpWatch ops(OpWatch::Of::kTimes);
  comm = CommWatch();
  comm.is_on = true;
  const double start = thread_cpu_now();
  step();
  Spent s;
  s.all = thread_cpu_now() - start;
  comm.is_on = false;
  s.matmul = ops.cpu_s(Kind::kMatmul);
  s.attention = ops.cpu_s(Kind::kAttention);
  s.copies = ops.cpu_s(Kind::kCopy) + comm.cpu_s;
  s.model = ops.cpu_s(Kind::kModel);
  if (profile != nullptr) {
    profile->calls = ops.num_calls();
    for (const auto& [op, seconds] : ops.cpu_s_by_op()) profile->by_op[op] += seconds;
  }
  return s;
}

Profile profile_of(const Plan& plan, int64_t steps) {
  const Registries registries = builtin_registries();
  const auto ranks = static_cast<int>(num_ranks(plan));
  std::vector<std::vector<Spent>> by_rank(static_cast<size_t>(ranks));
  Profile profile;
  run_on_threads(ranks, [&](Communicator& world) {
    CommWatch comm;
    const auto data = make_dataset(plan.data, plan.model, plan.train.seed, "");
    const auto listening = watched(world, comm);
    RankBook book(world.rank());
    Ledger ledger;
    const BookScope booked(&book);
    std::optional<Engine> engine;
    engine.emplace(plan, registries, *listening, *data, EngineOptions{.ledger = &ledger});
    ProvenSteps proven(plan);
    for (int64_t step = -kProfileWarmUp; step < steps; ++step) {
      world.barrier();
      const bool tells = world.rank() == 0 && step >= 0;
      const Spent s = proven.step(*engine, [&](const auto& body) {
        return watched_step(body, comm, tells ? &profile : nullptr);
      });
      if (step >= 0) by_rank[static_cast<size_t>(world.rank())].push_back(s);
    }
    engine.reset();
    book.is_counting = false;
    const Json certificate = proven.certificate(registries, world);
    if (world.rank() == 0) profile.certificate = certificate;
  });
  profile.steps.resize(static_cast<size_t>(steps));
  for (const auto& rank : by_rank) {
    for (size_t i = 0; i < rank.size(); ++i) profile.steps[i].add(rank[i]);
  }
  return profile;
}

Json shares(const Profile& profile, double Spent::*part) {
  std::vector<double> out;
  for (const Spent& s : profile.steps) out.push_back(s.*part / s.all);
  return spread(out);
}

Json to_json(const Profile& profile) {
  std::vector<double> all, own, rest;
  for (const Spent& s : profile.steps) {
    all.push_back(s.all);
    own.push_back(s.own() / s.all);
    rest.push_back((s.own() + s.model) / s.all);
  }
  Json ops;
  for (const auto& [op, seconds] : profile.by_op) {
    ops[op] = {{"kind", kuafu::to_string(kind_of(op))},
               {"cpu_s_per_step", seconds / static_cast<double>(profile.steps.size())}};
  }
  return {{"cpu_s", spread(all)},
          {"share",
           {{"matmul", shares(profile, &Spent::matmul)},
            {"attention", shares(profile, &Spent::attention)},
            {"copies", shares(profile, &Spent::copies)},
            {"model", shares(profile, &Spent::model)},
            {"own", spread(own)},
            {"all_but_matmul_attention_copies", spread(rest)}}},
          {"certificate", profile.certificate},
          {"ops_of_rank_0", {{"calls_per_step", profile.calls}, {"by_name", ops}}}};
}

}  // namespace

Json profile(const Shape& shape, int64_t steps) {
  const std::vector<Scheme> schemes = {{"none", 1, 1}, {"1d", 4, 1},   {"1d-sp", 4, 1},
                                       {"2d", 4, 1},   {"2.5d", 8, 2}, {"3d", 8, 1}};
  using Align = Table::Align;
  Table table({{"scheme"},
               {"CPU ms a step", Align::kRight},
               {"matmul %", Align::kRight},
               {"attention %", Align::kRight},
               {"copies %", Align::kRight},
               {"model %", Align::kRight},
               {"own %", Align::kRight},
               {"own, quartiles", Align::kRight},
               {"model + own %", Align::kRight}});
  Json document = {{"benchmark", "overhead"}, {"schemes", Json::array()}};
  for (const Scheme& scheme : schemes) {
    Json entry = to_json(profile_of(plan_of(scheme, shape, kProfileWarmUp + steps), steps));
    entry["settings"] = to_json(scheme, shape);
    const auto percent = [](const Json& share) {
      return human_number(100 * share.get<double>(), 3);
    };
    const Json& share = entry["share"];
    std::vector<std::string> row = {to_string(scheme),
                                    human_number(1e3 * entry["cpu_s"]["median"].get<double>(), 4)};
    for (const char* part : {"matmul", "attention", "copies", "model", "own"}) {
      row.push_back(percent(share[part]["median"]));
    }
    row.push_back(
        text(percent(share["own"]["quartiles"][0]), " to ", percent(share["own"]["quartiles"][1])));
    row.push_back(percent(share["all_but_matmul_attention_copies"]["median"]));
    table.add(row);
    document["schemes"].push_back(entry);
  }
  std::cout << table.str() << std::flush;
  return document;
}

}  // namespace kuafu::micro
