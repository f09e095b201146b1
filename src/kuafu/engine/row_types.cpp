// SPDX-License-Identifier: Apache-2.0
#include "kuafu/engine/row_types.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "kuafu/base/suggest.h"
#include "kuafu/parallel/tensor/axis_types.h"
#include "kuafu/plan/arrange.h"

namespace kuafu {
namespace {

using AxisSet = std::set<std::string>;

std::string described(const AxisSet& axes) { return to_string(Axes(axes.begin(), axes.end())); }

/// Those of more than one rank.
AxisSet long_set(const Axes& axes, const Mesh& mesh) {
  AxisSet out;
  for (const std::string& axis : axes) {
    if (mesh.size(axis) > 1) out.insert(axis);
  }
  return out;
}

/// What follows for one row: how it may lie and what it is partial over then.
struct Expected {
  std::string why;
  AxisSet partial;
};

/// The rows of the layers that have one scheme.
class RowCheck {
 public:
  RowCheck(const Plan& plan, const Context& context, const LeftSums& left,
           const std::vector<Param*>& block)
      : plan_(plan), ctx_(context), left_(left), block_(block) {}

  void check(const Param& p) const {
    check_shard(p);
    check_replicas(p);
    check_partial(p);
  }

 private:
  bool is_long(const std::string& axis) const { return ctx_.mesh.size(axis) > 1; }

  AxisSet set_of(const Axes& axes) const { return long_set(axes, ctx_.mesh); }
  Axes long_axes(const Axes& axes) const {
    Axes out = axes;
    std::erase_if(out, [&](const std::string& axis) { return !is_long(axis); });
    return out;
  }

  template <class... Words>
  [[noreturn]] static void refuse(const Param& p, const Words&... words) {
    throw ConfigError(text("parameter ", in_quotes(p.name), ": ", words...));
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
    for (const std::string& axis : p.grad_axes) {
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

  void check_partial(const Param& p) const {
    const std::vector<Expected> all = expected(p);
    if (all.empty()) {
      const std::vector<std::string> known_models = builtin_model_names();
      const bool is_own =
          std::count(known_models.begin(), known_models.end(), plan_.model.kind) > 0;
      if (!is_own) return;  // a plug-in's model may use a row in ways of its own
      if (const auto role = role_by_bias(p)) {
        refuse(p, "it lies as ", in_quotes(words_of(p.layout)), ", and ", in_quotes(bias_of(p)),
               " as that of a weight that lies as ", words_of(ctx_.weight(*role)));
      }
      refuse(p, "it lies as ", in_quotes(words_of(p.layout)),
             ", as nothing of its scheme does: weights lie as ",
             words_of(ctx_.weight(Role::kExpand)), " or ", words_of(ctx_.weight(Role::kContract)),
             ", widths along ", to_string(features(Stream::kOuter)), " or ",
             to_string(features(Stream::kInner)));
    }
    const AxisSet unknown = set_of(ctx_.on_mesh({{left_.unknown}}).dims[0]);
    const auto known = [&](AxisSet axes) {
      for (const std::string& axis : unknown) axes.erase(axis);
      return axes;
    };
    const AxisSet declared = known(set_of(p.grad_axes));
    for (const Expected& e : all) {
      if (known(e.partial) == declared) return;
    }
    const Expected e{all.front().why, known(all.front().partial)};
    for (const std::string& axis : e.partial) {
      if (!declared.contains(axis)) {
        refuse(p, "axis ", in_quotes(axis), ": its gradient is declared to be summed over ",
               described(declared), "; ", e.why, ": a missing sum");
      }
    }
    for (const std::string& axis : declared) {
      if (!e.partial.contains(axis)) {
        refuse(p, "axis ", in_quotes(axis), ": its gradient is declared to be summed over ",
               described(declared), "; ", e.why, ": a double count");
      }
    }
  }

  std::string words_of(const Layout& layout) const {
    std::string out;
    for (const Axes& axes : layout.dims)
      out += text(out.empty() ? "(" : ", ", to_string(long_axes(axes)));
    return out + ")";
  }

  Axes features(Stream s) const { return long_axes(ctx_.activation(s).dims[2]); }

  /// Of tokens of a stream, where they are split and the row is not.
  Expected tokens(Stream s, const Param& p) const {
    AxisSet partial;
    const Layout activation = ctx_.activation(s);
    for (const size_t dim : {0, 1}) partial.merge(set_of(activation.dims[dim]));
    for (const std::string& axis : p.layout.all_axes()) partial.erase(axis);
    return {text("it meets tokens that are split over ", described(partial)), partial};
  }
  /// Of a product's weight: what the code leaves partial, and the sequence, which no scheme sees.
  Expected product(Role r) const {
    AxisSet partial = set_of(ctx_.on_mesh({{left_.of(r)}}).dims[0]);
    if (is_long("sequence")) partial.insert("sequence");
    return {text("the products of its scheme leave it partial over ", described(partial)), partial};
  }

  /// Experts, and they alone, are dealt out over their axis.
  bool is_stacked_right(const Param& p) const {
    if (!is_long("expert")) return true;
    for (size_t d = 0; d < p.layout.dims.size(); ++d) {
      const AxisSet axes = set_of(p.layout.dims[d]);
      const bool wants = p.layers.is_stacked && d == 0;
      if (wants ? axes != AxisSet{"expert"} : axes.contains("expert")) return false;
    }
    return true;
  }

  /// "blocks.0.mlp.up.bias" of "blocks.0.mlp.up.weight"; empty for rows of other names.
  static std::string bias_of(const Param& p) {
    const std::string weight = "weight";
    if (!p.name.ends_with(weight)) return "";
    return p.name.substr(0, p.name.size() - weight.size()) + "bias";
  }

  /// Square weights of either role may look alike; what is added to their product does not.
  std::optional<Role> role_by_bias(const Param& p) const {
    const std::string wanted = bias_of(p);
    const Axes outer = features(Stream::kOuter), inner = features(Stream::kInner);
    for (const Param* q : block_) {
      if (q->name != wanted || outer == inner) continue;
      const Axes lies = long_axes(q->layout.dims.back());
      if (lies == inner) return Role::kExpand;
      if (lies == outer) return Role::kContract;
    }
    return {};
  }

  /// Whether a whole row of `extent` columns may be of something else than the hidden width.
  bool may_be_other(int64_t extent) const {
    const ModelPlan& m = plan_.model;
    return extent != m.hidden || extent == m.classes || extent == m.experts;
  }

  /// Heads that several ranks share are stored once on each, which uses only its own.
  bool has_shared_heads(const Param& p) const {
    const ModelPlan& m = plan_.model;
    const int64_t ranks = ctx_.mesh.size(features(Stream::kInner));
    return m.kv_heads > 0 && m.kv_heads < ranks && p.layers.parts == 2 &&
           p.global.back() == 2 * m.kv_heads * (m.hidden / m.heads);
  }

  /// The ways a row of its extents and layout may be used, the likeliest first.
  std::vector<Expected> expected(const Param& p) const {
    const size_t n = p.layout.dims.size();
    const Axes last = long_axes(p.layout.dims[n - 1]);
    const Axes before = n > 1 ? long_axes(p.layout.dims[n - 2]) : Axes{};
    if (!is_stacked_right(p)) return {};
    std::vector<Expected> all;
    if (has_shared_heads(p)) {
      const Axes in = n == 1 ? Axes{} : long_axes(ctx_.weight(Role::kExpand).dims[0]);
      const bool is_gate_up = plan_.model.ffn_width() * 2 == p.global.back();  // so it may be, too
      const bool lies_so = last.empty() && (n == 1 || before == in);
      if (!lies_so && !is_gate_up) return {};
      Expected e = n == 1 ? tokens(Stream::kInner, p) : product(Role::kExpand);
      e.partial.merge(set_of(ctx_.activation(Stream::kInner).dims[2]));
      e.why = text("key-value heads that ranks share are partial over ", described(e.partial));
      if (lies_so) all.push_back(e);
      if (!is_gate_up) return all;
    }
    const bool is_vector = n == (p.layers.is_stacked ? 2 : 1);
    if (!is_vector) {
      for (const Role r : {Role::kExpand, Role::kContract}) {
        const Layout w = ctx_.weight(r);
        const bool is_wide = p.global[r == Role::kExpand ? n - 2 : n - 1] == plan_.model.hidden;
        if (is_wide && before == long_axes(w.dims[0]) && last == long_axes(w.dims[1]) &&
            role_by_bias(p).value_or(r) == r) {
          all.push_back(product(r));
        }
      }
      if (!all.empty()) return all;
      // What makes few columns of many: routers and classes.
      for (const Stream s : {Stream::kOuter, Stream::kInner}) {
        if (last.empty() && before == features(s)) all.push_back(tokens(s, p));
      }
      if (!all.empty() || !before.empty()) return all;
    }
    const bool is_whole = last.empty() && may_be_other(p.global.back());
    for (const Stream s : {Stream::kOuter, Stream::kInner}) {
      if (last == features(s) || is_whole) all.push_back(tokens(s, p));
      if (!all.empty() && last.empty() && !is_whole) break;
    }
    // What is whole may multiply a width that is split (a scale of a branch), or tokens alone.
    for (const Stream s : {Stream::kOuter, Stream::kInner}) {
      if (!is_whole || features(s).empty()) continue;
      Expected e = tokens(s, p);
      e.partial.merge(set_of(features(s)));
      all.push_back(e);
    }
    // Of logits, whose columns are the rows of a tied table.
    if (is_vector && last == long_axes(ctx_.weight(Role::kContract).dims[0])) {
      all.push_back(tokens(Stream::kInner, p));
    }
    return all;
  }

  const Plan& plan_;
  const Context& ctx_;
  const LeftSums& left_;
  const std::vector<Param*>& block_;  ///< the rows of the block
};

/// The sum of a loss's parts is over the axes that split the tokens of one stream.
void check_loss(const Model& model, const Context& context) {
  const AxisSet declared = long_set(model.loss_axes, context.mesh);
  std::vector<std::string> allowed;
  for (const Stream s : {Stream::kInner, Stream::kOuter}) {
    const Layout activation = context.activation(s);
    AxisSet tokens = long_set(activation.dims[0], context.mesh);
    tokens.merge(long_set(activation.dims[1], context.mesh));
    if (tokens == declared) return;
    allowed.push_back(described(tokens));
  }
  throw ConfigError(text("the loss of the model is declared to be partial over ",
                         described(declared), "; tokens of inner activations are split over ",
                         allowed[0], ", of outer ones over ", allowed[1]));
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

}  // namespace

void check_row_types(const Plan& plan, const Registries& registries, const Model& model,
                     const Context& context) {
  check_loss(model, context);
  std::map<std::string, LeftSums> left;
  const auto of = [&](const Arrangement& a, const std::string& layer) -> const LeftSums& {
    const std::string key = text(a.mode, " ", a.depth);
    const auto found = left.find(key);
    if (found != left.end()) return found->second;
    return left.emplace(key, checked_scheme(plan, registries, a, layer)).first->second;
  };
  for (const auto& block : model.blocks) {
    const std::string name = block->name();
    const std::string number = name.starts_with("blocks.") ? name.substr(7) : "";
    const bool is_layer = !number.empty() && number.size() < 10 &&
                          number.find_first_not_of("0123456789") == std::string::npos;
    const int64_t index = is_layer ? std::stoll(number) : 0;
    const Arrangement a = is_layer ? arrangement_of(plan, index) : base_arrangement(plan);
    const LeftSums& sums = of(a, is_layer ? name + "." : "blocks.0.");
    const std::vector<Param*> params = block->params();
    const RowCheck rows(plan, is_layer ? context.layer(index) : context, sums, params);
    for (const Param* p : params) rows.check(*p);
  }
}

}  // namespace kuafu
