// SPDX-License-Identifier: Apache-2.0
#include "app/worker/generate_options.h"

#include <CLI/CLI.hpp>

#include "app/worker/forward_command.h"
#include "kuafu/base/errors.h"
#include "kuafu/base/suggest.h"
#include "kuafu/base/utf8.h"

namespace kuafu {

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
  app.add_option("--prompt-tokens", how.prompt_tokens);
  app.add_option("--tokens", how.tokens);
  app.add_option("--temperature", how.temperature);
  app.add_option("--top-k", how.top_k);
  app.add_option("--top-p", how.top_p);
  app.add_option("--seed", how.seed);
  app.add_option("--cache", how.cache)->check(CLI::IsMember({"on", "host", "off"}));
  app.add_flag("--fit", how.is_fitted);
  app.add_option("--stop", how.stops)->allow_extra_args(false);
}

}  // namespace kuafu
