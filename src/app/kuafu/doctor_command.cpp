// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "app/kuafu/options.h"
#include "app/kuafu/programs.h"
#include "kuafu/base/build_folders.h"
#include "kuafu/base/build_info.h"
#include "kuafu/base/errors.h"
#include "kuafu/base/suggest.h"
#include "kuafu/base/units.h"
#include "kuafu/record/json_text.h"
#include "kuafu/record/load.h"
#include "kuafu/record/provenance.h"
#include "kuafu/record/table.h"

namespace kuafu {
namespace {

/// Findings of one kind: a mark, a name, what was found or why it is off.
class Findings {
 public:
  void found(const std::string& name, const std::string& detail) {
    table_.add({"ok", name, detail});
  }
  void off(const std::string& name, const std::string& detail) {
    table_.add({"off", name, detail});
  }
  /// Something the main job needs.
  void missing(const std::string& name, const std::string& detail) {
    table_.add({"MISSING", name, detail});
    is_whole_ = false;
  }
  void add(const BuildFeature& feature) {
    const std::string name(feature.name), detail(feature.detail);
    feature.found ? found(name, detail + ", built in") : off(name, detail);
  }
  std::string str() const { return table_.str(); }
  bool is_whole() const { return is_whole_; }

 private:
  Table table_{{{"state"}, {"what"}, {"detail"}}};
  bool is_whole_ = true;
};

/// The version a LibTorch folder names in its version.py; empty where it has none.
std::string torch_version(const std::string& folder) {
  std::ifstream file(folder + "/version.py");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("__version__", 0) != 0) continue;
    const size_t begin = line.find('\''), end = line.rfind('\'');
    if (begin != std::string::npos && end > begin) return line.substr(begin + 1, end - begin - 1);
  }
  return "";
}

void look_at_program(Findings& findings) {
  const GitState git = git_state();
  findings.found("kuafu", text(build_info::kVersion, ", commit ", git.commit.substr(0, 12),
                               git.is_dirty ? " with local changes" : "", ", ",
                               build_info::kBuildType, " build"));
  findings.found("built with", text(build_info::kCompiler, ", ", build_info::kFlags));
  try {
    findings.found("worker", worker_path());
  } catch (const ConfigError& error) {
    findings.missing("worker", error.what());
  }
}

void look_at_compilers(Findings& findings) {
  for (const char* compiler : {"c++", "nvcc", "cmake", "ninja"}) {
    // nvcc says its version further down.
    const std::string version =
        first_line_of(text(compiler, " --version | grep -m 1 '[0-9][.][0-9]'"));
    if (version.empty())
      findings.off(compiler, "not on PATH; only needed to build");
    else
      findings.found(compiler, version);
  }
}

void look_at_torch(Findings& findings) {
  const std::string folder(build_info::kTorchDir);
  if (!build_info::kTorch.found) {
    findings.missing("LibTorch", std::string(build_info::kTorch.detail));
    return;
  }
  const std::string version = torch_version(folder);
  if (::access((folder + "/lib/libtorch_cpu.so").c_str(), R_OK) != 0) {
    findings.missing("LibTorch", folder + "/lib/libtorch_cpu.so is gone: run scripts/setup.sh");
  } else if (version != build_info::kTorch.detail) {
    findings.missing("LibTorch", text(folder, " has version ", version, ", the build used ",
                                      build_info::kTorch.detail, ": build again"));
  } else {
    findings.found("LibTorch", version + ", " + folder);
  }
}

void look_at_worlds(Findings& findings) {
  for (const BuildFeature& feature :
       {build_info::kMpi, build_info::kCuda, build_info::kNccl, build_info::kHdf5, build_info::kCbc,
        build_info::kUring, build_info::kUtf8proc, build_info::kPcre2}) {
    findings.add(feature);
  }
  const std::string launcher = first_line_of("mpirun --version");
  if (launcher.empty())
    findings.off("mpirun", "not on PATH: the MPI world needs it to start ranks");
  else
    findings.found("mpirun", launcher + ", started through " + mpi_launcher().front());
}

void look_at_gpu(Findings& findings, const Machine& m) {
  if (m.gpu_driver.empty()) {
    findings.off("GPU driver", "no NVIDIA driver on this machine: GPU code is built, not run");
  } else {
    findings.found("GPU driver", text(m.gpu_driver, ", ", m.gpu.empty() ? "no GPU" : m.gpu));
  }
}

void look_at_machine(Findings& findings, const Machine& m) {
  findings.found("host", text(m.host, ", ", m.system));
  findings.found("cores", text(m.cores, ", ", m.cpu_model));
  findings.found("oversubscription", text("from ", first_oversubscribed(m.cores),
                                          " ranks on, ranks share cores: their times say how they "
                                          "would wait, not how they would scale"));
  const std::string memory =
      text(print_bytes(m.memory_available_bytes), " free of ", print_bytes(m.memory_bytes));
  constexpr int64_t kNeeded = int64_t{2} << 30;
  if (m.memory_available_bytes < kNeeded) {
    findings.off("memory", memory + ": the quickstart wants " + print_bytes(kNeeded));
  } else {
    findings.found("memory", memory);
  }
  const double load = load_average().value_or(0);
  if (load > 0.5) {
    findings.off("quiet", text("load ", human_number(load, 2), ": timings will be disturbed"));
  } else {
    findings.found("quiet", text("load ", human_number(load, 2)));
  }
}

void look_at_python(Findings& findings) {
  std::string why_not;
  const auto words = python_script("scripts/report/report.py", why_not);
  if (words.empty()) {
    findings.off("report", why_not);
    return;
  }
  findings.found("python", first_line_of("'" + words[0] + "' --version") + ", " + words[0]);
  std::string have;
  std::vector<std::string> lacking;
  for (const char* package : {"numpy", "matplotlib", "plotly", "h5py", "nbformat", "nbclient"}) {
    const std::string code =
        text("import importlib.metadata as m; print(m.version(\"", package, "\"))");
    const std::string version = first_line_of("'" + words[0] + "' -c '" + code + "'");
    if (version.empty())
      lacking.emplace_back(package);
    else
      have += text(have.empty() ? "" : ", ", package, " ", version);
  }
  findings.found("python packages", have.empty() ? "none" : have);
  if (!lacking.empty()) {
    findings.off("report", join(lacking) + " missing: run scripts/setup.sh");
  }
}

}  // namespace

int doctor_command(const DoctorCall& call) {
  if (call.tells_provenance) {
    std::cout << json_document(provenance());
    return kDone;
  }
  Findings findings;
  const Machine m = machine();
  look_at_program(findings);
  look_at_compilers(findings);
  look_at_torch(findings);
  look_at_worlds(findings);
  look_at_gpu(findings, m);
  look_at_machine(findings, m);
  look_at_python(findings);
  std::cout << findings.str()
            << (findings.is_whole() ? "\nthe main job can run, in the folder of the source: kuafu "
                                      "suite suites/quickstart.toml\n"
                                    : "\nthe main job cannot run until what is MISSING is there\n");
  return findings.is_whole() ? kDone : kBad;
}

}  // namespace kuafu
