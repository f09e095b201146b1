// SPDX-License-Identifier: Apache-2.0
#include "kuafu/optim/matrix_travel.h"

#include <ATen/ATen.h>

#include <numeric>

#include "kuafu/meter/allocator.h"

namespace kuafu {

Mesh moved(const Mesh& mesh, const std::map<std::string, int64_t>& coords) {
  int64_t rank = 0;
  for (const Axis& a : mesh.axes()) {
    const auto other = coords.find(a.name);
    rank = rank * a.size + (other == coords.end() ? mesh.coord(a.name) : other->second);
  }
  return {mesh.axes(), static_cast<int>(rank)};
}

ElementRun held(const Matrix& m, size_t done, const Mesh& mesh) {
  if (m.num_cuts == 0) return {0, m.box};
  int64_t first = 0, count = 1, stride = 1;
  for (size_t a = 0; a < m.num_cuts; ++a) {
    const int64_t size = mesh.size(m.axes[a]);
    if (a < done) {
      count *= size;
    } else {
      first += stride * mesh.coord(m.axes[a]);
    }
    stride *= size;
  }
  const auto in_box = [&](int64_t part) {
    const int64_t element = m.shard->bounds[static_cast<size_t>(part)] - m.index * m.box;
    return std::clamp<int64_t>(element, 0, m.box);
  };
  return {in_box(first), in_box(first + count)};
}

int64_t num_held(const Matrix& m, size_t done, const Mesh& mesh) {
  int64_t boxes = 1;
  for (size_t a = m.num_cuts; a < done; ++a) boxes *= mesh.size(m.axes[a]);
  return boxes * held(m, done, mesh).size();
}

Travel::Travel(std::vector<const Matrix*> from, size_t done, const Mesh& mesh)
    : from_(std::move(from)), done_(done), comm_(mesh.comm(axis())) {
  for (const Matrix* m : from_) {
    if (m->owner[done_] == comm_.rank()) to_.push_back(m);
  }
  for (int64_t c = 0; c < comm_.size(); ++c) {
    const auto rank = static_cast<size_t>(c);
    for (size_t i = 0; i < from_.size(); ++i) {
      if (from_[i]->owner[done_] == c)
        outward_.push_back({rank, i, num_held(*from_[i], done_, mesh)});
    }
    const Mesh there = moved(mesh, {{axis(), c}});
    for (size_t i = 0; i < to_.size(); ++i) {
      inward_.push_back({rank, i, num_held(*to_[i], done_, there)});
    }
  }
}

Tensor Travel::exchanged(const std::vector<Tensor>& sent, at::TensorOptions options,
                         const std::vector<Leg>& send, const std::vector<Leg>& recv) const {
  const CategoryScope scope(Category::kCommunication);
  const auto by_rank = [&](const std::vector<Leg>& legs) {
    std::vector<int64_t> sizes(static_cast<size_t>(comm_.size()), 0);
    for (const Leg& leg : legs) sizes[leg.rank] += leg.size;
    return sizes;
  };
  const Splits splits{by_rank(send), by_rank(recv)};
  const Tensor in = sent.empty() ? at::empty({0}, options) : at::cat(sent);
  const Tensor out =
      at::empty({std::accumulate(splits.recv.begin(), splits.recv.end(), int64_t{0})}, options);
  comm_.all_to_all(view(out), view(in), splits).wait();
  return out;
}

std::vector<Tensor> Travel::there(const std::vector<Tensor>& have) const {
  std::vector<Tensor> sent;
  for (const Leg& leg : outward_) sent.push_back(have[leg.matrix]);
  const Tensor got = exchanged(sent, have[0].options(), outward_, inward_);
  std::vector<std::vector<Tensor>> pieces(to_.size());
  int64_t at = 0;
  for (const Leg& leg : inward_) {
    pieces[leg.matrix].push_back(got.narrow(0, at, leg.size));
    at += leg.size;
  }
  const CategoryScope scope(Category::kCommunication);
  std::vector<Tensor> joined;
  for (const std::vector<Tensor>& of_one : pieces) joined.push_back(at::cat(of_one));
  return joined;
}

std::vector<Tensor> Travel::back(const std::vector<Tensor>& steps,
                                 at::TensorOptions options) const {
  std::vector<Tensor> sent;
  std::vector<int64_t> begin(to_.size(), 0);
  for (const Leg& leg : inward_) {
    sent.push_back(steps[leg.matrix].narrow(0, begin[leg.matrix], leg.size));
    begin[leg.matrix] += leg.size;
  }
  const Tensor got = exchanged(sent, options, inward_, outward_);
  std::vector<Tensor> mine(from_.size());
  int64_t at = 0;
  for (const Leg& leg : outward_) {
    mine[leg.matrix] = got.narrow(0, at, leg.size);
    at += leg.size;
  }
  return mine;
}

}  // namespace kuafu
