// SPDX-License-Identifier: Apache-2.0
//
// How fast lines of text become ids on one thread. One JSON object on standard output, for
// tokenizer.py: seconds of each pass over all lines, the first with nothing remembered, and the CRC of
// all ids, by which the other side's are held to be the same.

#include <chrono>
#include <iostream>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "kuafu/base/config.h"
#include "kuafu/base/crc32.h"
#include "kuafu/record/json.h"
#include "kuafu/tokenizer/tokenizer.h"

namespace kuafu {
namespace {

int run(int argc, char** argv) {
  CLI::App app("Times a tokenizer on the lines of a text");
  std::string file, text;
  int64_t passes = 3;
  app.add_option("tokenizer", file)->required();
  app.add_option("text", text)->required();
  app.add_option("--passes", passes)->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);

  const std::string bytes = read_file(text, "text");
  std::vector<std::string_view> lines;
  for (std::string_view rest = bytes; !rest.empty();) {
    const size_t end = std::min(rest.find('\n'), rest.size() - 1) + 1;
    lines.push_back(rest.substr(0, end));
    rest.remove_prefix(end);
  }
  Tokenizer tokenizer = Tokenizer::load(file);
  std::vector<double> seconds;
  std::vector<int32_t> ids;
  for (int64_t pass = 0; pass < passes; ++pass) {
    ids.clear();
    const auto start = std::chrono::steady_clock::now();
    for (const std::string_view line : lines) {
      const std::vector<int32_t> more = tokenizer.encode(line);
      ids.insert(ids.end(), more.begin(), more.end());
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    seconds.push_back(took.count());
  }
  const uint32_t crc = crc32({reinterpret_cast<const char*>(ids.data()), ids.size() * 4});
  std::cout << Json{{"bytes", bytes.size()}, {"ids", ids.size()}, {"crc", crc}, {"s", seconds}}
            << "\n";
  return 0;
}

}  // namespace
}  // namespace kuafu

int main(int argc, char** argv) {
  try {
    return kuafu::run(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << "micro_tokenizer: " << error.what() << "\n";
    return 1;
  }
}
