// SPDX-License-Identifier: Apache-2.0
#include "kuafu/tensor/param.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <system_error>
#include <thread>
#include <vector>

#include "kuafu/base/errors.h"
#include "kuafu/base/philox.h"
#include "kuafu/kernels/kernels.h"
#include "kuafu/meter/allocator.h"
#include "kuafu/tensor/collectives.h"

namespace kuafu {
namespace {

/// `global` with every sharded dim rounded up to its ranks.
Shape pad(const Shape& global, const Layout& layout, const Mesh& mesh) {
  Shape shape = global;
  for (size_t d = 0; d < shape.size(); ++d) shape[d] = padded(shape[d], layout.dims[d], mesh);
  return shape;
}

/// The part of my slice of the padded tensor that lies inside the global one.
Slice inside(const Slice& mine, const Shape& global) {
  Slice s = mine;
  for (size_t d = 0; d < global.size(); ++d) {
    s.extent[d] = std::clamp<int64_t>(global[d] - mine.offset[d], 0, mine.extent[d]);
  }
  return s;
}

bool is_empty(const Slice& s) {
  return std::find(s.extent.begin(), s.extent.end(), 0) != s.extent.end();
}

/// `t` cut to the first extents of every dim.
Tensor corner(Tensor t, const Shape& extent) {
  for (size_t d = 0; d < extent.size(); ++d) {
    t = t.narrow(static_cast<int64_t>(d), 0, extent[d]);
  }
  return t;
}

/// Row-major index of a global element.
uint64_t linear_index(const Shape& at, const Shape& global) {
  uint64_t index = 0;
  for (size_t d = 0; d < global.size(); ++d) {
    index = index * static_cast<uint64_t>(global[d]) + static_cast<uint64_t>(at[d]);
  }
  return index;
}

/// Where element (at - offset) of my padded shard lies in it.
int64_t shard_index(const Shape& at, const Slice& mine) {
  int64_t index = 0;
  for (size_t d = 0; d < at.size(); ++d) index = index * mine.extent[d] + at[d] - mine.offset[d];
  return index;
}

/// Which virtual global tensor a shard is cut from.
struct Source {
  uint64_t seed, site;
  double std;
};

/// std * normal of `count` elements from a global index on.
void write_normals(Source source, uint64_t first, int64_t count, float* out) {
  kernels::scaled_normals(source.seed, source.site, first, count, source.std, out);
}
void write_normals(Source source, uint64_t first, int64_t count, double* out) {
  kernels::normals(source.seed, source.site, first, count, out);
  for (int64_t i = 0; i < count; ++i) out[i] *= source.std;
}

/// Writes std * normal(global index) to every element of `box`, a run along the last dim at a time.
template <class T>
void fill_normal(T* out, const Slice& mine, const Slice& box, const Shape& global, Source source) {
  Shape at = box.offset;
  const size_t last = at.size() - 1;
  while (true) {
    write_normals(source, linear_index(at, global), box.extent[last], out + shard_index(at, mine));
    size_t d = last;  // next row: count up over the outer dims
    while (d-- > 0) {
      if (++at[d] < box.offset[d] + box.extent[d]) break;
      at[d] = box.offset[d];
    }
    if (d == static_cast<size_t>(-1)) return;
  }
}

/// The same, a large box by several threads, each with rows of its own: the numbers of a model with
/// billions of parameters take one core a minute.
template <class T>
void fill_normals(T* out, const Slice& mine, const Slice& box, const Shape& global, Source source) {
  constexpr int64_t kEach = int64_t{1} << 20;  // elements that are worth a thread
  const int64_t elements =
      std::accumulate(box.extent.begin(), box.extent.end(), int64_t{1}, std::multiplies<>());
  const int64_t cores = std::max<int64_t>(1, std::thread::hardware_concurrency());
  const int64_t parts = std::clamp<int64_t>(elements / kEach, 1, std::min(cores, box.extent[0]));
  std::vector<std::jthread> others;
  for (int64_t p = 0; p < parts; ++p) {
    Slice part = box;
    const int64_t first = box.extent[0] * p / parts;
    part.offset[0] += first;
    part.extent[0] = box.extent[0] * (p + 1) / parts - first;
    if (p + 1 == parts) {
      fill_normal(out, mine, part, global, source);
    } else {
      try {
        others.emplace_back([=, &mine, &global] { fill_normal(out, mine, part, global, source); });
      } catch (const std::system_error&) {  // no thread to be had
        fill_normal(out, mine, part, global, source);
      }
    }
  }
}

/// The shard on the CPU, or without data on meta. Every allocation has the caller's category.
Tensor make_value(const Slice& mine, const Shape& global, const Init& init, Source source,
                  at::TensorOptions options) {
  const at::ScalarType type = c10::typeMetaToScalarType(options.dtype());
  const Slice box = inside(mine, global);
  if (options.device().is_meta()) return at::empty(mine.extent, options);
  const Tensor value = at::zeros(mine.extent, options.device(at::kCPU));
  if (is_empty(box)) return value;
  if (init.kind == Init::Kind::kOnes) {
    corner(value, box.extent).fill_(1);
  } else if (init.kind == Init::Kind::kNormal && type == at::kDouble) {
    fill_normals(value.mutable_data_ptr<double>(), mine, box, global, source);
  } else if (init.kind == Init::Kind::kNormal && type == at::kFloat) {
    fill_normals(value.mutable_data_ptr<float>(), mine, box, global, source);
  } else if (init.kind == Init::Kind::kNormal) {
    const CategoryScope scratch(Category::kScratch);
    // LibTorch rounds f64 to half precision by way of f32, which is several times as fast to make.
    const Tensor wide = at::zeros(mine.extent, at::TensorOptions(at::kFloat));
    fill_normals(wide.mutable_data_ptr<float>(), mine, box, global, source);
    value.copy_(wide);
  }
  return value;
}

}  // namespace

std::string_view to_string(RowUse use) {
  switch (use) {
    case RowUse::kUnstated:
      return "unstated";
    case RowUse::kExpand:
      return "weights of an expand";
    case RowUse::kContract:
      return "weights of a contract";
    case RowUse::kTable:
      return "tables of tokens";
    case RowUse::kOuterWidth:
      return "rows along the outer width";
    case RowUse::kInnerWidth:
      return "rows along the inner width";
    case RowUse::kFromOuter:
      return "weights that make whole columns of the outer width";
    case RowUse::kFromInner:
      return "weights that make whole columns of the inner width";
    case RowUse::kOuterTokens:
    case RowUse::kInnerTokens:
      return "rows of whole columns";
    case RowUse::kOuterGain:
    case RowUse::kInnerGain:
      return "factors of a stream";
    case RowUse::kLogits:
      return "rows added to logits";
    case RowUse::kSharedHeads:
      return "weights of key-value heads that ranks share";
    case RowUse::kSharedHeadsBias:
      return "biases of key-value heads that ranks share";
    case RowUse::kOwn:
      return "rows of a use of their own";
  }
  return "";
}

Param ParamFactory::make(std::string name, Shape global, Layout layout, Axes grad_axes,
                         Init init) const {
  KUAFU_CHECK(mesh != nullptr, "a parameter needs a mesh");
  KUAFU_CHECK(!global.empty() && global.size() == layout.dims.size(), name, ": layout of ",
              layout.dims.size(), " dims for shape ", to_string(global));
  Param p;
  p.padded = pad(global, layout, *mesh);
  p.name = std::move(name);
  p.global = std::move(global);
  p.layout = std::move(layout);
  p.grad_axes = std::move(grad_axes);
  p.init = init;
  materialise(p);
  return p;
}

void ParamFactory::materialise(Param& p) const {
  if (is_deferred) {
    const Slice mine = my_slice(p.layout, p.padded, *mesh, p.name);
    p.value = at::empty({0}, at::TensorOptions(scalar_type(dtype)).device(device));
    p.value.unsafeGetTensorImpl()->set_sizes_contiguous(mine.extent);
  } else {
    const CategoryScope scope(Category::kParameter);
    p.value = initial_value(p);
  }
  p.value.requires_grad_(true);
}

Tensor ParamFactory::initial_value(const Param& p) const {
  const Slice mine = my_slice(p.layout, p.padded, *mesh, p.name);
  const at::TensorOptions options = at::TensorOptions(scalar_type(dtype)).device(device);
  const Source source{seed, hash_name(p.name), p.init.std};
  if (device.is_cpu() || device.is_meta())
    return make_value(mine, p.global, p.init, source, options);
  const Tensor on_host = [&] {  // none of a card's memory
    const BookScope unbooked(nullptr);
    return make_value(mine, p.global, p.init, source, options);
  }();
  return on_host.to(device);
}

int64_t num_layers(const Param& p) {
  return p.layers.parts * (p.layers.is_stacked ? p.global[0] : 1);
}

bool holds_vectors(const Param& p) {
  return p.global.size() == (p.layers.is_stacked ? size_t{2} : size_t{1});
}

Tensor gather_param(const Param& p, const Tensor& shard, const Mesh& mesh) {
  const at::NoGradGuard no_grad;
  Tensor whole = shard.detach();
  for (size_t d = 0; d < p.layout.dims.size(); ++d) {
    const Axes& axes = p.layout.dims[d];
    for (size_t a = axes.size(); a-- > 0;) {  // minor axes first: they are neighbours
      whole = raw::all_gather(whole, mesh.comm(axes[a]), static_cast<int64_t>(d));
    }
  }
  return corner(whole, p.global).contiguous();
}

Tensor scatter_param(const Param& p, const Tensor& whole, const Mesh& mesh) {
  const at::NoGradGuard no_grad;
  KUAFU_REQUIRE(shape_of(whole) == p.global, p.name, " has shape ", to_string(p.global),
                ", the tensor given has ", to_string(shape_of(whole)));
  const Slice mine = my_slice(p.layout, p.padded, mesh, p.name);
  const Tensor shard = at::zeros(mine.extent, whole.options());
  const Slice box = inside(mine, p.global);
  if (is_empty(box)) return shard;
  Tensor from = whole.detach();
  for (size_t d = 0; d < box.extent.size(); ++d) {
    from = from.narrow(static_cast<int64_t>(d), box.offset[d], box.extent[d]);
  }
  corner(shard, box.extent).copy_(from);
  return shard;
}

std::vector<Param*> Module::params() {
  std::vector<Param*> all;
  for (const std::unique_ptr<Param>& p : own_) all.push_back(p.get());
  for (Module* child : children_) {
    const std::vector<Param*> more = child->params();
    all.insert(all.end(), more.begin(), more.end());
  }
  return all;
}

void Module::materialise(const ParamFactory& factory) {
  for (const std::unique_ptr<Param>& p : own_) factory.materialise(*p);
  for (const std::unique_ptr<Zeros>& z : zeros_) {
    const CategoryScope scope(Category::kParameter);
    z->value = at::zeros_like(z->like->value.detach());
  }
  for (Module* child : children_) child->materialise(factory);
}

Tensor& Module::add_zeros(const Param& like) {
  const CategoryScope scope(Category::kParameter);
  zeros_.push_back(std::make_unique<Zeros>(Zeros{&like, at::zeros_like(like.value.detach())}));
  return zeros_.back()->value;
}

Param& Module::add(Param p) {
  own_.push_back(std::make_unique<Param>(std::move(p)));
  return *own_.back();
}

}  // namespace kuafu
