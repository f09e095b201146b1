// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kuafu/base/errors.h"
#include "kuafu/base/suggest.h"

namespace kuafu {

/// A name that a registry does not hold; the message lists those it does.
class NotFound : public ConfigError {
 public:
  using ConfigError::ConfigError;
};

/// Factories by name, in the order they were added. Filled by explicit tables, never by static
/// initialisers.
template <class Factory>
class Registry {
 public:
  struct Entry {
    std::string name;
    std::string summary;  ///< one line, printed by `kuafu list`
    Factory make;
  };

  /// `kind` names the entries in messages: "optimizer".
  explicit Registry(std::string kind) : kind_(std::move(kind)) {}

  /// Throws ConfigError for an empty name and for one that is already there.
  void add(std::string name, std::string summary, Factory make) {
    KUAFU_REQUIRE(!name.empty(), "a ", kind_, " needs a name (its summary is ", in_quotes(summary),
                  ")");
    KUAFU_REQUIRE(!contains(name), "two ", kind_, " entries are named ", in_quotes(name),
                  "; rename one of them");
    entries_.push_back({std::move(name), std::move(summary), std::move(make)});
  }

  bool contains(std::string_view name) const {
    for (const Entry& entry : entries_) {
      if (entry.name == name) return true;
    }
    return false;
  }

  /// Throws NotFound with the names that exist and the nearest one.
  const Factory& find(std::string_view name) const {
    for (const Entry& entry : entries_) {
      if (entry.name == name) return entry.make;
    }
    if (entries_.empty())
      throw NotFound(text("no ", kind_, " ", in_quotes(name), ": there are none"));
    throw NotFound(text("no ", kind_, " ", in_quotes(name),
                        "; nearest: ", in_quotes(nearest(name, names())),
                        "; allowed: ", join(in_quotes(names()))));
  }

  const std::vector<Entry>& entries() const { return entries_; }

  std::vector<std::string> names() const {
    std::vector<std::string> out;
    for (const Entry& entry : entries_) out.push_back(entry.name);
    return out;
  }

  /// One line an entry: the name, padded, and its summary.
  std::string describe() const {
    size_t width = 0;
    for (const Entry& entry : entries_) width = std::max(width, entry.name.size());
    std::string out;
    for (const Entry& entry : entries_) {
      out += text(entry.name, std::string(width - entry.name.size() + 2, ' '), entry.summary, "\n");
    }
    return out;
  }

 private:
  std::string kind_;
  std::vector<Entry> entries_;
};

}  // namespace kuafu
