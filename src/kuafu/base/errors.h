// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace kuafu {

/// Concatenates printable arguments: the one way to build a message.
template <class... Args>
std::string text(const Args&... args) {
  std::ostringstream out;
  (out << ... << args);
  return out.str();
}

/// Root of everything the library throws on purpose.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The caller can fix it: the message says what was given, what is allowed and what to do.
class ConfigError : public Error {
 public:
  using Error::Error;
};

/// A plan that is well formed but cannot be placed (grid, divisibility): the case is `refused`.
class Refused : public ConfigError {
 public:
  using ConfigError::ConfigError;
};

/// Kuafu's own bug; the message has operands and location.
class InternalError : public Error {
 public:
  using Error::Error;
};

/// A loss that is no number: the state before the step is whole, and no step follows it.
class Diverged : public ConfigError {
 public:
  using ConfigError::ConfigError;
};

/// A back end that this build or machine lacks.
class Unavailable : public ConfigError {
 public:
  using ConfigError::ConfigError;
};

/// A tensor dim that the mesh axes sharding it do not divide.
class NotDivisible : public Refused {
 public:
  NotDivisible(std::string what, std::string dim_, int64_t extent_, std::string axes_)
      : Refused(std::move(what)), dim(std::move(dim_)), extent(extent_), axes(std::move(axes_)) {}
  std::string dim;
  int64_t extent;
  std::string axes;
};

/// An allocation that would exceed the rank's memory budget. `where` is added to the message.
class OutOfMemory : public Error {
 public:
  OutOfMemory(int rank_, int64_t requested_, int64_t live_, int64_t budget_,
              const std::string& where = "")
      : Error(text("rank ", rank_, " is out of memory: asked for ", requested_, " bytes with ",
                   live_, " live, budget ", budget_, where)),
        rank(rank_),
        requested(requested_),
        live(live_),
        budget(budget_) {}
  int rank;
  int64_t requested;  ///< bytes of the allocation that failed
  int64_t live;       ///< bytes live before it
  int64_t budget;     ///< bytes allowed
};

/// Two ranks of one group made different calls at the same position.
class CollectiveMismatch : public Error {
 public:
  using Error::Error;
};

/// A wait that nobody can end: time-out, a rank that left, or a world torn down by another's error.
class RankLost : public Error {
 public:
  using Error::Error;
};

namespace detail {
[[noreturn]] void fail_check(const char* condition, const char* file, int line,
                             const std::string& message);
}  // namespace detail

}  // namespace kuafu

/// The caller can fix it. Further arguments are printed.
#define KUAFU_REQUIRE(condition, ...)                                         \
  do {                                                                        \
    if (!(condition)) throw ::kuafu::ConfigError(::kuafu::text(__VA_ARGS__)); \
  } while (false)

/// Our bug if it fails. Further arguments are printed with the location.
#define KUAFU_CHECK(condition, ...)                                                            \
  do {                                                                                         \
    if (!(condition))                                                                          \
      ::kuafu::detail::fail_check(#condition, __FILE__, __LINE__, ::kuafu::text(__VA_ARGS__)); \
  } while (false)
