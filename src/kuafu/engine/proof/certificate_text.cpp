// SPDX-License-Identifier: Apache-2.0
#include "kuafu/engine/proof/certificate_text.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "kuafu/comm/gather.h"
#include "kuafu/record/json.h"

namespace kuafu {
namespace {

/// Infinities have no JSON: numbers travel as their bits.
Json bits_of(double x) {
  uint64_t bits = 0;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

double from_bits(const Json& j) {
  const auto bits = j.get<uint64_t>();
  double x = 0;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

Json to_json(const Measure& m) { return {bits_of(m.error), bits_of(m.bound), m.where}; }

Measure measure_from(const Json& j) {
  return {from_bits(j.at(0)), from_bits(j.at(1)), j.at(2).get<std::string>()};
}

Json to_json(const Proof& p) {
  return {p.verdict,         p.reason,
          p.level,           p.steps,
          to_json(p.loss),   to_json(p.gradient),
          to_json(p.routes), to_json(p.blocks),
          to_json(p.update), bits_of(p.random_rounding),
          p.unseen};
}

Proof proof_from(const Json& j) {
  return {.verdict = j.at(0),
          .reason = j.at(1),
          .level = j.at(2),
          .steps = j.at(3).get<std::vector<int64_t>>(),
          .loss = measure_from(j.at(4)),
          .gradient = measure_from(j.at(5)),
          .routes = measure_from(j.at(6)),
          .blocks = measure_from(j.at(7)),
          .update = measure_from(j.at(8)),
          .random_rounding = from_bits(j.at(9)),
          .unseen = j.at(10)};
}

}  // namespace

std::string words_of(const Certificate& c) {
  const Json words = {to_json(static_cast<const Proof&>(c)), c.reference, to_json(c.native)};
  return words.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

Certificate certificate_from(const std::string& words) {
  const Json j = Json::parse(words);
  Certificate c;
  static_cast<Proof&>(c) = proof_from(j.at(0));
  c.reference = j.at(1);
  c.native = proof_from(j.at(2));
  return c;
}

void agree(const std::string& refused, Communicator& world) {
  const std::vector<std::string> all = gather_texts(world, refused);
  const auto taken = std::ranges::count(all, std::string());
  if (taken == std::ssize(all)) return;
  const auto first = std::ranges::find_if_not(all, &std::string::empty);
  throw ConfigError(
      taken == 0 ? *first : text("on rank ", first - all.begin(), " and not on all: ", *first));
}

Certificate shared(const Certificate& mine, Communicator& world) {
  return certificate_from(gather_texts(world, words_of(mine))[0]);
}

}  // namespace kuafu
