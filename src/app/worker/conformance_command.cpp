// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <iostream>

#include "app/worker/document.h"
#include "app/worker/options.h"
#include "kuafu/conformance/schemes.h"
#include "kuafu/engine/plugin.h"
#include "kuafu/record/table.h"
#include "kuafu/tensor/tensor.h"

namespace kuafu {
namespace {

using conformance::Finding;
using conformance::SchemeCase;

/// The schemes asked for; without names, what the plug-ins brought, or everything there is.
std::vector<std::string> schemes_of(const ConformanceOptions& options,
                                    const Registries& registries) {
  if (!options.schemes.empty()) return options.schemes;
  std::vector<std::string> names = registries.tensor.names();
  if (options.plugins.empty()) return names;
  const Registries builtin = builtin_registries();
  std::erase_if(names, [&](const std::string& name) { return builtin.tensor.contains(name); });
  KUAFU_REQUIRE(!names.empty(),
                "the plug-ins given add no tensor scheme; name the schemes to check");
  return names;
}

std::vector<SchemeCase> cases_of(const ConformanceOptions& options, const Registries& registries) {
  std::vector<SchemeCase> all;
  for (const std::string& name : schemes_of(options, registries)) {
    const auto cases = conformance::cases_of(registries, name, options.sizes);
    KUAFU_REQUIRE(!cases.empty(), "tensor mode \"", name,
                  "\" arranges none of --sizes; give one "
                  "that it does (`kuafu list tensor` says what it is)");
    all.insert(all.end(), cases.begin(), cases.end());
  }
  return all;
}

int64_t num_failed(const std::vector<Finding>& findings) {
  return std::count_if(findings.begin(), findings.end(), [](const Finding& f) { return !f.is_ok; });
}

Json document_of(const std::vector<Finding>& findings) {
  Json list = Json::array();
  for (const Finding& f : findings) {
    list.push_back({{"check", f.check},
                    {"scheme", f.scheme},
                    {"mesh", f.mesh},
                    {"shape", f.shape},
                    {"ok", f.is_ok},
                    {"detail", f.detail}});
  }
  const int64_t failed = num_failed(findings);
  return {{"status", failed == 0 ? "ok" : "failed"},
          {"passed", static_cast<int64_t>(findings.size()) - failed},
          {"failed", failed},
          {"findings", list}};
}

/// A cell for a check of one case: all of its shapes.
std::string cell(const std::vector<Finding>& findings) {
  return num_failed(findings) == 0 ? "ok" : "FAILED";
}

}  // namespace

int conformance_command(const ConformanceOptions& options) {
  initialise_tensors();
  Registries registries = builtin_registries();
  for (const std::string& plugin : options.plugins) load_plugin(plugin, registries);
  const std::vector<SchemeCase> cases = cases_of(options, registries);
  std::vector<Table::Column> columns = {{"scheme"}, {"ranks", Table::Align::kRight}, {"mesh"}};
  for (const auto& check : conformance::scheme_checks()) columns.push_back({check.name});
  Table table(columns);
  std::vector<Finding> all;
  for (const SchemeCase& where : cases) {
    std::vector<std::string> row = {where.mode, text(where.size), ""};
    for (const auto& check : conformance::scheme_checks()) {
      const std::vector<Finding> findings = conformance::run_check(check, registries, where);
      row.push_back(cell(findings));
      row[2] = findings[0].mesh;
      all.insert(all.end(), findings.begin(), findings.end());
    }
    table.add(row);
  }
  std::cout << table.str();
  for (const Finding& f : all) {
    if (f.is_ok) continue;
    std::cout << "\n"
              << f.check << " of " << f.scheme << " on " << f.mesh << ", " << f.shape << ":\n  "
              << f.detail << "\n";
  }
  const int64_t failed = num_failed(all);
  std::cout << "\n"
            << static_cast<int64_t>(all.size()) - failed << " of " << all.size()
            << " findings hold\n";
  if (!options.json_file.empty()) write_document(document_of(all), options.json_file);
  return failed == 0 ? kOk : kFailed;
}

}  // namespace kuafu
