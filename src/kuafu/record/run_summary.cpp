// SPDX-License-Identifier: Apache-2.0
#include "kuafu/record/run_summary.h"

#include <algorithm>
#include <iostream>

#include "kuafu/base/errors.h"
#include "kuafu/base/units.h"
#include "kuafu/base/worlds.h"
#include "kuafu/record/certificate_words.h"
#include "kuafu/record/schema.h"
#include "kuafu/record/table.h"

namespace kuafu {
namespace {

std::string number(const Json& x, int digits) { return human_number(x.get<double>(), digits); }

/// "embedding 20.5 k, attention 33.3 k": what `print` makes of each entry above 0.
template <class Print>
std::string listed(const Json& by_name, const Print& print) {
  std::string words;
  for (const auto& [name, count] : by_name.items()) {
    if (count == 0) continue;
    words += text(words.empty() ? "" : ", ", name, " ", print(count.template get<int64_t>()));
  }
  return words;
}

std::string rounded(int64_t n) { return print_count(static_cast<double>(n)); }

void print_model(const Json& d) {
  const Json& p = d["parameters"];
  if (!p.is_object()) return;
  std::cout << "  model           " << d["plan"]["model"]["kind"].get<std::string>() << ", "
            << rounded(p["total"]) << " parameters: " << listed(p["by_kind"], rounded) << "\n";
  if (d["ranks"] == 1) return;
  std::cout << "  on a rank       " << rounded(p["fullest_rank"]["total"])
            << " parameters at most, on rank " << p["fullest_rank"]["rank"] << "\n";
}

/// What was read; nothing of the simulated world.
void print_data(const Json& d) {
  const Json& data = d["data"];
  if (!data.is_object()) return;
  std::cout << "  data            " << data["kind"].get<std::string>();
  if (data["bytes"] > 0) std::cout << ", " << print_bytes(data["bytes"].get<int64_t>());
  if (data["samples"].is_number()) {
    std::cout << ", " << data["samples"] << " samples";
  } else {
    std::cout << ", endless";
  }
  std::cout << "\n";
}

/// Of a run that scales its loss: a skipped step updated nothing.
void print_scale(const Json& d) {
  const Json& scale = d["scale"];
  if (scale.empty()) return;
  std::cout << "  loss scale      " << number(scale.front(), 5);
  if (scale.front() != scale.back()) std::cout << " -> " << number(scale.back(), 5);
  std::cout << ", " << d["skipped"].size() << " of " << scale.size()
            << " steps skipped: their gradients overflowed\n";
}

/// Whether the checkpoint that it went on from had done every step.
bool has_nothing_left(const Json& d) {
  return d["resumed_from"].is_number() && d["resumed_from"] >= d["plan"]["train"]["steps"];
}

/// Of a run that made no step.
void print_rest(const Json& d) {
  std::cout << "  nothing left: step " << d["resumed_from"] << " of " << d["plan"]["train"]["steps"]
            << "\n";
  if (!d["validation_loss"].is_number()) return;
  std::cout << "  validation loss " << number(d["validation_loss"], 5) << "\n";
}

/// The series, where it says more than the loss after the last step, and which step was the best.
void print_validation(const Json& d) {
  const Json& v = d["validation"];
  if (!v.is_object() || v["steps"].empty()) return;
  const Json &last = v["losses"].back(), &best = v["best_step"];
  if (d["validation_loss"].is_number() && v["steps"].size() == 1) return;
  std::cout << "  validation      ";
  std::cout << (last.is_number() ? number(last, 5) : "no number") << " after step "
            << v["steps"].back();
  if (best == v["steps"].back()) {
    std::cout << ", the best";
  } else if (best.is_number()) {
    std::cout << ", best " << number(v["best_loss"], 5) << " after step " << best;
  }
  std::cout << "\n";
}

/// What was recorded of layers, or why nothing was.
void print_telemetry(const Json& d) {
  if (d["plan"]["train"]["telemetry"] != true) return;
  std::cout << "  telemetry       ";
  const Json& t = d["telemetry"];
  if (d["world"] == worlds::kSimulated) {
    std::cout << "none: this world computes no numbers\n";
  } else if (!t.is_object()) {
    std::cout << "none: no step was made\n";
  } else {
    std::cout << t["layers"].size() << " layers in " << t["steps"].size()
              << (t["steps"].size() == 1 ? " step" : " steps");
    if (!t["noise_scale"].is_array()) {
      std::cout
          << "; no noise scale: it needs gradients of two batch sizes; one replica with one "
             "micro-batch has those of one, and a schedule that leaves gradients of weights for "
             "later mixes them";
    }
    std::cout << "\n";
  }
}

void print_step_time(const Json& d) {
  const auto time = [](const Json& s) { return print_seconds(s.get<double>()); };
  const Json& t = d["step_time_s"];
  const bool is_priced = d["world"] == worlds::kSimulated;
  std::cout << "  step time       " << (is_priced ? "~" : "") << time(t["median"]);
  if (is_priced) {
    std::cout << "  estimated by the cost model, not measured\n";
  } else if (t["ci95"].is_null()) {
    const size_t steps = t["samples"].size() - t.value("warmup", size_t{0});
    std::cout << (steps == 1 ? "  of one step" : text("  median of ", steps, " steps"))
              << ": too few for an interval\n";
  } else {
    std::cout << "  [" << time(t["ci95"][0]) << ", " << time(t["ci95"][1]) << "]: median [95 %]\n";
  }
}

void print_training(const Json& d) {
  const bool is_priced = d["world"] == worlds::kSimulated;
  print_step_time(d);
  if (d["tokens_per_s"].is_number()) {
    std::cout << "  throughput      " << (is_priced ? "~" : "")
              << print_count(d["tokens_per_s"].get<double>()) << " tokens/s\n";
  }
  if (d["loss"].is_array() && !d["loss"].empty()) {
    std::cout << "  loss            " << number(d["loss"].front(), 5) << " -> "
              << number(d["loss"].back(), 5);
    if (d["validation_loss"].is_number()) {
      std::cout << ", validation " << number(d["validation_loss"], 5);
    }
    std::cout << "\n";
  }
  print_validation(d);
  if (d["world"] == worlds::kSimulated) {
    std::cout << "  loss            none: this world computes no numbers\n";
  }
  if (d["loss_scale"].is_object()) print_scale(d["loss_scale"]);
  print_telemetry(d);
}

void print_counts(const Json& d) {
  const Json& peaks = d["memory"]["peak_bytes"];
  const auto fullest =
      static_cast<size_t>(std::max_element(peaks.begin(), peaks.end()) - peaks.begin());
  int64_t received = 0;
  for (const Json& axis : d["ledger"]) {
    for (const Json& b : axis["bytes_received"]) received += b.get<int64_t>();
  }
  std::cout << "  peak memory     " << print_bytes(peaks[fullest].get<int64_t>()) << " on rank "
            << fullest << ", the fullest: " << listed(d["memory"]["at_peak"][fullest], print_bytes)
            << "\n"
            << "  received        " << print_bytes(received) << ", all ranks and steps\n"
            << "  model FLOPs     " << print_count(d["flops_per_step"].get<double>(), "FLOP")
            << " a step, " << print_count(d["flops_per_token"].get<double>(), "FLOP")
            << " a token\n";
  if (const auto own = d["flops_optimizer"].get<double>(); own > 0) {
    std::cout << "  optimizer FLOPs " << print_count(own, "FLOP") << " a step, no model FLOPs\n";
  }
}

int64_t sum_of(const Json& list) {
  int64_t sum = 0;
  for (const Json& x : list) sum += x.get<int64_t>();
  return sum;
}

/// ", 2 MiB from the disk, ..."; empty where nothing went there.
std::string of_disk(const Json& moves) {
  if (!moves.contains("disk_bytes") || sum_of(moves["disk_bytes"]) == 0) return "";
  return text(", ", print_bytes(sum_of(moves["disk_read_bytes"])), " from the disk, ",
              print_bytes(sum_of(moves["disk_written_bytes"])), " to the disk");
}

/// ", 3 MiB of activations to the host and back in a step"; empty where none went.
std::string of_activations(const Json& moves) {
  const Json& bytes = value_at(moves, "step_activation_bytes");
  if (!bytes.is_array() || sum_of(bytes) == 0) return "";
  return text(", ", print_bytes(sum_of(bytes)), " of activations to the host and back in a step");
}

/// Between tiers of memory, all ranks: both directions, what was waited for, and what more than the
/// least went to the device in a step.
void print_moves(const Json& moves) {
  double waited = 0;
  for (const Json& s : moves["wait_s"]) waited = std::max(waited, s.get<double>());
  std::cout << "  moves           " << print_bytes(sum_of(moves["to_device_bytes"]))
            << " to the device, " << print_bytes(sum_of(moves["to_host_bytes"])) << " to the host"
            << of_disk(moves) << of_activations(moves) << "; a rank waited up to "
            << print_seconds(waited) << "; " << sum_of(moves["prefetch_hits"]) << " of "
            << sum_of(moves["prefetches"]) << " prefetches used; ";
  if (moves["regret_bytes"].is_array()) {
    std::cout << print_bytes(sum_of(moves["regret_bytes"])) << " a step over the least of "
              << print_bytes(sum_of(moves["least_bytes"])) << "\n";
  } else {
    std::cout << "regret unknown";
    if (moves["regret_reason"].is_string()) {
      std::cout << ": " << moves["regret_reason"].get<std::string>();
    }
    std::cout << "\n";
  }
}

void print_parts(const Json& d) {
  if (const Json& x = d["moves"]; x.is_object()) print_moves(x);

  if (const Json& x = d["experts"]; x.is_object()) {
    std::cout << "  experts         " << human_number(100 * x["drop_rate"].get<double>(), 3)
              << " % of choices dropped, imbalance " << number(x["imbalance"], 3) << "\n";
  }
  if (const Json& x = d["checkpoint"]; x.is_object() && x["saves"] != 0) {
    int64_t bytes = 0;
    double seconds = 0;
    for (const Json& b : x["bytes"]) bytes += b.get<int64_t>();
    for (const Json& s : x["samples"]) seconds += s.get<double>();
    std::cout << "  checkpoints     " << x["saves"] << ", " << print_bytes(bytes) << " in "
              << print_seconds(seconds) << "\n";
  }
}

/// ", steps 1, 2, 3, 18, 30 of 30": those of the timed run that were compared.
std::string words_of_proven_steps(const Json& d) {
  const Json& steps = d["certificate"]["native"]["steps"];
  constexpr size_t kShown = 12;  // a replay may have compared all of a long run
  std::string words = steps.size() > kShown ? text(", ", steps.size(), " steps") : "";
  for (size_t i = 0; i < steps.size() && steps.size() <= kShown; ++i) {
    words += text(i == 0 ? ", steps " : ", ", steps[i].get<int64_t>() + 1);
  }
  return words.empty() ? "" : text(words, " of ", d["plan"]["train"]["steps"].get<int64_t>());
}

/// Verdict of both parts, then what came nearest to its bound in each.
void print_certificate(const Json& d) {
  const Json& c = d["certificate"];
  const bool was_tried = c.is_object() && (c["verdict"] != "not_run" || c["reason"].is_string());
  if (!was_tried) return;
  std::cout << "  certificate     " << c["verdict"].get<std::string>();
  if (c["level"].is_string()) std::cout << " (" << c["level"].get<std::string>() << ")";
  if (c["verdict"] == "equal" && c["reference"] == "engine") {
    std::cout << ", to the same engine on one rank: the model has no oracle";
  }
  if (c["reason"].is_string()) std::cout << ": " << c["reason"].get<std::string>();
  std::cout << "\n";
  const std::string type = d["plan"]["model"]["dtype"].get<std::string>();
  std::string twin = words_of_twin(c);
  if (c["verdict"] == "different" && value_at(c, "native.verdict") != "different" &&
      !twin.empty()) {
    twin = "different, " + twin;  // it alone is refuted
  }
  std::string native = words_of_native(c);
  const bool is_refuted = c["verdict"] == "different" && c["native"].is_object();
  if (is_refuted && !native.empty()) {
    const Json& why = c["native"]["reason"];
    const bool is_told = !why.is_string() || why == c["reason"];
    native = text(c["native"]["verdict"].get<std::string>(),
                  is_told ? "" : text(" (", why.get<std::string>(), ")"), ", ", native);
  }
  if (!native.empty()) {
    if (c["native"]["level"] == "scaled") {  // no step of this run was looked at
      std::cout << "    a smaller model, " << type << ": " << native << "\n";
    } else {
      std::cout << "    this run, " << type << words_of_proven_steps(d) << ": " << native << "\n";
    }
  }
  const bool is_small =
      c["level"] == "scaled" && c["native"].is_object() && c["native"]["level"] == "full";
  const Json& unseen = value_at(c, "native.unseen");
  if (unseen.is_string()) std::cout << "    blind to       " << unseen.get<std::string>() << "\n";
  if (!twin.empty()) {
    std::cout << (is_small ? "    a smaller model in f64   " : "    its f64 twin   ") << twin
              << "\n";
  }
}

}  // namespace

void print_summary(const Json& d, const std::string& stopped) {
  std::cout << "plan " << d["plan_hash"].get<std::string>() << ", world "
            << d["world"].get<std::string>() << ", " << d["ranks"]
            << (d["ranks"] == 1 ? " rank\n" : " ranks\n");
  if (d["resumed_from"].is_number()) {
    std::cout << "  resumed from    step " << d["resumed_from"] << "\n";
    if (d["resume_changes"].is_string()) {
      std::cout << "  with changes    " << d["resume_changes"].get<std::string>() << "\n";
    }
  }
  print_model(d);
  print_data(d);
  if (has_nothing_left(d)) {
    print_rest(d);
  } else {
    print_training(d);
    print_counts(d);
  }
  print_parts(d);
  if (!stopped.empty()) std::cout << "  stopped         " << stopped << "\n";
  print_certificate(d);
}

}  // namespace kuafu
