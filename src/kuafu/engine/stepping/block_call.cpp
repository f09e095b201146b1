// SPDX-License-Identifier: Apache-2.0
#include "kuafu/engine/stepping/block_call.h"

#include <algorithm>
#include <string>

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include "kuafu/base/errors.h"

namespace kuafu {
namespace {

std::string name_of(const Model& model, size_t index) {
  return text("block '", model.blocks[index]->name(), "' (", index + 1, " of ", model.blocks.size(),
              ")");
}

void check(const Model& model, size_t index, const Flow& out) {
  const bool is_last = index + 1 == model.blocks.size();
  const auto is_there = [](const Tensor& t) { return t.defined(); };
  if (out.empty() || !std::all_of(out.begin(), out.end(), is_there)) {
    throw Error(text(name_of(model, index), " hands on ",
                     out.empty() ? "nothing" : "an undefined tensor", "; forward() returns ",
                     is_last ? "the loss" : "what the next block takes"));
  }
  if (is_last && (out.size() != 1 || out[0].numel() != 1)) {
    const std::string given = out.size() == 1 ? text("a tensor of ", out[0].numel(), " elements")
                                              : text(out.size(), " tensors");
    throw Error(text(name_of(model, index), " is the last and hands on ", given,
                     "; its forward() returns the loss: one tensor of one element"));
  }
}

}  // namespace

Flow call_block(const Model& model, size_t index, const Flow& in, const Side& side) {
  try {
    Flow out = model.blocks[index]->forward(in, side);
    check(model, index, out);
    return out;
  } catch (const InternalError& e) {  // an own op that was given what it does not take
    throw InternalError(text(name_of(model, index), ": ", e.what()));
  } catch (const c10::Error& e) {
    const std::string words = e.what_without_backtrace();
    if (words.find("can't allocate memory") != std::string::npos) throw;
    throw Error(
        text(name_of(model, index), ": an error of LibTorch: ", words.substr(0, words.find('\n'))));
  }
}

}  // namespace kuafu
