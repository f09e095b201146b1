// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "app/worker/options.h"
#include "kuafu/checkpoint/weights.h"
#include "kuafu/engine/engine.h"
#include "kuafu/engine/registries.h"
#include "kuafu/engine/requests.h"
#include "kuafu/generation/generate.h"
#include "kuafu/generation/token_text.h"
#include "kuafu/record/json.h"

namespace kuafu {

/// A command that reads text with a model: the forward of a plan with given weights, in a world. Everything
/// that can be wrong is told before the world exists, and leaves no file.
class ForwardCommand {
 public:
  /// `makes`: what it makes, "generates no tokens" where it cannot.
  ForwardCommand(const WorkerOptions& options, std::string_view makes_none)
      : options_(options), makes_none_(makes_none) {}
  virtual ~ForwardCommand() = default;
  ForwardCommand(const ForwardCommand&) = delete;
  ForwardCommand& operator=(const ForwardCommand&) = delete;

  /// Returns an ExitCode.
  int operator()();

 protected:
  /// The plan of its forwards. Throws ConfigError for a model that has none.
  virtual Plan plan_of_forward(const Plan& plan) const { return plan_of_generation(plan); }
  /// Its own options, and the files that they name.
  virtual void read() = 0;
  /// Samples that can go forward at a time; train.batch of them at most do.
  virtual int64_t samples() const = 0;
  /// What was read, as tokens by `text_`. Throws ConfigError.
  virtual void take_text() = 0;
  /// Whether the batch is the largest that require_fits() lets pass, instead of train.batch.
  virtual bool is_fitted() const { return false; }
  /// Throws OutOfMemory where the plan of forwards needs more than memory.device.
  virtual void require_fits(const Plan&) const {}
  /// What must be the same on all ranks, besides plan and weights.
  virtual std::string given() const = 0;
  /// Whether it says what its forwards would take where no rank computes them.
  virtual bool is_foretold() const { return false; }
  /// Says so. @pre is_foretold()
  virtual void foretell() {}
  /// On every rank. Collective.
  virtual void forward(Engine& engine, Communicator& world) = 0;

  bool is_simulated() const;
  bool has_weights_on_disk() const { return options_.weights == "disk"; }
  /// train.batch as the plan was given.
  int64_t own_batch() const;
  /// The signal that asked to stop; 0: none has.
  static int64_t signal_to_stop();
  /// Of the signal that ended it: SIGINT.
  static std::string name_of_signal(int64_t number);
  /// Takes what tiers moved into the document of rank 0. Collective.
  void take_moves(const Engine& engine, Communicator& world);
  void take_moves(const char* name, int64_t mine, Communicator& world);
  /// Writes the document, where one is asked for: `member` of it says what was made. `why`: empty, or why it
  /// was stopped.
  void write(const char* member, const Json& made, const std::string& why = "") const;

  const WorkerOptions& options_;
  Plan plan_;  ///< plan_of_forward()
  std::optional<TokenText> text_;
  Registries registries_;
  std::atomic<int> stopped_ = 0;  ///< the signal that ended it; 0: none did
  Json moves_;                    ///< null without tiers

 private:
  void prepare();
  void check_weights_home() const;
  Plan placed_plan(int64_t world_ranks) const;
  std::optional<Plan> placed_plan(int64_t world_ranks, int64_t least) const;
  Plan fitted_plan(int64_t world_ranks) const;
  void open_weights();
  void run();
  void rank_body(Communicator& world);
  int end(const std::string& status, const std::exception& cause, int code) const;
  void document_failure(const std::string& status, const std::exception& cause) const;

  std::string makes_none_;
  std::string world_;
  std::optional<NamedWeights> weights_;
  Json head_;
  Requests requests_;
};

/// Texts, and where each is from: "--prompt", "prompts.txt:3".
using GivenTexts = std::vector<std::pair<std::string, std::string>>;
/// `one`, of the option `option`, or one a line of a file, a BOM and carriage returns aside; `what`:
/// "prompt". Throws ConfigError for neither, both, and a file without a line.
GivenTexts given_texts(const std::optional<std::string>& one, const std::string& option,
                       const std::string& file, const std::string& what);

/// World, weights and document of such a command.
void add_forward_options(CLI::App& app, WorkerOptions& options);

}  // namespace kuafu
