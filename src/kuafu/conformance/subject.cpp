// SPDX-License-Identifier: Apache-2.0
#include "kuafu/conformance/subject.h"

#include "kuafu/comm/worlds.h"

namespace kuafu::conformance {

int64_t multiple(int64_t unit, int64_t least) { return (least + unit - 1) / unit * unit; }

Subject::Subject(const Registries& registries, SchemeCase where)
    : registries_(registries),
      where_(std::move(where)),
      scheme_(registries.tensor.find(where_.mode)),
      axes_(scheme_.mode.axes(where_.size, where_.depth)) {}

std::string Subject::mesh() const {
  std::string out;
  for (const Axis& axis : axes_) out += text(out.empty() ? "" : " x ", axis.name, axis.size);
  return out.empty() ? "one rank" : out;
}

void Subject::on_threads(const std::function<void(Communicator& world)>& body) const {
  run_on_threads(ranks(), body, {.timeout = std::chrono::seconds(60)});
}

void Subject::on_ranks(const std::function<void(const TensorParallel&, MeshRank&)>& f) const {
  on_threads([&](Communicator& world) {
    MeshRank me(axes_, world);
    f(*make(me.mesh), me);
  });
}

Stream input_of(Role r) { return r == Role::kExpand ? Stream::kOuter : Stream::kInner; }
Stream output_of(Role r) { return r == Role::kExpand ? Stream::kInner : Stream::kOuter; }

Layout last_dim(const TensorParallel& tp, Stream s) { return {{tp.activation(s).dims[2]}}; }

}  // namespace kuafu::conformance
