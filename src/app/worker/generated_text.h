// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "kuafu/generation/generate.h"
#include "kuafu/generation/text_stream.h"
#include "kuafu/generation/token_text.h"
#include "kuafu/record/json.h"

namespace kuafu {

/// A prompt as it was given, and as tokens.
struct Prompt {
  std::string words;
  std::vector<int64_t> tokens;
};

/// Prints prompts with what they go on with, word by word, one prompt after the other: what comes for
/// a later one waits for its turn. On rank 0.
class GeneratedText {
 public:
  /// @pre all outlive it
  GeneratedText(std::ostream& out, const TokenText& text, const std::vector<Prompt>& prompts,
                const std::vector<std::string>& stops);

  /// Why the prompt ends with this token; none: it goes on.
  std::optional<Ending> on_token(size_t prompt, int64_t token);
  void on_end(size_t prompt, const Continuation& done);
  /// Ends the line of the prompt that is printed now: nothing follows.
  void stop();

  /// What came of each prompt. @pre all have ended, or stop() was called
  Json document(const std::vector<Continuation>& made) const;

 private:
  struct One {
    TextStream stream;
    std::vector<int64_t> made = {};
    std::string waiting = {};
    bool has_ended = false;
  };
  void print();

  std::ostream& out_;
  const TokenText& text_;
  const std::vector<Prompt>& prompts_;
  std::vector<One> all_;
  size_t turn_ = 0;  ///< the prompt that is printed now
};

/// "--tokens", "data.end_token", "--stop", "model.sequence", "a signal": what ended a prompt.
std::string_view name_of(Ending ending);

}  // namespace kuafu
