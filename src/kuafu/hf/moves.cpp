// SPDX-License-Identifier: Apache-2.0
//
// Where the elements of a tensor of ours lie in those of theirs.

#include <algorithm>
#include <cstring>

#include "kuafu/base/errors.h"
#include "kuafu/checkpoint/boxes.h"
#include "kuafu/hf/tensors.h"

namespace kuafu::hf {
namespace {

struct Range {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
};

Range overlap(Range a, Range b) { return {std::max(a.begin, b.begin), std::min(a.end, b.end)}; }

/// What of a tensor is moved: places and lines of ours, rows of a tensor of theirs.
struct Window {
  Range places, lines, rows;
};

/// Calls move(ours, theirs, count) with offsets, from where the window begins on each side, of runs of
/// `count` elements; in tiles that stay in the cache where the two orders differ.
template <class Move>
void each(const Mapped& t, size_t part, const Window& w, const Move& move) {
  constexpr int64_t kTile = 64;
  const auto parts = static_cast<int64_t>(t.parts.size()), p = static_cast<int64_t>(part);
  const int64_t first = t.parts[part].first, all = t.places() / parts;
  const int64_t b = parts == 1 ? all : t.block;
  const int64_t stride = volume(t.theirs) / t.lines();  // places of one of their lines
  // Of the part: the places whose turns of blocks meet the window, and whose rows are there.
  Range places =
      overlap({w.places.begin / (b * parts) * b, (w.places.end / (b * parts) + 1) * b}, {0, all});
  Range lines = w.lines;
  const bool is_by_place = t.rows_are_places();
  if (is_by_place) {
    places = overlap(places, {w.rows.begin - first, w.rows.end - first});
  } else {
    lines = overlap(lines, w.rows);
  }
  const auto offset = [&](bool by_place, Range of_places, Range of_lines, int64_t place,
                          int64_t line) {
    const int64_t x = place - of_places.begin, y = line - of_lines.begin;
    return by_place ? x * of_lines.size() + y : y * of_places.size() + x;
  };
  const Range their_places = is_by_place ? w.rows : Range{0, stride};
  const Range their_lines = is_by_place ? Range{0, t.lines()} : w.rows;
  const auto move_run = [&](int64_t own, int64_t place, int64_t line, int64_t count) {
    move(offset(t.along_rows, w.places, w.lines, own, line),
         offset(is_by_place, their_places, their_lines, first + place, line), count);
  };
  for (int64_t at = places.begin; at < places.end;) {
    // The rest of a block, as far as the window and the tile go.
    const int64_t end = std::min({places.end, at / b * b + b, at + kTile});
    const int64_t before = (at / b * (parts - 1) + p) * b;  // ours of a place, less the place
    const Range run = overlap({at, end}, {w.places.begin - before, w.places.end - before});
    at = end;
    if (run.size() <= 0 || lines.size() <= 0) continue;
    if (t.lines() == 1 || (!is_by_place && !t.along_rows)) {
      for (int64_t line = lines.begin; line < lines.end; ++line) {
        move_run(run.begin + before, run.begin, line, run.size());
      }
    } else if (is_by_place && t.along_rows) {
      for (int64_t place = run.begin; place < run.end; ++place) {
        move_run(place + before, place, lines.begin, lines.size());
      }
    } else {
      for (int64_t line0 = lines.begin; line0 < lines.end; line0 += kTile) {
        for (int64_t line = line0; line < std::min(lines.end, line0 + kTile); ++line) {
          for (int64_t place = run.begin; place < run.end; ++place) {
            move_run(place + before, place, line, 1);
          }
        }
      }
    }
  }
}

/// Copies `to[i] = from[j]` of runs, of elements of so many bytes.
template <size_t kBytes>
void copy_run(char* to, const char* from, int64_t count) {
  if (count == 1) {
    std::memcpy(to, from, kBytes);
  } else {
    std::memcpy(to, from, static_cast<size_t>(count) * kBytes);
  }
}

/// Calls f(copy of runs) for elements of so many bytes.
template <class F>
void by_bytes(int64_t bytes, const F& f) {
  if (bytes == 8) return f(&copy_run<8>);
  if (bytes == 4) return f(&copy_run<4>);
  KUAFU_CHECK(bytes == 2, "elements of ", bytes, " bytes");
  f(&copy_run<2>);
}

Window window_of(const Mapped& t, const Slice& box, Range rows) {
  const auto range = [&](size_t d) { return Range{box.offset[d], box.offset[d] + box.extent[d]}; };
  if (t.shape.size() == 1) return {range(0), {0, 1}, rows};
  return t.along_rows ? Window{range(0), range(1), rows} : Window{range(1), range(0), rows};
}

}  // namespace

int64_t Mapped::places() const { return along_rows || shape.size() == 1 ? shape[0] : shape[1]; }

int64_t Mapped::lines() const { return volume(shape) / places(); }

bool Mapped::rows_are_places() const { return is_transposed || lines() == 1; }

int64_t Mapped::their_rows() const {
  return rows_are_places() ? volume(theirs) / lines() : lines();
}

void gather(const Mapped& tensor, size_t part, int64_t bytes, const TheirRows& theirs,
            const Slice& box, char* ours) {
  const Window window = window_of(tensor, box, {theirs.first, theirs.first + theirs.count});
  by_bytes(bytes, [&](auto copy) {
    each(tensor, part, window, [&](int64_t to, int64_t from, int64_t count) {
      copy(ours + to * bytes, theirs.data + from * bytes, count);
    });
  });
}

void scatter(const Mapped& tensor, size_t part, int64_t bytes, const char* ours, char* theirs) {
  const Slice whole = {Shape(tensor.shape.size(), 0), tensor.shape};
  by_bytes(bytes, [&](auto copy) {
    each(tensor, part, window_of(tensor, whole, {0, tensor.their_rows()}),
         [&](int64_t from, int64_t to, int64_t count) {
           copy(theirs + to * bytes, ours + from * bytes, count);
         });
  });
}

}  // namespace kuafu::hf
