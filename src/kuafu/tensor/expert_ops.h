// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kuafu/tensor/tensor.h"

// Own ops of mixtures of experts: who visits whom, and rows in and out of an expert's slots. Index
// based: nothing of size tokens x experts x slots is ever made. Element-wise work books no FLOPs.
// B samples, S sequence, E experts, C slots of an expert and sample, H hidden.
namespace kuafu::ops {

/// How tokens and experts find each other. One sample is one group: the outcome depends on no
/// other.
struct RouteSpec {
  int64_t top_k = 2;     ///< experts a token chooses; 0: each expert chooses `capacity` tokens
  int64_t capacity = 1;  ///< tokens an expert takes of a sample
  int64_t slots = 1;     ///< C, capacity and what pads it
  /// Where not empty, (B, S) f64 numbers u in [0, 1): a token visits its second expert only if
  /// u < 2 g2, g2 its normalised gate.  [GShard, arXiv 2006.16668, algorithm 1]
  Tensor coin = {};
};

/// Statistics are f32, or f64 for f64 logits.
struct RouteOut {
  Tensor gates = {};   // (B, E, C) weight of the slot's token; 0 where empty
  Tensor losses = {};  // (2): sum over samples of E sum_e f_e P_e; sum over tokens of lse^2
  Tensor token = {};   // (B, E, C) i64 position in the sample, -1 where empty
  Tensor probs = {};   // (B, S, E) softmax of the logits
  Tensor lse = {};     // (B, S) log of its denominators
  Tensor norm = {};    // (B, S) divides a token's gates: sum of its k > 1 chosen probs, else 1
  Tensor chosen = {};  // (B, S, k) i64 choices, best first; (B, S, 0) where experts choose
  Tensor share = {};   // (B, E) d(sample's balance loss) / d(probs): E f_e / S
  Tensor counts = {};  // (2 E + 2) i64: tokens taken, choices by expert; choices dropped, made
};

/// Softmax gates and slots. Priority is the position in the sequence, first choices of all tokens
/// before second ones; ties go to the lowest expert, or the lowest token where experts choose (there
/// scores within 2^-26 of each other, 2^-18 for f32, are ties: kernels/experts.cpp).
/// Balance: f_e is the share of first choices, P_e the mean gate [Fedus et al., arXiv 2101.03961,
/// eq. 4-6]; none where experts choose [Zhou et al., arXiv 2202.09368]. logits (B, S, E).
RouteOut route(const Tensor& logits, const RouteSpec& spec);

/// dlogits (B, S, E) from the gradient of the gates and the weights of the two losses.
struct LossWeights {
  double balance = 0, z = 0;
};
Tensor route_backward(const Tensor& dgates, const RouteOut& saved, LossWeights weights);

/// place[token], and -1 where a slot is empty: the row of mine that holds its token. token (B, E,
/// C), place (S), i64.
Tensor local_rows(const Tensor& token, const Tensor& place);

/// rows[b, e, c] is a row of sample b, or -1: an empty slot. Fills (E, B, C, H) from x (B, R, H).
Tensor take_slots(const Tensor& x, const Tensor& rows);
/// The inverse sum: y[b, r] = sum of the slots that hold row r, in order of e, then c. (B, R, H).
Tensor sum_slots(const Tensor& slots, const Tensor& rows, int64_t num_rows);
/// y[b, r] = sum of gate * slot over the slots that hold row r. gates (B, E, C).
Tensor combine(const Tensor& slots, const Tensor& gates, const Tensor& rows, int64_t num_rows);
struct CombineGrads {
  Tensor dslots, dgates;
};
CombineGrads combine_backward(const Tensor& dy, const Tensor& slots, const Tensor& gates,
                              const Tensor& rows);

}  // namespace kuafu::ops
