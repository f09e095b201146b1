// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <set>
#include <string>
#include <vector>

#include "kuafu/model/context.h"
#include "kuafu/parallel/tensor/axis_types.h"

// What follows from the use of a row: how it lies and what its gradient is partial over.
//
//   use                             its last dims lie as            partial over
//   expand, contract                the scheme's weight             what the scheme's code leaves
//   table                           the contract's weight           outer tokens; tied: also as a contract
//   outer, inner width              the width                       tokens
//   from outer, from inner          the width, whole                tokens
//   tokens                          whole                           tokens
//   gain                            whole                           tokens, the width
//   logits                          the inner width (and rows that cut the table further)  inner tokens
//   shared heads                    the expand's rows, whole        as an expand, its columns
//   their bias                      whole                           inner tokens, the inner width
//
// Tokens: the axes that split those of its stream, less those that the row lies along.
namespace kuafu {

using AxisSet = std::set<std::string>;

std::string described(const AxisSet& axes);

/// What a gradient is partial over, and why.
struct Partial {
  std::string why;
  AxisSet axes;
};

/// Of the rows of the layers that have one scheme. Axes of one rank are left out.
class RowUses {
 public:
  /// `left`: by the scheme's code. @pre `context` and `left` outlive this.
  RowUses(const Context& context, const LeftSums& left) : ctx_(context), left_(left) {}

  /// How the last dims of rows of a use lie; those before are whole.
  Layout end_of(RowUse use) const;
  /// Every sum that its gradient takes part in: a tied table has two, which must be one.
  std::vector<Partial> partial(const Param& p, bool is_tied) const;

  Axes long_axes(const Axes& axes) const;
  AxisSet set_of(const Axes& axes) const;

 private:
  Axes features(Stream s) const { return long_axes(ctx_.activation(s).dims[2]); }
  Axes columns_of_logits(const Axes& rows) const;
  Partial tokens(Stream s, const Param& p) const;
  Partial product(Role r, const Param& p) const;
  Partial also_over(Partial e, const Axes& axes, const char* what) const;

  const Context& ctx_;
  const LeftSums& left_;
};

}  // namespace kuafu
