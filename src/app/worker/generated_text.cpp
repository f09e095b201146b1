// SPDX-License-Identifier: Apache-2.0
#include "app/worker/generated_text.h"

namespace kuafu {

GeneratedText::GeneratedText(std::ostream& out, const TokenText& text,
                             const std::vector<Prompt>& prompts,
                             const std::vector<std::string>& stops)
    : out_(out), text_(text), prompts_(prompts) {
  for (const Prompt& prompt : prompts) {
    all_.push_back({.stream = TextStream(stops)});
    all_.back().waiting = prompt.words;
  }
  print();
}

std::optional<Ending> GeneratedText::on_token(size_t prompt, int64_t token) {
  if (token == text_.end_token()) return Ending::kEndToken;
  One& one = all_[prompt];
  one.made.push_back(token);
  one.waiting += one.stream.add(text_.continuation(prompts_[prompt].tokens, one.made));
  if (prompt == turn_) print();
  return one.stream.is_stopped() ? std::optional(Ending::kStop) : std::nullopt;
}

void GeneratedText::on_end(size_t prompt, const Continuation&) {
  One& one = all_[prompt];
  one.waiting += one.stream.finish() + "\n";
  one.has_ended = true;
  print();
}

void GeneratedText::stop() {
  if (turn_ == all_.size()) return;
  all_[turn_].waiting += all_[turn_].stream.finish() + "\n";
  print();
}

void GeneratedText::print() {
  for (; turn_ < all_.size(); ++turn_) {
    out_ << std::exchange(all_[turn_].waiting, "");
    if (!all_[turn_].has_ended) break;
  }
  out_.flush();
}

Json GeneratedText::document(const std::vector<Continuation>& made) const {
  Json all = Json::array();
  for (size_t p = 0; p < made.size(); ++p) {
    all.push_back({{"prompt", prompts_[p].words},
                   {"prompt_tokens", prompts_[p].tokens},
                   {"text", all_[p].stream.told()},
                   {"tokens", made[p].tokens},
                   {"ended_by", name_of(made[p].ending)},
                   {"first_token_s", made[p].first_s}});
  }
  return all;
}

std::string_view name_of(Ending ending) {
  switch (ending) {
    case Ending::kTokens:
      return "--tokens";
    case Ending::kEndToken:
      return "data.end_token";
    case Ending::kStop:
      return "--stop";
    case Ending::kSequence:
      return "model.sequence";
    case Ending::kAsked:
      return "a signal";
  }
  return "";
}

}  // namespace kuafu
