// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kuafu/tensor/ops/formula.h"

// Updates as their papers have them, by ATen's calls, each in the file of its rule. The ops of the
// same names are these in one pass over memory. Internal to optim/.
namespace kuafu::formulas {

void adam(Tensor& w, const Tensor& grad, Tensor& m, Tensor& v, const ops::AdamWArgs& a);
void adamw(Tensor& w, const Tensor& grad, Tensor& m, Tensor& v, const ops::AdamWArgs& a);
void heavy_ball(Tensor& w, const Tensor& grad, Tensor& u, const ops::SgdArgs& a);
void nesterov(Tensor& w, const Tensor& grad, Tensor& u, const ops::SgdArgs& a);
Tensor lars_norms(const Tensor& w, const Tensor& grad, double grad_factor,
                  const ops::LayerRun& layers, double weight_decay);
void lars(Tensor& w, const Tensor& grad, Tensor& v, const Tensor& rates, const ops::SgdArgs& a,
          const ops::LayerRun& layers);
Tensor lamb_norms(const Tensor& w, const Tensor& grad, Tensor& m, Tensor& v, const ops::LambArgs& a,
                  const ops::LayerRun& layers);
void lamb(Tensor& w, const Tensor& m, const Tensor& v, const Tensor& rates, const ops::LambArgs& a,
          const ops::LayerRun& layers);
void layer_step(Tensor& w, const Tensor& r, const Tensor& rates, const ops::LayerRun& layers);

}  // namespace kuafu::formulas

namespace kuafu {

/// AdamW of a piece, for rules that leave some pieces to it.
void update_by_adamw(Tensor& w, const Tensor& grad, Tensor& m, Tensor& v, const ops::AdamWArgs& a);

}  // namespace kuafu
