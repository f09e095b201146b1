// SPDX-License-Identifier: Apache-2.0
#include "kuafu/tokenizer/decoders.h"

#include <algorithm>
#include <cctype>

#include "kuafu/base/utf8.h"
#include "kuafu/tokenizer/byte_level.h"
#include "kuafu/tokenizer/characters.h"
#include "kuafu/tokenizer/lossy_utf8.h"
#include "kuafu/tokenizer/metaspace.h"
#include "kuafu/tokenizer/pattern.h"

namespace kuafu::tokenizer {
namespace {

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  if (from.empty()) return;
  std::string out;
  size_t covered = 0;
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, covered)) {
    out.append(text, covered, at - covered);
    out += to;
    covered = at + from.size();
  }
  if (covered > 0) text = out + text.substr(covered);
}

/// Spaces that English has not, as BERT's decoder takes them out.
void clean_up(std::string& text) {
  constexpr std::pair<std::string_view, std::string_view> kPairs[] = {
      {" .", "."},   {" ?", "?"},     {" !", "!"},    {" ,", ","},
      {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},  {" do not", " don't"},
      {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  for (const auto& [from, to] : kPairs) replace_all(text, from, to);
}

StepPtr<TokenTexts> byte_level_decoder(const Component& part) {
  part.allow({"add_prefix_space", "trim_offsets", "use_regex"});
  return step<TokenTexts>([](TokenTexts& tokens) {
    std::string bytes;
    for (const std::string& token : tokens) {
      if (!append_char_bytes(bytes, token)) bytes += token;
    }
    tokens = {lossy_utf8(bytes)};
  });
}

StepPtr<TokenTexts> word_piece_decoder(const Component& part) {
  part.allow({"prefix", "cleanup"});
  return step<TokenTexts>([prefix = part.at("prefix").text(),
                           cleans = part.at("cleanup").boolean()](TokenTexts& tokens) {
    for (size_t i = 0; i < tokens.size(); ++i) {
      std::string& token = tokens[i];
      if (i > 0) token = token.starts_with(prefix) ? token.substr(prefix.size()) : " " + token;
      if (cleans) clean_up(token);
    }
  });
}

StepPtr<TokenTexts> metaspace_decoder(const Component& part) {
  return step<TokenTexts>([metaspace = Metaspace(part)](TokenTexts& tokens) {
    const bool is_bare = metaspace.prepend != Metaspace::Prepend::kNever;
    for (size_t i = 0; i < tokens.size(); ++i) {
      replace_all(tokens[i], metaspace.replacement, i == 0 && is_bare ? "" : " ");
    }
  });
}

StepPtr<TokenTexts> bpe_decoder(const Component& part) {
  part.allow({"suffix"});
  return step<TokenTexts>([suffix = part.at("suffix").text()](TokenTexts& tokens) {
    for (size_t i = 0; i < tokens.size(); ++i) {
      replace_all(tokens[i], suffix, i + 1 == tokens.size() ? "" : " ");
    }
  });
}

/// The byte of "<0x0A>"; -1: another token. A sign before one digit is a number too.
int byte_of(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
  const auto digit = [&](size_t i) {
    const auto c = static_cast<unsigned char>(token[i]);
    return !std::isxdigit(c) ? -1 : std::isdigit(c) ? c - '0' : std::tolower(c) - 'a' + 10;
  };
  const int high = token[3] == '+' ? 0 : digit(3), low = digit(4);
  return high < 0 || low < 0 ? -1 : 16 * high + low;
}

StepPtr<TokenTexts> byte_fallback_decoder(const Component& part) {
  part.allow({});
  return step<TokenTexts>([](TokenTexts& tokens) {
    TokenTexts out;
    std::string bytes;
    const auto end_bytes = [&] {
      if (bytes.empty()) return;
      if (is_utf8(bytes)) {
        out.push_back(bytes);
      } else {
        out.insert(out.end(), bytes.size(), "\xEF\xBF\xBD");
      }
      bytes.clear();
    };
    for (std::string& token : tokens) {
      const int byte = byte_of(token);
      if (byte >= 0) {
        bytes += static_cast<char>(byte);
        continue;
      }
      end_bytes();
      out.push_back(std::move(token));
    }
    end_bytes();
    tokens = std::move(out);
  });
}

StepPtr<TokenTexts> fuse_decoder(const Component& part) {
  part.allow({});
  return step<TokenTexts>([](TokenTexts& tokens) {
    std::string all;
    for (const std::string& token : tokens) all += token;
    tokens = {all};
  });
}

/// Takes away `content` up to so many times at both ends.
void strip(std::string& token, const std::string& content, int64_t start, int64_t stop) {
  std::string_view rest = token;
  for (int64_t i = 0; i < start && rest.starts_with(content); ++i) {
    rest.remove_prefix(content.size());
  }
  for (int64_t i = 0; i < stop && rest.ends_with(content); ++i) {
    rest.remove_suffix(content.size());
  }
  token = std::string(rest);
}

StepPtr<TokenTexts> strip_decoder(const Component& part) {
  part.allow({"content", "start", "stop"});
  return step<TokenTexts>([content = to_utf8(part.at("content").character()),
                           start = part.at("start").count(),
                           stop = part.at("stop").count()](TokenTexts& tokens) {
    for (std::string& token : tokens) strip(token, content, start, stop);
  });
}

StepPtr<TokenTexts> replace_decoder(const Component& part) {
  part.allow({"pattern", "content"});
  return step<TokenTexts>([pattern = Pattern(part.at("pattern")),
                           content = part.at("content").text()](TokenTexts& tokens) {
    for (std::string& token : tokens) {
      std::string out;
      for (const Span& span : pattern.find(token)) {
        out += span.is_match ? content : token.substr(span.begin, span.end - span.begin);
      }
      token = std::move(out);
    }
  });
}

StepPtr<TokenTexts> ctc_decoder(const Component& part) {
  part.allow({"pad_token", "word_delimiter_token", "cleanup"});
  return step<TokenTexts>([pad = part.at("pad_token").text(),
                           delimiter = part.at("word_delimiter_token").text(),
                           cleans = part.at("cleanup").boolean()](TokenTexts& tokens) {
    tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
    for (std::string& token : tokens) {
      replace_all(token, pad, "");
      if (!cleans) continue;
      clean_up(token);
      replace_all(token, delimiter, " ");
    }
    std::erase_if(tokens, [](const std::string& token) { return token.empty(); });
  });
}

StepPtr<TokenTexts> sequence_decoder(const Component& part) {
  part.allow({"decoders"});
  std::vector<StepPtr<TokenTexts>> steps;
  for (const Component& element : part.at("decoders").elements()) {
    steps.push_back(make_decoder(element));
  }
  return in_sequence(std::move(steps));
}

struct DecoderKind {
  const char* name;
  StepPtr<TokenTexts> (*make)(const Component& part);
};

constexpr DecoderKind kDecoderKinds[] = {{"ByteLevel", byte_level_decoder},
                                         {"WordPiece", word_piece_decoder},
                                         {"Metaspace", metaspace_decoder},
                                         {"BPEDecoder", bpe_decoder},
                                         {"ByteFallback", byte_fallback_decoder},
                                         {"Fuse", fuse_decoder},
                                         {"Strip", strip_decoder},
                                         {"Replace", replace_decoder},
                                         {"CTC", ctc_decoder},
                                         {"Sequence", sequence_decoder}};

}  // namespace

StepPtr<TokenTexts> make_decoder(const Component& part) {
  std::vector<std::string> names;
  for (const DecoderKind& kind : kDecoderKinds) names.emplace_back(kind.name);
  const std::string name = part.kind(names);
  return std::find_if(std::begin(kDecoderKinds), std::end(kDecoderKinds),
                      [&](const DecoderKind& kind) { return name == kind.name; })
      ->make(part);
}

}  // namespace kuafu::tokenizer
