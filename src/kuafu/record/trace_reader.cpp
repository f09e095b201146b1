// SPDX-License-Identifier: Apache-2.0
#include "kuafu/record/trace_reader.h"

#include <fcntl.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include "kuafu/base/errors.h"
#include "kuafu/record/files.h"
#include "kuafu/record/json_text.h"

namespace kuafu {
namespace {

/// One line, with the place that messages name.
class Line {
 public:
  Line(std::string_view bytes, std::string place) : place_(std::move(place)) {
    try {
      value_ = parse_json(bytes);
    } catch (const ConfigError& e) {
      throw ConfigError(text(place_, ": ", e.what()));
    }
    KUAFU_REQUIRE(value_.is_object(), place_, ": ", json_excerpt(value_), " is no JSON object");
  }

  /// Whether the line has the field, which is known from now on.
  bool has(const char* key) const {
    known_.insert(key);
    return value_.contains(key);
  }
  const Json& at(const char* key) const {
    if (!has(key)) wrong(key, "missing");
    return value_[key];
  }
  int64_t whole(const char* key) const {
    const std::optional<int64_t> number = whole_number(at(key));
    if (!number) wrong(key, text(json_excerpt(at(key)), ", expected a whole number"));
    return *number;
  }
  int32_t small(const char* key, int32_t otherwise) const {
    if (!has(key)) return otherwise;
    const int64_t number = whole(key);
    if (number < 0 || number > INT32_MAX) wrong(key, text(number, ", expected 0 to ", INT32_MAX));
    return static_cast<int32_t>(number);
  }
  double number(const char* key) const {
    if (!at(key).is_number()) wrong(key, text(json_excerpt(at(key)), ", expected a number"));
    return at(key).get<double>();
  }
  /// A number, or a word for what JSON has none.
  double value(const char* key) const {
    if (!at(key).is_string()) return number(key);
    const std::string given = word(key);
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    if (given == "inf") return kInfinity;
    if (given == "-inf") return -kInfinity;
    if (given != "nan") wrong(key, text('"', given, "\", expected a number, inf, -inf or nan"));
    return std::numeric_limits<double>::quiet_NaN();
  }
  std::vector<int64_t> wholes(const char* key) const {
    std::vector<int64_t> out;
    if (!at(key).is_array()) wrong(key, text(json_excerpt(at(key)), ", expected whole numbers"));
    for (const Json& one : at(key)) {
      const std::optional<int64_t> number = whole_number(one);
      if (!number) wrong(key, text(json_excerpt(one), ", expected a whole number"));
      out.push_back(*number);
    }
    return out;
  }
  std::string word(const char* key) const {
    if (!at(key).is_string()) wrong(key, text(json_excerpt(at(key)), ", expected a word"));
    return at(key).get<std::string>();
  }
  bool is(const char* key) const {
    if (!has(key)) return false;
    if (!at(key).is_boolean()) wrong(key, text(json_excerpt(at(key)), ", expected true or false"));
    return at(key).get<bool>();
  }
  /// The enumerator of that name, of `count`.
  template <class Enum>
  Enum choice(const char* key, int count) const {
    const std::string given = word(key);
    std::string names;
    for (int i = 0; i < count; ++i) {
      const std::string_view name = to_string(static_cast<Enum>(i));
      if (name == given) return static_cast<Enum>(i);
      names += text(i == 0 ? "" : ", ", name);
    }
    wrong(key, text('"', given, "\", expected one of ", names));
  }
  /// Throws where the line has a field that nobody asked for: nothing of it is lost in silence.
  void end() const {
    for (const auto& [key, value] : value_.items()) {
      if (!known_.contains(key)) wrong(key, "unknown field of this event");
    }
  }
  [[noreturn]] void wrong(const std::string& key, const std::string& what) const {
    throw ConfigError(text(place_, ": \"", key, "\": ", what));
  }

 private:
  std::string place_;
  Json value_;
  mutable std::set<std::string> known_;
};

/// A trace in the making.
class Builder {
 public:
  void add(const Line& line) {
    TraceRecord r;
    r.kind = line.choice<TraceKind>("event", kNumTraceKinds);
    r.name = id(line.word("name"), names_, trace_.names);
    r.start_ns = line.whole("start_ns");
    r.flags = static_cast<uint8_t>((line.is("host_sync") ? kHostSync : kNoFlags) |
                                   (line.is("recompute") ? kRecompute : kNoFlags) |
                                   (line.is("on_host") ? kOnHost : kNoFlags));
    if (r.kind == TraceKind::kOracle) {
      r.value = line.value("value");
    } else {
      r.end_ns = line.whole("end_ns");
    }
    add_payload(line, r);
    const std::string queue(to_string(r.queue));
    if (line.has("queue") && line.word("queue") != queue) {
      line.wrong("queue", text(json_excerpt(line.at("queue")), ", expected \"", queue, '"'));
    }
    line.end();
    trace_.records.push_back(r);
  }
  Trace take() { return std::move(trace_); }

 private:
  using Ids = std::map<std::string, int32_t>;
  static int32_t id(const std::string& word, Ids& ids, std::vector<std::string>& table) {
    const auto [at, is_new] = ids.try_emplace(word, static_cast<int32_t>(table.size()));
    if (is_new) table.push_back(word);
    return at->second;
  }

  void add_payload(const Line& line, TraceRecord& r) {
    switch (r.kind) {
      case TraceKind::kOp:
        r.op = line.choice<OpKind>("kind", kNumOpKinds);
        r.payload[0] = id(line.word("shape"), shapes_, trace_.shapes);
        r.payload[1] = line.whole("flops");
        r.payload[2] = line.whole("bytes");
        break;
      case TraceKind::kAlloc:
      case TraceKind::kFree:
        r.payload[0] = line.whole("block");
        r.payload[1] = line.whole("bytes");
        break;
      case TraceKind::kCall:
      case TraceKind::kWait:
        r.queue = TraceQueue::kCommunication;
        r.payload[0] = call(line);
        r.payload[1] = line.whole("bytes");
        r.payload[2] = line.whole("call");
        break;
      case TraceKind::kCopy:
      case TraceKind::kArrival:
        r.queue = line.choice<TraceQueue>("queue", kNumTraceQueues);
        if (r.queue < TraceQueue::kToDevice) {
          line.wrong("queue", text(json_excerpt(line.at("queue")),
                                   ", expected \"to device\", \"to host\", \"from disk\" or "
                                   "\"to disk\" of a copy"));
        }
        r.payload[0] = line.whole("copy");
        r.payload[1] = line.whole("bytes");
        break;
      default:
        break;
    }
  }

  int32_t call(const Line& line) {
    TraceCall c;
    c.group = group(line);
    c.to = line.small("to", -1);
    c.from = line.small("from", -1);
    c.tag = line.small("tag", 0);
    const auto size =
        static_cast<int32_t>(trace_.groups[static_cast<size_t>(c.group)].members.size());
    if (c.to >= size) line.wrong("to", text(c.to, ", the group has ", size, " members"));
    if (c.from >= size) line.wrong("from", text(c.from, ", the group has ", size, " members"));
    if (line.has("reduce")) c.reduce = id(line.word("reduce"), names_, trace_.names);
    try {
      c.dtype = dtype_from(line.word("dtype"));
    } catch (const ConfigError& e) {
      line.wrong("dtype", e.what());
    }
    const auto [at, is_new] = calls_.try_emplace(c, static_cast<int32_t>(trace_.calls.size()));
    if (is_new) trace_.calls.push_back(c);
    return at->second;
  }

  int32_t group(const Line& line) {
    TraceGroup g{line.word("axis"), {}, -1};
    const Json& members = line.at("members");
    for (const Json& m : members.is_array() ? members : Json::array()) {
      const std::optional<int64_t> rank = whole_number(m);
      if (!rank || *rank < 0 || *rank > INT32_MAX) line.wrong("members", json_excerpt(members));
      g.members.push_back(static_cast<int>(*rank));
    }
    if (g.members.empty()) line.wrong("members", "expected an array of world ranks");
    const int32_t given = line.small("group", 0);
    const auto [at, is_new] =
        groups_.try_emplace(given, static_cast<int32_t>(trace_.groups.size()));
    if (is_new) {
      trace_.groups.push_back(std::move(g));
      return at->second;
    }
    const TraceGroup& before = trace_.groups[static_cast<size_t>(at->second)];
    if (before.label != g.label) line.wrong("axis", text("group ", given, " is of another axis"));
    if (before.members != g.members) {
      line.wrong("members", text(json_excerpt(members), ", group ", given, " has others"));
    }
    return at->second;
  }

  Trace trace_;
  Ids names_ = {{"", 0}}, shapes_ = {{"", 0}};
  std::map<int32_t, int32_t> groups_;  // by the number in the file
  std::map<TraceCall, int32_t> calls_;
};

/// Calls f(line without its end, its number from `number`).
template <class F>
void each_line(std::string_view bytes, int64_t number, const F& f) {
  while (!bytes.empty()) {
    const size_t end = std::min(bytes.find('\n'), bytes.size());
    f(bytes.substr(0, end), number++);
    bytes.remove_prefix(std::min(end + 1, bytes.size()));
  }
}

std::string place_of(const std::string& source, int64_t number) {
  return text(source, ":", number);
}

}  // namespace

Trace read_trace_lines(std::string_view lines, int rank, const std::string& source,
                       int64_t first_line) {
  Builder builder;
  each_line(lines, first_line, [&](std::string_view bytes, int64_t number) {
    const Line line(bytes, place_of(source, number));
    const int64_t given = line.whole("rank");
    if (given != rank) line.wrong("rank", text(given, ", expected ", rank));
    builder.add(line);
  });
  return builder.take();
}

std::vector<Trace> read_trace(const std::string& file) {
  const File opened(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
  KUAFU_REQUIRE(opened.is_open(), system_error("read the trace", file));
  const std::string all = read_all(opened, file);
  std::vector<Builder> ranks;        // as they come: the head is not trusted with memory
  std::vector<int64_t> told, found;  // events of each rank: by the head, and there are
  int64_t num_ranks = 0;
  int64_t now = 0;  // events of a rank follow those of the rank before
  each_line(all, 1, [&](std::string_view bytes, int64_t number) {
    const Line line(bytes, place_of(file, number));
    if (number == 1) {
      if (line.whole("trace") != 1) line.wrong("trace", "expected 1, the format's version");
      const int32_t count = line.small("ranks", 0);
      if (count < 1) line.wrong("ranks", "expected one or more");
      num_ranks = count;
      ranks.resize(1);
      found.resize(1);
      if (line.has("events")) told = line.wholes("events");
      return;
    }
    const int64_t rank = line.whole("rank");
    const bool is_next = rank == now || rank == now + 1;
    if (!is_next || rank >= num_ranks) {
      line.wrong("rank", text(rank, " of ", num_ranks, " after rank ", now));
    }
    now = rank;
    ranks.resize(static_cast<size_t>(now) + 1);
    found.resize(ranks.size());
    ++found.back();
    ranks.back().add(line);
  });
  KUAFU_REQUIRE(!ranks.empty(), file, ":1: \"trace\": missing; the file is empty");
  KUAFU_REQUIRE(now + 1 == num_ranks, file, ": events of ", now + 1, " of ", num_ranks,
                " ranks; the file was cut");
  KUAFU_REQUIRE(told.empty() || told == found, file, ":1: \"events\": ", Json(told).dump(),
                " of its ranks, and there are ", Json(found).dump(),
                "; the file was cut or changed");
  std::vector<Trace> traces;
  for (Builder& b : ranks) traces.push_back(b.take());
  return traces;
}

}  // namespace kuafu
