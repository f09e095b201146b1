// SPDX-License-Identifier: Apache-2.0
#include "kuafu/model/relayout_block.h"

#include "kuafu/parallel/tensor/relayout.h"

namespace kuafu {
namespace {

class Relayout : public ModelBlock {
 public:
  Relayout(const Mesh& mesh, Layout from, Layout to, std::string name)
      : mesh_(mesh), from_(std::move(from)), to_(std::move(to)), name_(std::move(name)) {}

  Flow forward(const Flow& in, const Side&) override {
    Flow out;
    for (const Tensor& x : in) {
      if (shape_of(x) != planned_for_) {
        plan_ = plan_relayout(mesh_, shape_of(x), from_, to_);
        planned_for_ = shape_of(x);
      }
      out.push_back(relayout(mesh_, x, plan_));
    }
    return out;
  }
  std::string name() const override { return name_; }
  bool saves_nothing() const override { return true; }

 private:
  const Mesh& mesh_;
  const Layout from_, to_;
  const std::string name_;
  Shape planned_for_;
  RelayoutPlan plan_;  ///< of that shape: every step has the same
};

/// Without axes of one rank: they divide nothing.
Layout effective(const Context& ctx) {
  Layout layout = ctx.activation(Stream::kOuter);
  for (Axes& axes : layout.dims) {
    std::erase_if(axes, [&](const std::string& axis) { return ctx.mesh.size(axis) == 1; });
  }
  return layout;
}

}  // namespace

void append_relayout(Model& model, const Context& from, const Context& to) {
  const Layout there = effective(from), here = effective(to);
  if (there == here) return;
  model.blocks.push_back(
      std::make_unique<Relayout>(from.mesh, there, here, text("relayout.", model.blocks.size())));
}

}  // namespace kuafu
