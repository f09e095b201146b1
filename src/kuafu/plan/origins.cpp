// SPDX-License-Identifier: Apache-2.0
//
// Messages of code that sees a plan without its document: the keys they name say the lines.

#include "kuafu/plan/origins.h"

#include <algorithm>
#include <cctype>
#include <typeinfo>
#include <utility>

#include "kuafu/plan/keys.h"

namespace kuafu::plan {
namespace {

bool is_part_of_key(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.';
}

/// A dot that ends a sentence does not belong to the key before it.
std::string_view without_full_stop(std::string_view word) {
  while (!word.empty() && word.back() == '.') word.remove_suffix(1);
  return word;
}

}  // namespace

std::vector<std::string> keys_named(std::string_view message) {
  std::vector<std::string> named;
  for (size_t at = 0; at < message.size();) {
    size_t end = at;
    while (end < message.size() && is_part_of_key(message[end])) ++end;
    const std::string word(without_full_stop(message.substr(at, end - at)));
    at = std::max(end, at + 1);
    const Key* key = find_key(word);
    if (key == nullptr && !word.empty()) key = find_key(word + ".size");
    if (key != nullptr && std::find(named.begin(), named.end(), key->name) == named.end()) {
      named.push_back(key->name);
    }
  }
  return named;
}

std::string Origins::of(const std::vector<std::string>& keys) const {
  for (const std::string& key : keys) {
    const auto found = where_.find(key);
    if (found != where_.end()) return found->second;
  }
  return {};
}

std::string Origins::located(const std::string& message) const {
  for (const auto& [key, where] : where_) {
    if (!where.empty() && message.starts_with(where)) return message;
  }
  return of(keys_named(message)) + message;
}

void with_origins(const Origins& origins, const std::function<void()>& body) {
  try {
    body();
  } catch (const NotDivisible& e) {
    throw Refused(origins.located(e.what()));
  } catch (const Refused& e) {
    if (typeid(e) != typeid(Refused)) throw;
    throw Refused(origins.located(e.what()));
  } catch (const ConfigError& e) {
    if (typeid(e) != typeid(ConfigError)) throw;
    throw ConfigError(origins.located(e.what()));
  }
}

}  // namespace kuafu::plan
