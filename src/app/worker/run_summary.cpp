// SPDX-License-Identifier: Apache-2.0
#include "app/worker/run_summary.h"

#include <algorithm>
#include <iostream>

#include "kuafu/record/certificate_words.h"
#include "kuafu/record/table.h"

namespace kuafu {
namespace {

std::string number(const Json& x, int digits) { return human_number(x.get<double>(), digits); }

std::string mib(int64_t bytes) { return human_number(static_cast<double>(bytes) / 1048576.0, 4); }

void print_training(const Json& d) {
  const auto ms = [](const Json& s) { return human_number(s.get<double>() * 1e3, 4); };
  const Json& t = d["step_time_s"];
  std::cout << "  step time       " << ms(t["median"]) << " ms  [" << ms(t["ci95"][0]) << ", "
            << ms(t["ci95"][1]) << "]: median [95 %]\n";
  if (d["tokens_per_s"].is_number()) {
    std::cout << "  throughput      " << number(d["tokens_per_s"], 4) << " tokens/s\n";
  }
  if (d["loss"].is_array() && !d["loss"].empty()) {
    std::cout << "  loss            " << number(d["loss"].front(), 5) << " -> "
              << number(d["loss"].back(), 5);
    if (d["validation_loss"].is_number()) {
      std::cout << ", validation " << number(d["validation_loss"], 5);
    }
    std::cout << "\n";
  }
}

void print_counts(const Json& d) {
  int64_t peak = 0, received = 0;
  for (const Json& p : d["memory"]["peak_bytes"]) peak = std::max(peak, p.get<int64_t>());
  for (const Json& axis : d["ledger"]) {
    for (const Json& b : axis["bytes_received"]) received += b.get<int64_t>();
  }
  std::cout << "  peak memory     " << mib(peak) << " MiB on the fullest rank\n"
            << "  received        " << received << " bytes, all ranks and steps\n"
            << "  model FLOPs     " << d["flops_per_step"] << " a step\n";
}

void print_parts(const Json& d) {
  if (const Json& x = d["experts"]; x.is_object()) {
    std::cout << "  experts         " << human_number(100 * x["drop_rate"].get<double>(), 3)
              << " % of choices dropped, imbalance " << number(x["imbalance"], 3) << "\n";
  }
  if (const Json& x = d["checkpoint"]; x.is_object()) {
    int64_t bytes = 0;
    double seconds = 0;
    for (const Json& b : x["bytes"]) bytes += b.get<int64_t>();
    for (const Json& s : x["samples"]) seconds += s.get<double>();
    std::cout << "  checkpoints     " << x["saves"] << ", " << mib(bytes) << " MiB in "
              << human_number(seconds, 3) << " s\n";
  }
}

/// Verdict of both parts, then what came nearest to its bound in each.
void print_certificate(const Json& d) {
  const Json& c = d["certificate"];
  const bool was_tried = c.is_object() && (c["verdict"] != "not_run" || c["reason"].is_string());
  if (!was_tried) return;
  std::cout << "  certificate     " << c["verdict"].get<std::string>();
  if (c["level"].is_string()) std::cout << " (" << c["level"].get<std::string>() << ")";
  if (c["reason"].is_string()) std::cout << ": " << c["reason"].get<std::string>();
  std::cout << "\n";
  const std::string type = d["plan"]["model"]["dtype"].get<std::string>();
  const std::string native = words_of_native(c), twin = words_of_twin(c);
  if (!native.empty()) std::cout << "    this run, " << type << "  " << native << "\n";
  if (!twin.empty()) std::cout << "    its f64 twin   " << twin << "\n";
}

}  // namespace

void print_summary(const Json& d) {
  std::cout << "plan " << d["plan_hash"].get<std::string>() << ", world "
            << d["world"].get<std::string>() << ", " << d["ranks"] << " ranks\n";
  if (d["resumed_from"].is_number()) {
    std::cout << "  resumed from    step " << d["resumed_from"] << "\n";
    if (d["resume_changes"].is_string()) {
      std::cout << "  with changes    " << d["resume_changes"].get<std::string>() << "\n";
    }
  }
  print_training(d);
  print_counts(d);
  print_parts(d);
  print_certificate(d);
}

}  // namespace kuafu
