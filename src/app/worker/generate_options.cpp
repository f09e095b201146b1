// SPDX-License-Identifier: Apache-2.0
#include "app/worker/generate_options.h"

#include <string_view>

#include <CLI/CLI.hpp>

#include "app/worker/forward_command.h"
#include "kuafu/base/config.h"
#include "kuafu/base/errors.h"
#include "kuafu/base/suggest.h"
#include "kuafu/base/utf8.h"

namespace kuafu {

std::vector<std::pair<std::string, std::string>> given_prompts(const GenerateOptions& how) {
  KUAFU_REQUIRE(how.prompt || !how.file.empty(),
                "there is no prompt; give --prompt TEXT, or --file FILE with one a line");
  KUAFU_REQUIRE(!how.prompt || how.file.empty(),
                "--prompt and --file both give prompts; give one of them");
  if (how.prompt) return {{*how.prompt, "--prompt"}};
  std::string bytes = read_file(how.file, "prompts");
  // Some editors mark UTF-8 so; it is no part of the text.
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  if (bytes.starts_with(kByteOrderMark)) bytes.erase(0, kByteOrderMark.size());
  std::vector<std::pair<std::string, std::string>> all;
  for (size_t at = 0; at < bytes.size();) {
    const size_t end = std::min(bytes.find('\n', at), bytes.size());
    std::string line = bytes.substr(at, end - at);
    if (line.ends_with('\r')) line.pop_back();
    all.emplace_back(line, text(how.file, ":", all.size() + 1));
    at = end + 1;
  }
  KUAFU_REQUIRE(!all.empty(), how.file, " has no prompt; give one a line");
  return all;
}

Sampling sampling_of(const GenerateOptions& how) {
  const Sampling sampling{.temperature = how.temperature.value_or(0),
                          .top_k = how.top_k.value_or(0),
                          .top_p = how.top_p.value_or(1),
                          .seed = how.seed.value_or(0)};
  check_sampling(sampling);
  KUAFU_REQUIRE(!how.top_k || *how.top_k >= 1, "--top-k ", *how.top_k,
                ": allowed: a whole number from 1 on");
  KUAFU_REQUIRE(!how.tokens || *how.tokens >= 1, "--tokens ", *how.tokens,
                ": allowed: a whole number from 1 on");
  const char* idle = how.top_k ? "--top-k" : how.top_p ? "--top-p" : how.seed ? "--seed" : nullptr;
  KUAFU_REQUIRE(idle == nullptr || sampling.temperature > 0, idle,
                " has no effect without --temperature: the most likely token is always taken; add "
                "--temperature 1, or leave it out");
  for (const std::string& stop : how.stops) {
    KUAFU_REQUIRE(!stop.empty() && is_utf8(stop), "--stop ", in_quotes(as_utf8(stop)),
                  " is no text in UTF-8");
  }
  return sampling;
}

void add_generate_options(CLI::App& app, WorkerOptions& o, GenerateOptions& how) {
  add_forward_options(app, o);
  app.add_option("--prompt", how.prompt);
  app.add_option("--file", how.file);
  app.add_option("--tokens", how.tokens);
  app.add_option("--temperature", how.temperature);
  app.add_option("--top-k", how.top_k);
  app.add_option("--top-p", how.top_p);
  app.add_option("--seed", how.seed);
  app.add_option("--cache", how.cache)->check(CLI::IsMember({"on", "off"}));
  app.add_option("--stop", how.stops)->allow_extra_args(false);
}

}  // namespace kuafu
