// SPDX-License-Identifier: Apache-2.0
//
// Matrices dealt to the ranks that hold their parts.
//
// A matrix is one index of dim 0 where a parameter is stacked, else all of it. A rank's shard of it
// is a box of rows and columns (the parameter's layout), of which it may have a run of elements
// alone (ZeRO, servers). Pieces travel axis by axis, first along those that cut boxes, minor first,
// so that what has come together is one run; then along those of the layout, box by box.

#include "kuafu/optim/matrices.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "kuafu/base/errors.h"
#include "kuafu/optim/matrix_travel.h"
#include "kuafu/states/bucket.h"

namespace kuafu {
namespace {

/// The matrices of which a piece has something, or other ranks where it has nothing.
std::vector<Matrix> matrices_of(const ParamShard& shard, size_t piece, const Mesh& mesh) {
  const Param& p = *shard.param;
  Matrix m{.shard = &shard, .piece = piece};
  const size_t dim = m.first_dim();
  const Slice mine = my_slice(p.layout, p.padded, mesh, p.name);
  KUAFU_CHECK(mine.extent.size() == dim + 2 && (dim == 0 || p.padded[0] == p.global[0]), p.name,
              " ", to_string(p.global), ", padded to ", to_string(p.padded), ", holds no matrices");
  m.box = mine.extent[dim] * mine.extent[dim + 1];
  for (size_t a = shard.split_axes.size(); a-- > 0;) {
    if (mesh.size(shard.split_axes[a]) > 1) m.axes.push_back(shard.split_axes[a]);
  }
  m.num_cuts = m.axes.size();
  KUAFU_CHECK(m.num_cuts == 0 || std::ssize(shard.bounds) == mesh.size(shard.split_axes) + 1,
              p.name, ": ", shard.bounds.size(), " bounds of pieces along ",
              to_string(shard.split_axes));
  for (size_t a = mesh.axes().size(); a-- > 0;) {
    const Axis& axis = mesh.axes()[a];
    const Layout& l = p.layout;
    const bool is_split = contains(l.dims[dim], axis.name) || contains(l.dims[dim + 1], axis.name);
    if (axis.size > 1 && is_split) m.axes.push_back(axis.name);
  }
  std::vector<Matrix> all(static_cast<size_t>(dim == 0 ? 1 : mine.extent[0]), m);
  for (size_t e = 0; e < all.size(); ++e) all[e].index = static_cast<int64_t>(e);
  return all;
}

/// Coordinates along axes, of which the first varies fastest.
std::map<std::string, int64_t> coords_at(int64_t index, const Axes& axes, const Mesh& mesh) {
  std::map<std::string, int64_t> coords;
  for (const std::string& axis : axes) {
    coords[axis] = index % mesh.size(axis);
    index /= mesh.size(axis);
  }
  return coords;
}

/// The work that ranks have been given, by their coordinates along axes: ranks that differ in others
/// have the same.
struct WorkOfRanks {
  Axes axes;
  std::vector<int64_t> by_rank;

  /// The mean over all ranks of some coordinates: whatever else a rank's are, it deals alike.
  int64_t mean(const std::map<std::string, int64_t>& coords, const Mesh& mesh) const {
    int64_t sum = 0, count = 0;
    for (size_t r = 0; r < by_rank.size(); ++r) {
      bool is_there = true;
      for (const auto& [axis, coord] : coords_at(static_cast<int64_t>(r), axes, mesh)) {
        const auto wanted = coords.find(axis);
        is_there = is_there && (wanted == coords.end() || wanted->second == coord);
      }
      sum += is_there ? by_rank[r] : 0;
      count += is_there ? 1 : 0;
    }
    return sum / count;
  }
};

/// Gives each matrix, the costliest first, to the rank with the least work so far, and notes that.
/// The same on all ranks that hold parts of them.
void deal(std::vector<Matrix>& matrices, const Mesh& mesh, std::vector<WorkOfRanks>& given) {
  const Axes& axes = matrices[0].axes;
  std::vector<size_t> order(matrices.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t i, size_t j) { return matrices[i].cost() > matrices[j].cost(); });
  const int64_t ranks = mesh.size(axes);
  std::vector<int64_t> load;
  for (int64_t r = 0; r < ranks; ++r) {
    const auto coords = coords_at(r, axes, mesh);
    load.push_back(0);
    for (const WorkOfRanks& before : given) load.back() += before.mean(coords, mesh);
  }
  WorkOfRanks mine{axes, std::vector<int64_t>(static_cast<size_t>(ranks), 0)};
  for (const size_t i : order) {
    const auto least = std::min_element(load.begin(), load.end()) - load.begin();
    load[static_cast<size_t>(least)] += matrices[i].cost();
    mine.by_rank[static_cast<size_t>(least)] += matrices[i].cost();
    const auto coords = coords_at(least, axes, mesh);
    for (const std::string& axis : axes) matrices[i].owner.push_back(coords.at(axis));
  }
  given.push_back(std::move(mine));
}

/// Calls visit(box of `boxes`, its place in `matrix`), both without padding.
template <class Visit>
void each_box(const Matrix& m, const Tensor& boxes, const Tensor& matrix, const Mesh& mesh,
              const Visit& visit) {
  const Param& p = m.param();
  const size_t dim = m.first_dim();
  const Axes across(m.axes.begin() + static_cast<std::ptrdiff_t>(m.num_cuts), m.axes.end());
  for (int64_t i = 0; i * m.box < boxes.numel(); ++i) {
    const auto coords = coords_at(i, across, mesh);
    const Slice s = my_slice(p.layout, p.padded, moved(mesh, coords), p.name);
    const auto inside = [&](size_t d) {
      return std::clamp<int64_t>(p.global[d] - s.offset[d], 0, s.extent[d]);
    };
    const int64_t rows = inside(dim), columns = inside(dim + 1);
    if (rows == 0 || columns == 0) continue;
    visit(boxes.narrow(0, i * m.box, m.box)
              .view({s.extent[dim], s.extent[dim + 1]})
              .narrow(0, 0, rows)
              .narrow(1, 0, columns),
          matrix.narrow(0, s.offset[dim], rows).narrow(1, s.offset[dim + 1], columns));
  }
}

/// The step of a matrix of which all boxes are here, end to end, in the same order.
Tensor step_of(const Matrix& m, const Tensor& boxes, const Mesh& mesh, const StepOfWhole& whole) {
  const Shape shape = {m.rows(), m.columns()};
  const LayerSplit& layers = m.param().layers;
  if (m.num_cuts == m.axes.size() && !m.is_padded()) {
    return whole(boxes.view(shape), layers).reshape({-1});
  }
  const Tensor u = at::empty(shape, boxes.options());
  each_box(m, boxes, u, mesh, [](const Tensor& box, const Tensor& place) { place.copy_(box); });
  const Tensor x = whole(u, layers);
  const Tensor steps = at::zeros_like(boxes);
  each_box(m, steps, x, mesh, [](const Tensor& box, const Tensor& place) { box.copy_(place); });
  return steps;
}

/// Matrices that the same axes split: what I have of their directions -> of their steps.
std::vector<Tensor> exchanged_steps(const std::vector<Matrix>& matrices, std::vector<Tensor> have,
                                    const Mesh& mesh, const StepOfWhole& whole) {
  const at::TensorOptions options = have[0].options();
  std::vector<const Matrix*> here;
  for (const Matrix& m : matrices) here.push_back(&m);
  std::vector<Travel> way;
  for (size_t done = 0; done < matrices[0].axes.size() && !here.empty(); ++done) {
    way.emplace_back(here, done, mesh);
    have = way.back().there(have);
    here = way.back().to();
  }
  for (size_t i = 0; i < here.size(); ++i) have[i] = step_of(*here[i], have[i], mesh, whole);
  for (size_t i = way.size(); i-- > 0;) have = way[i].back(have, options);
  return have;
}

}  // namespace

std::vector<Tensor> steps_of_matrices(const std::vector<DirectionPiece>& pieces, const Mesh& mesh,
                                      const StepOfWhole& whole) {
  struct Group {
    std::vector<Matrix> matrices;
    std::vector<Tensor> have;
  };
  std::map<Axes, Group> groups;  // in the same order on every rank
  for (size_t i = 0; i < pieces.size(); ++i) {
    const ParamShard& shard = *pieces[i].shard;
    const Tensor flat = pieces[i].direction.reshape({-1});
    for (Matrix& m : matrices_of(shard, i, mesh)) {
      const ElementRun mine = held(m, 0, mesh);
      const int64_t begin = m.index * m.box + mine.begin - shard.first_element;
      Group& group = groups[m.axes];
      group.have.push_back(mine.size() == 0 ? flat.narrow(0, 0, 0)
                                            : flat.narrow(0, begin, mine.size()));
      group.matrices.push_back(std::move(m));
    }
  }
  std::vector<std::vector<Tensor>> found(pieces.size());
  std::vector<WorkOfRanks> given;
  for (auto& [axes, group] : groups) {
    deal(group.matrices, mesh, given);
    const std::vector<Tensor> steps =
        exchanged_steps(group.matrices, std::move(group.have), mesh, whole);
    for (size_t i = 0; i < steps.size(); ++i) found[group.matrices[i].piece].push_back(steps[i]);
  }
  std::vector<Tensor> all;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const Tensor flat = found[i].size() == 1 ? found[i][0] : at::cat(found[i]);
    all.push_back(flat.view(pieces[i].direction.sizes()));
  }
  return all;
}

}  // namespace kuafu
