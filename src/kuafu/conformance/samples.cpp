// SPDX-License-Identifier: Apache-2.0
#include "kuafu/conformance/samples.h"

#include <ATen/ATen.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "kuafu/base/philox.h"
#include "kuafu/tensor/collectives.h"

namespace kuafu::conformance {

Param shard(const std::string& name, const Shape& global, const Layout& layout, const Mesh& mesh,
            const Axes& grad_axes, at::Device device) {
  const ParamFactory factory{.mesh = &mesh, .device = device, .dtype = DType::kF64, .seed = 11};
  return factory.make(name, global, layout, grad_axes, {.kind = Init::Kind::kNormal, .std = 1.0});
}

Tensor ids(int64_t batch, int64_t sequence, int64_t vocab, uint64_t site, at::Device device) {
  const auto options = at::TensorOptions(at::kLong);
  if (device.is_meta()) return at::empty({batch, sequence}, options.device(device));
  const Tensor t = at::empty({batch, sequence}, options);
  const CounterRandom random(5, site);
  int64_t* out = t.data_ptr<int64_t>();
  for (int64_t i = 0; i < t.numel(); ++i) {
    out[i] =
        static_cast<int64_t>(random.bits(static_cast<uint64_t>(i)) % static_cast<uint64_t>(vocab));
  }
  return t.to(device);
}

void sum_over(const Mesh& mesh, const Axes& axes, const Tensor& x) {
  for (const std::string& axis : axes) {
    if (mesh.size(axis) > 1) raw::all_reduce(x, mesh.comm(axis));
  }
}

double relative_error(const Tensor& a, const Tensor& b) {
  if (a.sizes() != b.sizes()) return std::numeric_limits<double>::infinity();
  if (a.numel() == 0) return 0;
  const double scale = b.abs().max().item<double>();
  const double far = (a - b).abs().max().item<double>();
  if (std::isnan(far)) return std::numeric_limits<double>::infinity();
  return far == 0 ? 0 : far / scale;
}

bool is_same(const Tensor& a, const Tensor& b) {
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) return false;
  const Tensor x = a.cpu().contiguous(), y = b.cpu().contiguous();
  return x.nbytes() == 0 || std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

double tolerance(int64_t length) { return 8 * kEps * static_cast<double>(length); }

}  // namespace kuafu::conformance
