// SPDX-License-Identifier: Apache-2.0
#include "kuafu/engine/stepping/flows.h"

#include <charconv>

#include <ATen/ATen.h>

#include "kuafu/base/trace.h"
#include "kuafu/meter/book.h"

namespace kuafu {

const Context* KeptFlows::context_of(const std::string& block) const {
  const std::string_view layer = "blocks.";
  if (block == "embedding" || block == "head") return &context_;
  if (!block.starts_with(layer)) return nullptr;
  int64_t index = 0;
  const char* end = block.data() + block.size();
  const auto read = std::from_chars(block.data() + layer.size(), end, index);
  return read.ptr == end ? &context_.layer(index) : nullptr;
}

void KeptFlows::add(const ModelBlock& block, Boundary boundary, const Flow& flow,
                    const Side& side) {
  const Context* context = context_of(block.name());
  if (context == nullptr || flow.size() != 1 || !flow[0].defined() || flow[0].dim() != 3) return;
  const BookScope unbooked(nullptr);  // a proof's
  const TraceScope untraced(nullptr);
  const Tensor t = flow[0].detach();
  const TokenGrid grid = side.grid(context->activation(Stream::kOuter));
  const auto& dims = grid.activation.dims;
  const int64_t first = side.first_sample + context->mesh.coord(dims[0]) * t.size(0);
  const int64_t column = context->mesh.coord(dims[2]) * t.size(2);
  for (const TokenRun& run : token_runs(context->mesh, grid)) {
    pieces_.push_back({.block = block.name(),
                       .boundary = boundary,
                       .place = {{first, run.position, column}, {t.size(0), run.length, t.size(2)}},
                       .data = t.narrow(1, run.place, run.length).clone()});
  }
}

}  // namespace kuafu
