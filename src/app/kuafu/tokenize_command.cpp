// SPDX-License-Identifier: Apache-2.0
//
// `kuafu tokenize`: lines of text as ids, or ids as text. Nothing is printed unless all of it can be.

#include <charconv>
#include <iostream>
#include <iterator>
#include <limits>

#include "app/kuafu/options.h"
#include "kuafu/base/config.h"
#include "kuafu/base/suggest.h"
#include "kuafu/base/utf8.h"
#include "kuafu/record/json_text.h"
#include "kuafu/tokenizer/tokenizer.h"

namespace kuafu {
namespace {

/// One line of input, or a whole file, with its place for messages.
struct InputText {
  std::string_view text;
  std::string place;
};

std::vector<InputText> rows_of(std::string_view bytes, const std::string& name, bool is_whole) {
  if (is_whole) return {{bytes, name}};
  std::vector<InputText> rows;
  for (int64_t line = 1; !bytes.empty(); ++line) {
    const size_t end = bytes.find('\n');
    rows.push_back({bytes.substr(0, end), text(name, ":", line)});
    bytes.remove_prefix(end == std::string_view::npos ? bytes.size() : end + 1);
  }
  return rows;
}

/// "12 7": numbers with spaces between.
std::vector<int32_t> ids_of_words(std::string_view words) {
  std::vector<int32_t> ids;
  constexpr std::string_view kBlank = " \t\r";
  for (size_t at = words.find_first_not_of(kBlank); at != std::string_view::npos;) {
    const size_t end = std::min(words.find_first_of(kBlank, at), words.size());
    const std::string_view word = words.substr(at, end - at);
    int32_t id = 0;
    const auto [behind, error] = std::from_chars(word.data(), word.data() + word.size(), id);
    KUAFU_REQUIRE(error == std::errc() && behind == word.data() + word.size() && id >= 0,
                  in_quotes(as_utf8(utf8_prefix(word, 40))),
                  " is no id; --decode takes whole numbers from 0 on with spaces between");
    ids.push_back(id);
    at = words.find_first_not_of(kBlank, end);
  }
  return ids;
}

std::vector<int32_t> ids_of_json(const Json& value) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  std::vector<int32_t> ids;
  bool is_list = value.is_array();
  for (size_t i = 0; is_list && i < value.size(); ++i) {
    const std::optional<int64_t> id = whole_number(value[i]);
    is_list = id && *id >= 0 && *id <= kMost;
    if (is_list) ids.push_back(static_cast<int32_t>(*id));
  }
  KUAFU_REQUIRE(is_list, json_excerpt(value), " is no list of ids; --decode --json takes [12, 7]");
  return ids;
}

/// What becomes of one row, with the end of a line.
class Translation {
 public:
  explicit Translation(const TokenizeCall& call)
      : call_(call),
        special_(call.has_special ? SpecialTokens::kWith : SpecialTokens::kWithout),
        tokenizer_(Tokenizer::load(call.tokenizer)) {}

  std::string of(std::string_view row) { return call_.is_decoded ? decoded(row) : encoded(row); }

 private:
  std::string decoded(std::string_view row) const {
    const std::vector<int32_t> ids =
        call_.is_json ? ids_of_json(parse_json(row)) : ids_of_words(row);
    const std::string words = tokenizer_.decode(ids, special_);
    return (call_.is_json ? json_line(Json(words)) : words) + "\n";
  }

  std::string encoded(std::string_view row) {
    if (call_.is_json && !call_.is_whole) {
      const Json value = parse_json(row);
      KUAFU_REQUIRE(value.is_string(), json_excerpt(value), " is no string; --json takes \"text\"");
      return json_line(Json(tokenizer_.encode(value.get<std::string>(), special_))) + "\n";
    }
    const std::vector<int32_t> ids = tokenizer_.encode(row, special_);
    if (call_.is_json) return json_line(Json(ids)) + "\n";
    std::string words;
    for (const int32_t id : ids) words += (words.empty() ? "" : " ") + std::to_string(id);
    return words + "\n";
  }

  const TokenizeCall& call_;
  SpecialTokens special_;
  Tokenizer tokenizer_;
};

}  // namespace

int tokenize_command(const TokenizeCall& call) {
  Translation translation(call);
  std::string printed;
  const auto translate = [&](const std::string& bytes, const std::string& name) {
    for (const InputText& row : rows_of(bytes, name, call.is_whole)) {
      try {
        printed += translation.of(row.text);
      } catch (const ConfigError& error) {
        throw ConfigError(text(row.place, ": ", error.what()));
      }
    }
  };
  for (const std::string& file : call.files) translate(read_file(file, "text"), file);
  if (call.files.empty()) {
    translate({std::istreambuf_iterator<char>(std::cin), {}}, "the standard input");
  }
  std::cout << printed;
  return kDone;
}

}  // namespace kuafu
