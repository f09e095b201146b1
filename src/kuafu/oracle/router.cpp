// SPDX-License-Identifier: Apache-2.0
//
// Top-k gating, without noise         [Shazeer et al., arXiv 1701.06538, equations 3 and 5]
// Capacity, order of slots, random second [Lepikhin et al., arXiv 2006.16668, algorithm 1]
// Switch: k = 1                           [Fedus et al., arXiv 2101.03961, section 2.1]
// Experts choose tokens                   [Zhou et al., arXiv 2202.09368, section 3.2]
//
// Slots are filled by first choices of all tokens, in the order of positions, then by second ones
// (algorithm 1 loops over the group twice). Scores that are equal, byte by byte, go to the lowest
// index: a stable sort keeps it in front. Experts that choose take scores near the least one taken
// for equal.

#include "kuafu/oracle/router.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include <ATen/ATen.h>

#include "kuafu/base/errors.h"
#include "kuafu/oracle/random.h"

namespace kuafu::oracle {
namespace {

constexpr double kBroken = std::numeric_limits<double>::infinity();

struct Ranked {
  Tensor scores, index;  // best first
};
Ranked ranked(const Tensor& scores, int64_t dim) {
  auto [values, index] = at::sort(scores, /*stable=*/true, dim, /*descending=*/true);
  return {values, index};
}

/// Experts that choose take scores within this share of the least one taken for equal to it: tokens
/// of equal bytes that see equal tokens have equal scores in exact arithmetic, and rounding must not
/// choose. It goes by the type of the plan, whatever the type of the weights here, so that a
/// reference in f64 decides as the run that it judges.
double tied_share(const Call& call) { return call.plan.dtype == DType::kF64 ? 0x1p-26 : 0x1p-18; }

/// The tokens of each expert: those of the highest scores, (B, E, S) -> (B, E, capacity); of equal
/// ones the first.
Tensor chosen_tokens(const Call& call, const Tensor& scores, int64_t capacity) {
  const Tensor least = ranked(scores, 2).scores.narrow(2, capacity - 1, 1);
  const Tensor band = least * tied_share(call);
  // 0: clearly in, by score; 1: equal to the least, by index; 2: clearly out.
  const Tensor rank =
      2 - scores.gt(least + band).to(at::kLong) - scores.ge(least - band).to(at::kLong);
  const Tensor by_score = ranked(scores.masked_fill(rank.ne(0), 0), 2).index;
  const auto by_rank = at::sort(rank.gather(2, by_score), /*stable=*/true, 2, /*descending=*/false);
  return by_score.gather(2, std::get<1>(by_rank)).narrow(2, 0, capacity);
}

/// Gates of a token's choices: their probabilities over their sum.            (B, S, k)
Tensor normalised(const Tensor& probs, const Tensor& choices) {
  const Tensor p = probs.gather(2, choices);
  return p / p.sum(2, true);
}

/// (B, S): what the coin of a token is measured on, twice the gate of its second choice.
Tensor chance_of_second(const Tensor& probs, const Tensor& choices) {
  return 2 * normalised(probs, choices).select(2, 1).to(at::kDouble);
}

Tensor coins_of(const Call& call, const std::string& name, const Tensor& probs) {
  return coins({call.seed, name, call.samples.step}, call.samples.first, probs.size(0),
               probs.size(1));
}

bool has_coins(const Call& call, const Tensor& choices) {
  return call.plan.random_second && choices.size(2) > 1;
}

/// (B, S) bool: algorithm 1, lines 12 to 15: the second expert is visited where 2 g2 > random.
Tensor visits_second(const Call& call, const Tensor& probs, const std::string& name,
                     const Tensor& choices) {
  if (!has_coins(call, choices)) return at::ones(choices.sizes().slice(0, 2), at::kBool);
  return coins_of(call, name, probs).lt(chance_of_second(probs, choices));
}

/// Slots from choices: an expert that is full takes no more.                 (B, E, C)
Tensor fill_slots(const Tensor& choices, const Tensor& second, int64_t experts, int64_t capacity) {
  const int64_t samples = choices.size(0), sequence = choices.size(1), k = choices.size(2);
  const Tensor slots = at::full({samples, experts, capacity}, -1, at::kLong);
  const Tensor visits = second.contiguous();
  const auto chosen = choices.accessor<int64_t, 3>();
  const auto visited = visits.accessor<bool, 2>();
  auto slot = slots.accessor<int64_t, 3>();
  for (int64_t b = 0; b < samples; ++b) {
    std::vector<int64_t> used(static_cast<size_t>(experts));
    for (int64_t j = 0; j < k; ++j) {
      for (int64_t s = 0; s < sequence; ++s) {
        if (j == 1 && !visited[b][s]) continue;
        const int64_t e = chosen[b][s][j];
        int64_t& count = used[static_cast<size_t>(e)];
        if (count < capacity) slot[b][e][count++] = s;
      }
    }
  }
  return slots;
}

/// (B, S, E) bool: true where a slot of the expert holds the token.
Tensor held(const Tensor& slots, int64_t sequence) {
  const int64_t b = slots.size(0), e = slots.size(1);
  const Tensor place = at::where(slots.ge(0), slots, at::full({}, sequence, slots.options()));
  const Tensor out = at::zeros({b, e, sequence + 1}, at::kBool);
  return out.scatter(2, place, true).narrow(2, 0, sequence).transpose(1, 2);
}

void regret_of(Regret& regret, const Tensor& best, const Tensor& taken) {
  regret.most = std::max(regret.most, (best - taken).max().item<double>());
}

/// The experts that hold a token and, in place of choices that no slot shows, the oracle's best of
/// the others; all in the order of the oracle's scores.                      (B, S, k)
Tensor guessed_choices(const Tensor& probs, const Tensor& is_held, int64_t k) {
  // Probabilities are at most 1: those that are held come before all others. Then by index, so that
  // equal scores stay in its order.
  const Tensor best = ranked(probs + 2 * is_held.to(probs.scalar_type()), 2).index.narrow(2, 0, k);
  const Tensor first = std::get<0>(best.sort(2));
  const Tensor order = ranked(probs.gather(2, first), 2).index;
  return first.gather(2, order);
}

/// Throws WrongRoutes where `given` is no i64 tensor of these extents (of the last dim, that or
/// more) with numbers in [least, end).
struct Expected {
  const char* what;
  std::array<int64_t, 3> extents;
  int64_t least, end;
};
void check(const Tensor& given, const Expected& e) {
  const auto require = [&](bool is_so, const auto&... words) {
    if (!is_so) throw WrongRoutes(text(e.what, words...));
  };
  require(given.scalar_type() == at::kLong && given.dim() == 3, " ", given.sizes(), " of ",
          given.scalar_type(), " handed to the oracle; allowed: 3 dims of i64");
  require(given.size(0) == e.extents[0] && given.size(1) == e.extents[1] &&
              given.size(2) >= e.extents[2],
          " ", given.sizes(), " handed to the oracle; allowed: (", e.extents[0], ", ", e.extents[1],
          ", ", e.extents[2], ")");
  require(given.ge(e.least).logical_and(given.lt(e.end)).all().item<bool>(),
          " handed to the oracle hold numbers outside [", e.least, ", ", e.end, ")");
}

/// Each sample's slots without what pads them; broken where a used slot lies beyond `capacity`.
Tensor unpadded(const Tensor& slots, int64_t capacity, Regret& regret) {
  if (slots.narrow(2, capacity, slots.size(2) - capacity).ge(0).any().item<bool>()) {
    regret.most = kBroken;
  }
  return slots.narrow(2, 0, capacity);
}

/// Experts choose: their tokens' scores, sorted, against the best ones. One from the lower rim of
/// the band of equal scores may stand in the place of one from its upper rim.
void regret_of_experts(const Call& call, const Tensor& probs, const Tensor& slots, Regret& regret) {
  const int64_t capacity = slots.size(2);
  const Tensor count = held(slots, probs.size(1)).sum(1);  // distinct tokens of an expert (B, E)
  if (!count.eq(capacity).all().item<bool>()) {
    regret.most = kBroken;
    return;
  }
  const Tensor scores = probs.transpose(1, 2).contiguous();  // (B, E, S)
  const Tensor best = ranked(scores, 2).scores.narrow(2, 0, capacity);
  const Tensor band = 2 * tied_share(call) * best.narrow(2, capacity - 1, 1);
  regret_of(regret, best, ranked(scores.gather(2, slots), 2).scores + band);
}

}  // namespace

int64_t num_choices(const ModelPlan& plan) {
  if (plan.router == "top1") return 1;
  if (plan.router == "top2") return std::min<int64_t>(2, plan.experts);
  return plan.router == "topk" ? plan.top_k : 0;
}

int64_t capacity_of(const ModelPlan& plan) {
  const int64_t k = std::max<int64_t>(1, num_choices(plan));
  const double share = plan.capacity_factor * static_cast<double>(k * plan.sequence) /
                       static_cast<double>(plan.experts);
  // 1.1 * 10 is 11 slots, though its rounding lies above.
  const double slots = std::ceil(share * (1 - 1e-12));
  return static_cast<int64_t>(std::clamp(slots, 1.0, static_cast<double>(plan.sequence)));
}

Decision decide(const Call& call, const Tensor& probs, const std::string& name) {
  const int64_t k = num_choices(call.plan), capacity = capacity_of(call.plan);
  if (k == 0) {
    return {.choices = {},
            .slots = chosen_tokens(call, probs.transpose(1, 2).contiguous(), capacity)};
  }
  const Tensor choices = ranked(probs, 2).index.narrow(2, 0, k);
  return {.choices = choices,
          .slots = fill_slots(choices, visits_second(call, probs, name, choices), probs.size(2),
                              capacity)};
}

Decision complete(const Call& call, const Tensor& probs, const std::string& name,
                  const Tensor& given, const Tensor& choices, Regret& regret) {
  const int64_t k = num_choices(call.plan), capacity = capacity_of(call.plan);
  const int64_t samples = probs.size(0), sequence = probs.size(1), experts = probs.size(2);
  check(given, {"slots", {samples, experts, capacity}, -1, sequence});
  const Tensor slots = unpadded(given, capacity, regret);
  if (k == 0) {
    regret_of_experts(call, probs, slots, regret);
    return {.choices = {}, .slots = slots};
  }
  if (choices.defined()) check(choices, {"choices", {samples, sequence, k}, 0, experts});
  const Tensor is_held = held(slots, sequence);
  Decision d{.choices = choices.defined() ? choices : guessed_choices(probs, is_held, k),
             .slots = slots};
  regret_of(regret, ranked(probs, 2).scores.narrow(2, 0, k), probs.gather(2, d.choices));
  Tensor visits = visits_second(call, probs, name, d.choices);
  if (has_coins(call, d.choices)) {
    // Whose second expert holds it did visit; who lacks a slot though there is one left, or a later
    // token got one by its second choice, did not.
    const Tensor second = d.choices.select(2, 1);
    const Tensor has_slot = is_held.gather(2, second.unsqueeze(2)).squeeze(2);
    const Tensor place = at::arange(sequence).expand({samples, sequence});
    const Tensor last =
        at::full({samples, experts}, -1, at::kLong)
            .scatter_reduce(1, second, place.masked_fill(has_slot.logical_not(), -1), "amax");
    const Tensor has_room =
        slots.lt(0).any(2).gather(1, second).logical_or(last.gather(1, second).gt(place));
    const Tensor seen = has_slot.logical_or(visits.logical_and(has_room.logical_not()));
    const Tensor far = (coins_of(call, name, probs) - chance_of_second(probs, d.choices)).abs();
    const double most = far.masked_fill(seen.eq(visits), 0).max().item<double>();
    regret.most = std::max(regret.most, most);
    visits = seen;
  }
  // The rest follows from the choices without any rounding.
  if (!fill_slots(d.choices, visits, experts, capacity).equal(slots)) regret.most = kBroken;
  return d;
}

}  // namespace kuafu::oracle
