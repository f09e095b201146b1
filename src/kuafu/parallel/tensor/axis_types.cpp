// SPDX-License-Identifier: Apache-2.0
#include "kuafu/parallel/tensor/axis_types.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <map>
#include <set>

#include "kuafu/base/suggest.h"
#include "kuafu/meter/book.h"
#include "kuafu/parallel/tensor/product_calls.h"
#include "kuafu/parallel/tensor/sum_counts.h"

// Letters: B samples, S sequence, K width in, M width out of the weight.
namespace kuafu {
namespace {

/// The axes of each dim of an operand, major first; axes of one rank left out.
struct Operand {
  std::string letters;  ///< "BSK"
  std::vector<Axes> dims;

  /// The letter an axis splits; '-' where it splits none.
  char at(const std::string& axis) const {
    for (size_t d = 0; d < dims.size(); ++d) {
      if (std::count(dims[d].begin(), dims[d].end(), axis) > 0) return letters[d];
    }
    return '-';
  }
  const Axes& of(char letter) const { return dims[letters.find(letter)]; }
  bool has(char letter) const { return letters.find(letter) != std::string::npos; }
  std::string describe() const { return to_string(Layout{dims}, letters); }
};

/// out = left right, summed over the letters that both have and out has not.
struct Product {
  const char* what;
  const char* left_name;
  const char* right_name;
  const char* out_name;
  Operand left, right, out;
  bool may_stay_partial;
  ProductCalls calls;
};

class AxisCheck {
 public:
  AxisCheck(const Product& product, Role role, const Axes& axes)
      : p_(product), role_(role), axes_(axes) {}

  /// Axes over which the result stays partial.
  Axes run() const {
    Axes left;
    for (const std::string& axis : axes_) {
      if (check(axis)) left.push_back(axis);
    }
    check_order();
    return left;
  }

 private:
  template <class... Words>
  [[noreturn]] void refuse(const std::string& axis, const Words&... words) const {
    throw WrongAxes(text(p_.what, ", axis ", in_quotes(axis), ": declared are ", p_.left_name, " ",
                         p_.left.describe(), ", ", p_.right_name, " ", p_.right.describe(), ", ",
                         p_.out_name, " ", p_.out.describe(), "; ", words...),
                    role_);
  }

  bool is_contracted(char letter) const { return letter != '-' && !p_.out.has(letter); }

  /// Whether the result is left partial over an axis.
  bool check(const std::string& axis) const {
    const ProductCalls& calls = p_.calls;
    if (calls.unknown.contains(axis)) return false;
    const auto after_moves = [&](const Operand& of, const std::set<std::string>& moved,
                                 const char* name) {
      const char letter = of.at(axis);
      if (!moved.contains(axis)) return letter;
      if (letter == '-') {
        refuse(axis, "the code moves ", name, " along it, of which every rank has all");
      }
      return '-';
    };
    const char left = after_moves(p_.left, calls.left.moved, p_.left_name);
    const char right = after_moves(p_.right, calls.right.moved, p_.right_name);
    if (left == '-' && right == '-') {
      refuse(axis, "it splits neither factor: its ranks would all do the same product");
    }
    const bool is_whole = left == '-' || right == '-';
    const bool is_partial =
        (left == right || is_whole) && is_contracted(left == '-' ? right : left);
    if (!is_partial && !is_whole) {
      refuse(axis, "parts of ", left, " and of ", right,
             " meet on a rank, and no collective brings the others");
    }
    return is_partial ? check_partial(axis) : check_split(axis, left == '-' ? right : left);
  }

  bool check_partial(const std::string& axis) const {
    const bool is_summed = p_.calls.out.summed.contains(axis);
    if (is_summed) return false;
    if (p_.may_stay_partial && p_.out.at(axis) == '-') return true;
    refuse(axis, p_.out_name,
           " is partial over it, and the code sums nothing along it: a missing sum");
  }

  bool check_split(const std::string& axis, char letter) const {
    const OperandCalls& out = p_.calls.out;
    if (out.summed.contains(axis) && !out.moved.contains(axis)) {
      refuse(axis, "ranks hold parts of ", letter, " of ", p_.out_name,
             ", and the code sums along it: a double count");
    }
    if (p_.out.at(axis) != letter && !out.moved.contains(axis)) {
      refuse(axis, p_.out_name, " comes out split along ", letter);
    }
    return false;
  }

  /// What is gathered or scattered along an axis lies beside each other only where the axis is the
  /// minor one; and axes that stay keep their order.
  void check_order() const {
    check_minor(p_.left, p_.calls.left, p_.left_name);
    check_minor(p_.right, p_.calls.right, p_.right_name);
    check_minor(p_.out, p_.calls.out, p_.out_name);
    check_same_order(p_.left, p_.calls.left, p_.right, p_.calls.right);
    check_same_order(p_.left, p_.calls.left, p_.out, p_.calls.out);
    check_same_order(p_.right, p_.calls.right, p_.out, p_.calls.out);
  }
  void check_minor(const Operand& of, const OperandCalls& calls, const char* name) const {
    for (const Axes& dim : of.dims) {
      for (size_t i = 0; i + 1 < dim.size(); ++i) {
        if (calls.in_runs.contains(dim[i]) && !calls.in_runs.contains(dim[i + 1])) {
          refuse(dim[i], "the code cuts or joins ", name,
                 " along it, whose parts lie apart: ", in_quotes(dim[i + 1]), " is the minor one");
        }
      }
    }
  }
  void check_same_order(const Operand& a, const OperandCalls& of_a, const Operand& b,
                        const OperandCalls& of_b) const {
    for (const char letter : a.letters) {
      if (!b.has(letter)) continue;
      const auto staying = [](const Axes& mine, const OperandCalls& calls, const Axes& others) {
        Axes stay;
        for (const std::string& axis : mine) {
          const bool is_there = std::count(others.begin(), others.end(), axis) > 0;
          if (is_there && !calls.moved.contains(axis)) stay.push_back(axis);
        }
        return stay;
      };
      const Axes mine = staying(a.of(letter), of_a, b.of(letter));
      const Axes others = staying(b.of(letter), of_b, a.of(letter));
      if (mine.size() == others.size() && mine != others) {
        refuse(mine[0], "the order of axes along ", letter, " is not the same: ", to_string(mine),
               " and ", to_string(others));
      }
    }
  }

  const Product& p_;
  Role role_;
  const Axes& axes_;
};

/// The layouts and global extents of the products of one role, and the shards on meta.
class RoleCheck {
 public:
  RoleCheck(const TensorScheme& scheme, const std::vector<Axis>& axes, Role role)
      : role_(role), world_(axes), scheme_(scheme.make(world_.mesh())), extents_(axes) {
    KUAFU_REQUIRE(scheme_ != nullptr, "tensor mode ", in_quotes(scheme.mode.name),
                  " makes no scheme");
    const bool is_expand = role == Role::kExpand;
    const Layout in = scheme_->activation(is_expand ? Stream::kOuter : Stream::kInner);
    const Layout out = scheme_->activation(is_expand ? Stream::kInner : Stream::kOuter);
    x_ = operand("BSK", in);
    y_ = operand("BSM", out);
    w_ = operand("KM", scheme_->weight(role));
    for (const Axis& axis : axes) {
      if (axis.size > 1) axes_.push_back(axis.name);
    }
  }

  Axes run() {
    const at::NoGradGuard no_grad;
    const BookScope unbooked(nullptr);
    const Tensor x = shard(x_), w = shard(w_), dy = shard(y_);
    const auto noted = [&](const char* what, const Operand& left, const Operand& right,
                           const Operand& out, const auto& run) {
      world_.clear();
      Tensor result;
      try {
        result = run();
      } catch (const std::exception& e) {
        const std::string why = e.what();
        refuse(text(what, " fails on shards of the layouts that are declared: ",
                    why.substr(0, why.find('\n'))));
      }
      if (shape_of(result) != local(out)) {
        refuse(text(what, " gives ", to_string(shape_of(result)), " where ", out.describe(), " is ",
                    to_string(local(out))));
      }
      return world_.calls(extents_, left.letters, right.letters, out.letters);
    };
    const char* of = role_ == Role::kExpand ? " of an expand" : " of a contract";
    const auto check = [&](const char* what, Product p, const auto& run) {
      const std::string name = text(what, of);
      p.what = name.c_str();
      p.calls = noted(p.what, p.left, p.right, p.out, run);
      sums_ = p.calls.out.summed;
      unknown_.insert(p.calls.unknown.begin(), p.calls.unknown.end());
      return AxisCheck(p, role_, axes_).run();
    };
    check("forward", {"", "x", "w", "y", x_, w_, y_, false, {}},
          [&] { return scheme_->forward(x, w, role_); });
    check("input_grad", {"", "dy", "w", "dx", y_, w_, x_, false, {}},
          [&] { return scheme_->input_grad(dy, w, role_); });
    const std::set<std::string> of_dx = sums_;
    const Axes left = check("weight_grad", {"", "x", "dy", "dw", x_, y_, w_, true, {}},
                            [&] { return scheme_->weight_grad(x, dy, role_); });
    const std::set<std::string> of_dw = sums_;
    check_backward(of, of_dx, of_dw, [&] { return scheme_->backward(x, w, dy, role_); });
    return left;
  }
  const std::set<std::string>& unknown() const { return unknown_; }

 private:
  [[noreturn]] void refuse(const std::string& what) const { throw WrongAxes(what, role_); }

  /// Both gradients in one go: summed over what each is summed over by itself. dx and x have the same
  /// extents, and so have dw and w.
  template <class Run>
  void check_backward(const char* of, const std::set<std::string>& of_dx,
                      const std::set<std::string>& of_dw, const Run& run) {
    world_.clear();
    run();
    const ProductCalls calls = world_.calls(extents_, "BSK", "KM", "BSM");
    const auto require = [&](const std::set<std::string>& wanted, const OperandCalls& found,
                             const char* what) {
      for (const std::string& axis : wanted) {
        if (found.summed.contains(axis) || calls.unknown.contains(axis)) continue;
        refuse(text("backward", of, ", axis ", in_quotes(axis), ": ", what,
                    " is summed over it by itself, and by backward() not: a missing sum"));
      }
    };
    require(of_dx, calls.left, "dx");
    require(of_dw, calls.right, "dw");
  }

  /// A declared layout without axes of one rank.
  Operand operand(const std::string& letters, const Layout& layout) const {
    if (layout.dims.size() != letters.size()) {
      refuse(text("a layout of ", layout.dims.size(), " dims is declared for ", letters.size()));
    }
    Operand out{letters, {}};
    std::set<std::string> seen;
    for (const Axes& axes : layout.dims) {
      Axes kept;
      for (const std::string& axis : axes) {
        if (!world_.has(axis)) {
          refuse(
              text("layout ", to_string(layout, letters), " names an axis ", in_quotes(axis),
                   " that the mode has not; nearest: ", in_quotes(nearest(axis, world_.names()))));
        }
        if (!seen.insert(axis).second) {
          refuse(text("layout ", to_string(layout, letters), " names axis ", in_quotes(axis),
                      " twice"));
        }
        if (world_.mesh().size(axis) > 1) kept.push_back(axis);
      }
      out.dims.push_back(kept);
    }
    return out;
  }
  Shape local(const Operand& of) const {
    Shape shape;
    for (size_t d = 0; d < of.dims.size(); ++d) {
      shape.push_back(extents_.of(of.letters[d]) / world_.mesh().size(of.dims[d]));
    }
    return shape;
  }
  Tensor shard(const Operand& of) const {
    return at::empty(local(of), at::TensorOptions(at::kFloat).device(at::kMeta));
  }

  Role role_;
  NotingWorld world_;
  std::unique_ptr<TensorParallel> scheme_;
  MarkedExtents extents_;
  Operand x_, y_, w_;
  Axes axes_;
  std::set<std::string> sums_;     ///< axes that the result of the last product was summed over
  std::set<std::string> unknown_;  ///< of all products
};

}  // namespace

LeftSums check_axis_types(const TensorScheme& scheme, const std::vector<Axis>& axes) {
  RoleCheck expand(scheme, axes, Role::kExpand), contract(scheme, axes, Role::kContract);
  LeftSums left{.expand = expand.run(), .contract = contract.run(), .unknown = {}};
  std::set<std::string> unknown = expand.unknown();
  unknown.insert(contract.unknown().begin(), contract.unknown().end());
  left.unknown.assign(unknown.begin(), unknown.end());
  check_sum_counts(scheme, axes, left);
  return left;
}

}  // namespace kuafu
