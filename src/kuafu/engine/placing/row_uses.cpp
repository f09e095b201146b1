// SPDX-License-Identifier: Apache-2.0
#include "kuafu/engine/placing/row_uses.h"

#include <algorithm>

namespace kuafu {

std::string described(const AxisSet& axes) { return to_string(Axes(axes.begin(), axes.end())); }

Axes RowUses::long_axes(const Axes& axes) const {
  Axes out = axes;
  std::erase_if(out, [&](const std::string& axis) { return ctx_.mesh.size(axis) == 1; });
  return out;
}

AxisSet RowUses::set_of(const Axes& axes) const {
  const Axes all = long_axes(axes);
  return {all.begin(), all.end()};
}

Layout RowUses::end_of(RowUse use) const {
  const Layout expand = ctx_.weight(Role::kExpand), contract = ctx_.weight(Role::kContract);
  switch (use) {
    case RowUse::kExpand:
      return expand;
    case RowUse::kContract:
    case RowUse::kTable:
      return contract;
    case RowUse::kOuterWidth:
      return {{features(Stream::kOuter)}};
    case RowUse::kInnerWidth:
      return {{features(Stream::kInner)}};
    case RowUse::kFromOuter:
      return {{features(Stream::kOuter), {}}};
    case RowUse::kFromInner:
      return {{features(Stream::kInner), {}}};
    case RowUse::kLogits:
      return {{columns_of_logits(contract.dims[0])}};
    case RowUse::kSharedHeads:
      return {{expand.dims[0], {}}};
    default:
      return {{{}}};
  }
}

/// Those of the inner stream. Rows of the table that more ranks cut are padded further: then also
/// the axes that cut rows alone.
Axes RowUses::columns_of_logits(const Axes& rows) const {
  Axes axes = features(Stream::kInner);
  if (ctx_.mesh.size(rows) == ctx_.mesh.size(axes)) return axes;
  const AxisSet columns = set_of(axes);
  for (const std::string& axis : long_axes(rows)) {
    if (!columns.contains(axis)) axes.push_back(axis);
  }
  return axes;
}

/// Of tokens of a stream, where they are split and the row is not.
Partial RowUses::tokens(Stream s, const Param& p) const {
  AxisSet partial;
  const Layout activation = ctx_.activation(s);
  for (const size_t dim : {0, 1}) partial.merge(set_of(activation.dims[dim]));
  for (const std::string& axis : p.layout.all_axes()) partial.erase(axis);
  return {text("it meets tokens that are split over ", described(partial)), partial};
}

/// Of a product's weight: what the code leaves partial, and the sequence, which no scheme sees.
/// Where the code cannot be told, what its layouts say.
Partial RowUses::product(Role r, const Param& p) const {
  AxisSet partial = set_of(ctx_.on_mesh({{left_.of(r)}}).dims[0]);
  if (ctx_.mesh.size("sequence") > 1) partial.insert("sequence");
  const Stream in = r == Role::kExpand ? Stream::kOuter : Stream::kInner;
  const AxisSet by_layout = tokens(in, p).axes;
  const Axes unknown = ctx_.on_mesh({{left_.unknown}}).dims[0];
  for (const std::string& axis : unknown) {
    if (by_layout.contains(axis)) partial.insert(axis);
  }
  return {text("the products of its scheme leave it partial over ", described(partial)), partial};
}

/// Partial over axes besides, as each rank along them uses a part of it, or all of it for a part.
Partial RowUses::also_over(Partial e, const Axes& axes, const char* what) const {
  e.axes.merge(set_of(axes));
  return {text(what, " partial over ", described(e.axes)), e.axes};
}

std::vector<Partial> RowUses::partial(const Param& p, bool is_tied) const {
  constexpr const char* kShared = "key-value heads that ranks share are";
  constexpr const char* kGain = "it meets every column of a width, and is";
  const Stream s = stream_of(p.use);
  switch (p.use) {
    case RowUse::kExpand:
      return {product(Role::kExpand, p)};
    case RowUse::kContract:
      return {product(Role::kContract, p)};
    case RowUse::kTable:
      if (!is_tied) return {tokens(s, p)};
      return {tokens(s, p), product(Role::kContract, p)};
    case RowUse::kOuterGain:
    case RowUse::kInnerGain:
      return {also_over(tokens(s, p), features(s), kGain)};
    case RowUse::kSharedHeads:
      return {also_over(product(Role::kExpand, p), ctx_.weight(Role::kExpand).dims[1], kShared)};
    case RowUse::kSharedHeadsBias:
      return {also_over(tokens(s, p), features(s), kShared)};
    default:
      return {tokens(s, p)};
  }
}

}  // namespace kuafu
