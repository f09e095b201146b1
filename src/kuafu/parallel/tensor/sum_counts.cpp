// SPDX-License-Identifier: Apache-2.0
#include "kuafu/parallel/tensor/sum_counts.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>
#include <functional>
#include <memory>
#include <optional>

#include "kuafu/base/suggest.h"
#include "kuafu/meter/book.h"
#include "kuafu/parallel/tensor/product_calls.h"

// Letters: B samples, S sequence, K width in, M width out of the weight.
namespace kuafu {
namespace {

constexpr int64_t kMostRanks = 32;

int64_t num_ranks(const std::vector<Axis>& axes) {
  int64_t ranks = 1;
  for (const Axis& axis : axes) ranks *= axis.size;
  return ranks;
}

/// At most 4 ranks an axis; axes that are alike stay so, even ones stay even.
std::vector<Axis> shorter(std::vector<Axis> axes) {
  for (Axis& axis : axes) {
    if (axis.size > 4) axis.size = axis.size % 2 == 0 ? 4 : 3;
  }
  return axes;
}

/// Least and largest element.
struct Range {
  double least = 0, largest = 0;
  /// Numbers of terms are whole: what lies beside one is another error, of which certificates tell.
  bool is(double terms) const {
    if (!is_whole(least) || !is_whole(largest)) return true;
    return std::round(least) == terms && std::round(largest) == terms;
  }
  static bool is_whole(double x) { return std::abs(x - std::round(x)) < 1e-6; }
  const char* words(double terms) const {
    if (largest <= terms) return ": a missing sum";
    return is_whole(largest / terms) ? ": a sum made twice" : ": more than its terms";
  }
};

/// The products of one role on ones.
class Ones {
 public:
  Ones(const TensorScheme& scheme, const std::vector<Axis>& axes, Role role)
      : role_(role),
        world_(axes, Place::kHost),
        scheme_(scheme.make(world_.mesh())),
        extent_(2 * num_ranks(axes)) {
    const bool is_expand = role == Role::kExpand;
    in_ = scheme_->activation(is_expand ? Stream::kOuter : Stream::kInner);
    out_ = scheme_->activation(is_expand ? Stream::kInner : Stream::kOuter);
  }

  /// `is_known`: whether dw is partial over `left` and nothing else.
  void check(const Axes& left, bool is_known) {
    const at::NoGradGuard no_grad;
    const BookScope unbooked(nullptr);
    const auto x = [&] { return ones(in_); };
    const auto dy = [&] { return ones(out_); };
    const auto w = [&] { return ones(scheme_->weight(role_)); };
    const auto width = static_cast<double>(extent_);
    const double tokens = width * width / static_cast<double>(world_.mesh().size(left));
    count("forward", "y", width, [&] { return scheme_->forward(x(), w(), role_); });
    count("input_grad", "dx", width, [&] { return scheme_->input_grad(dy(), w(), role_); });
    const auto both = [&] { return scheme_->backward(x(), w(), dy(), role_); };
    count("backward", "dx", width, [&] { return both().dx; });
    if (!is_known) return;
    count("weight_grad", "dw", tokens, [&] { return scheme_->weight_grad(x(), dy(), role_); });
    count("backward", "dw", tokens, [&] { return both().dw; });
  }

 private:
  Tensor ones(const Layout& layout) const {
    Shape shape;
    for (const Axes& axes : layout.dims) shape.push_back(extent_ / world_.mesh().size(axes));
    return at::ones(shape, at::TensorOptions(at::kDouble));
  }

  Range range_of(const std::string& product, const std::function<Tensor()>& run) {
    world_.clear();
    Tensor t;
    try {
      t = run();
    } catch (const std::exception& e) {
      const std::string why = e.what();
      throw WrongAxes(
          text(product, ", of doubles, by which its sums are counted before a run of any type: ",
               why.substr(0, why.find('\n')), "; allowed: a scheme that computes in f64 too"),
          role_);
    }
    if (!t.defined() || t.scalar_type() != at::kDouble || !t.is_cpu()) {
      throw WrongAxes(text(product, ": of doubles the code gives ",
                           t.defined() ? text(t.device(), " ", t.scalar_type()) : "no tensor",
                           "; allowed: a tensor of the type and on the device of what it takes"),
                      role_);
    }
    return {t.min().item<double>(), t.max().item<double>()};
  }

  void count(const char* what, const char* name, double terms, const std::function<Tensor()>& run) {
    const std::string product =
        text(what, role_ == Role::kExpand ? " of an expand" : " of a contract");
    const Range found = range_of(product, run);
    if (world_.is_untold() || found.is(terms)) return;
    for (const std::string& axis : world_.names()) {
      world_.mark(axis);
      const double more = range_of(product, run).largest / found.largest;
      world_.mark("");
      if (!(more >= 4) || !std::isfinite(more)) continue;
      const auto times = static_cast<int64_t>(std::lround(std::log2(more)));
      throw WrongAxes(text(product, ", axis ", in_quotes(axis), ": the code sums ", name, " ",
                           times, " times along it: a sum made twice"),
                      role_);
    }
    throw WrongAxes(text(product, ": each element of ", name, " is the sum of ", terms,
                         " terms; of ones the code makes it ", found.least, " to ", found.largest,
                         found.words(terms)),
                    role_);
  }

  Role role_;
  NotingWorld world_;
  std::unique_ptr<TensorParallel> scheme_;
  int64_t extent_;  ///< of B, S, K and M: all ranks divide it
  Layout in_, out_;
};

}  // namespace

void check_sum_counts(const TensorScheme& scheme, const std::vector<Axis>& axes,
                      const LeftSums& left) {
  if (num_ranks(axes) == 1) return;
  const bool is_large = num_ranks(axes) > kMostRanks;
  for (const Role role : {Role::kExpand, Role::kContract}) {
    std::optional<Ones> ones;
    try {
      ones.emplace(scheme, is_large ? shorter(axes) : axes, role);
    } catch (const ConfigError&) {
      if (!is_large) throw;
      return;  // no such mesh
    }
    ones->check(left.of(role), left.unknown.empty());
  }
}

}  // namespace kuafu
