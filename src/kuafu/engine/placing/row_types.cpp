// SPDX-License-Identifier: Apache-2.0
#include "kuafu/engine/placing/row_types.h"

#include <algorithm>
#include <utility>

#include "kuafu/base/suggest.h"
#include "kuafu/engine/placing/row_uses.h"
#include "kuafu/plan/arrange.h"

namespace kuafu {
namespace {

/// Those of more than one rank.
AxisSet long_set(const Axes& axes, const Mesh& mesh) {
  AxisSet out;
  for (const std::string& axis : axes) {
    if (mesh.size(axis) > 1) out.insert(axis);
  }
  return out;
}

/// The rows of the layers that have one scheme.
class RowCheck {
 public:
  RowCheck(const Context& context, const LeftSums& left, const AxisSet& tied)
      : ctx_(context), uses_(context, left), tied_(tied) {}

  void check(const Param& p, bool may_be_own) const {
    if (p.use == RowUse::kUnstated) {
      refuse(p,
             "its maker states no use: give Context::param() one, or set Param::use (RowUse of "
             "tensor/param.h says which there are)");
    }
    if (p.use == RowUse::kOwn && !may_be_own) {
      refuse(p, "only rows of a plug-in's model may have a use of their own");
    }
    check_layers(p);
    check_shard(p);
    check_replicas(p);
    check_layout(p);
    if (p.use == RowUse::kOwn) return;
    for (const Partial& e : uses_.partial(p, tied_.contains(p.name))) check_partial(p, e);
  }

 private:
  bool is_long(const std::string& axis) const { return ctx_.mesh.size(axis) > 1; }

  AxisSet set_of(const Axes& axes) const { return uses_.set_of(axes); }

  template <class... Words>
  [[noreturn]] static void refuse(const Param& p, const Words&... words) {
    throw ConfigError(text("parameter ", in_quotes(p.name), ": ", words...));
  }

  /// Layers divide the last dim, and padding is added alone.
  void check_layers(const Param& p) const {
    const LayerSplit& l = p.layers;
    const bool is_right = l.parts >= 1 && l.width >= 1 &&
                          (l.parts == 1 || p.padded.back() % (l.parts * l.width) == 0);
    if (!is_right) {
      refuse(p, "it is declared to hold ", l.parts, " tensors in turns of ", l.width,
             " columns, which do not divide ", to_string(p.padded));
    }
    for (size_t d = 0; d < p.global.size(); ++d) {
      if (p.padded.size() == p.global.size() && p.global[d] <= p.padded[d]) continue;
      refuse(p, "its extents ", to_string(p.global), " are more than those with padding, ",
             to_string(p.padded));
    }
  }

  /// Norms are summed over the axes of the layout: those that the shard is smaller by.
  void check_shard(const Param& p) const {
    AxisSet seen;
    for (size_t d = 0; d < p.layout.dims.size(); ++d) {
      for (const std::string& axis : p.layout.dims[d]) {
        if (is_long(axis) && !seen.insert(axis).second) {
          refuse(p, "axis ", in_quotes(axis), " shards it twice: ", to_string(p.layout.all_axes()));
        }
      }
      const int64_t ranks = ctx_.mesh.size(p.layout.dims[d]), held = p.value.sizes()[d];
      if (held * ranks == p.padded[d]) continue;
      refuse(p, "axes ", in_quotes(to_string(p.layout.dims[d])), " are declared to shard dim ", d,
             " of ", to_string(p.padded), ", over which its norm is summed; its shard has ", held,
             " there, which ", ranks, " ranks do not make ", p.padded[d]);
    }
  }

  void check_replicas(const Param& p) const {
    const AxisSet replicas = set_of(ctx_.mesh.canonical({"data"}));
    AxisSet seen;
    for (const std::string& axis : p.grad_axes) {
      if (is_long(axis) && !seen.insert(axis).second) {
        refuse(p, "its gradient is declared to be summed twice over axis ", in_quotes(axis),
               ": a double count");
      }
      if (replicas.contains(axis) || (axis == "data" && !replicas.empty())) {
        refuse(p, "its gradient is declared to be summed over axis ", in_quotes(axis),
               ", over which replicas are: the store sums over them, a double count");
      }
      if (axis == "pipeline" && is_long(axis)) {
        refuse(p,
               "its gradient is declared to be summed over axis \"pipeline\", whose stages hold "
               "other parameters");
      }
      if (set_of(p.layout.all_axes()).contains(axis)) {
        refuse(p, "its gradient is declared to be summed over axis ", in_quotes(axis),
               ", which shards it: ranks would add up different elements");
      }
    }
  }

  /// It lies as rows of its use do. Experts, and they alone, are dealt out over their axis.
  void check_layout(const Param& p) const {
    const size_t first = p.layers.is_stacked ? 1 : 0, n = p.layout.dims.size();
    const Layout end = p.use == RowUse::kOwn ? Layout{} : uses_.end_of(p.use);
    if (n < first + end.dims.size()) {
      refuse(p, "it has ", n, " dims; ", to_string(p.use), " have ", first + end.dims.size());
    }
    const size_t others = n - end.dims.size();
    for (size_t d = 0; d < n; ++d) {
      const Axes lies = uses_.long_axes(p.layout.dims[d]);
      if (p.use == RowUse::kOwn && d >= first) {
        if (set_of(lies).contains("expert"))
          refuse(p, "axis \"expert\" shards what is no expert's");
        continue;
      }
      const Axes wanted = uses_.long_axes(d >= others ? end.dims[d - others]
                                          : d < first ? Axes{"expert"}
                                                      : Axes{});
      if (lies == wanted) continue;
      refuse(p, "it lies as ", in_quotes(words_of(p.layout)), "; dim ", d, " of ", to_string(p.use),
             " lies along ", in_quotes(to_string(wanted)));
    }
  }

  void check_partial(const Param& p, const Partial& e) const {
    const AxisSet declared = set_of(p.grad_axes);
    for (const std::string& axis : e.axes) {
      if (declared.contains(axis)) continue;
      refuse(p, "axis ", in_quotes(axis), ": its gradient is declared to be summed over ",
             described(declared), "; ", e.why, ": a missing sum");
    }
    for (const std::string& axis : declared) {
      if (e.axes.contains(axis)) continue;
      refuse(p, "axis ", in_quotes(axis), ": its gradient is declared to be summed over ",
             described(declared), "; ", e.why, ": a double count");
    }
  }

  std::string words_of(const Layout& layout) const {
    std::string out;
    for (const Axes& axes : layout.dims)
      out += text(out.empty() ? "(" : ", ", to_string(uses_.long_axes(axes)));
    return out + ")";
  }

  const Context& ctx_;
  const RowUses uses_;
  const AxisSet& tied_;  ///< names of rows that other blocks borrow
};

/// The sum of a loss's parts is over the axes that split the tokens of its stream.
void check_loss(const Model& model, const Context& context) {
  const AxisSet declared = long_set(model.loss_axes.axes, context.mesh);
  const Layout activation = context.activation(model.loss_axes.of);
  AxisSet tokens = long_set(activation.dims[0], context.mesh);
  tokens.merge(long_set(activation.dims[1], context.mesh));
  if (tokens == declared) return;
  throw ConfigError(text("the loss of the model is declared to be partial over ",
                         described(declared), "; the tokens it adds up are split over ",
                         described(tokens)));
}

/// The scheme of an arrangement on axes of its own, by one of the model's weights.
LeftSums checked_scheme(const Plan& plan, const Registries& registries, const Arrangement& a,
                        const std::string& layer) {
  const TensorScheme& scheme = registries.tensor.find(a.mode);
  try {
    return check_axis_types(scheme, scheme.mode.axes(plan.parallel.tensor.size, a.depth));
  } catch (const WrongAxes& e) {
    throw WrongAxes(
        text("parallel.tensor.mode = ", in_quotes(a.mode), ", parameter ",
             in_quotes(layer + (e.role == Role::kExpand ? "mlp.up.weight" : "mlp.down.weight")),
             " and all that is multiplied like it: ", e.what()),
        e.role);
  }
}

/// Rows that a block other than their owner uses.
AxisSet tied_rows(const Model& model) {
  AxisSet names;
  for (const auto& block : model.blocks) {
    for (const Param* p : block->borrowed()) names.insert(p->name);
  }
  return names;
}

/// The layer that a block is, by its name: "blocks.3"; -1 where it is none.
int64_t layer_of(const std::string& block) {
  const std::string number = block.starts_with("blocks.") ? block.substr(7) : "";
  const bool is_layer = !number.empty() && number.size() < 10 &&
                        number.find_first_not_of("0123456789") == std::string::npos;
  return is_layer ? std::stoll(number) : -1;
}

}  // namespace

RowTypes::RowTypes(const Plan& plan, const Registries& registries, const Context& context)
    : plan_(plan), ctx_(context) {
  const std::vector<std::string> known = builtin_model_names();
  may_be_own_ = std::count(known.begin(), known.end(), plan.model.kind) == 0;
  for (const Arrangement& a : arrangements(plan)) {
    int64_t layer = 0;
    while (layer < plan.model.layers && !(arrangement_of(plan, layer) == a)) ++layer;
    const std::string name = text("blocks.", layer < plan.model.layers ? layer : 0, ".");
    left_.emplace_back(a, checked_scheme(plan, registries, a, name));
  }
}

void RowTypes::check(const Model& model) const {
  check_loss(model, ctx_);
  const AxisSet tied = tied_rows(model);
  for (const auto& block : model.blocks) {
    const int64_t layer = layer_of(block->name());
    const Arrangement a = layer < 0 ? base_arrangement(plan_) : arrangement_of(plan_, layer);
    const auto left =
        std::find_if(left_.begin(), left_.end(), [&](const auto& of) { return of.first == a; });
    KUAFU_CHECK(left != left_.end(), "no scheme of ", block->name());
    const RowCheck rows(layer < 0 ? ctx_ : ctx_.layer(layer), left->second, tied);
    for (const Param* p : block->params()) rows.check(*p, may_be_own_);
  }
}

void check_row_types(const Plan& plan, const Registries& registries, const Model& model,
                     const Context& context) {
  RowTypes(plan, registries, context).check(model);
}

}  // namespace kuafu
