// SPDX-License-Identifier: Apache-2.0
#include "kuafu/engine/stepping/block_call.h"

#include <algorithm>
#include <exception>
#include <new>
#include <string>
#include <string_view>
#include <typeinfo>

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include "kuafu/base/errors.h"
#include "kuafu/engine/plain_words.h"

namespace kuafu {
namespace {

std::string name_of(const Model& model, size_t index) {
  return text(model.origin, model.origin.empty() ? "" : ": ", "block '",
              model.blocks[index]->name(), "' (", index + 1, " of ", model.blocks.size(), ")");
}

void check(const Model& model, size_t index, const Flow& out) {
  const bool is_last = index + 1 == model.blocks.size();
  const auto is_there = [](const Tensor& t) { return t.defined(); };
  const auto is_whole = [](const Tensor& t) { return !t.is_floating_point(); };
  if (out.empty() || !std::all_of(out.begin(), out.end(), is_there)) {
    throw Error(text(name_of(model, index), " hands on ",
                     out.empty() ? "nothing" : "an undefined tensor", "; forward() returns ",
                     is_last ? "the loss" : "what the next block takes"));
  }
  const auto whole = std::find_if(out.begin(), out.end(), is_whole);
  if (whole != out.end()) {
    throw Error(text(name_of(model, index), " hands on a tensor of ", whole->scalar_type(),
                     ", which has no gradient; forward() returns floating-point numbers"));
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
  Flow out;
  run_of_block(model, index, "", [&] {
    out = model.blocks[index]->forward(in, side);
    check(model, index, out);
  });
  return out;
}

void check_recorded(const Model& model, size_t index, const Flow& out) {
  const auto is_cut = [](const Tensor& t) { return !t.requires_grad(); };
  if (std::none_of(out.begin(), out.end(), is_cut)) return;
  throw Error(text(name_of(model, index),
                   " hands on a tensor that no gradient can pass; forward() may detach what it "
                   "takes, and not what it returns"));
}

void run_of_block(const Model& model, size_t index, const char* part,
                  const std::function<void()>& f) {
  try {
    f();
  } catch (const InternalError& e) {  // an own op that was given what it does not take
    throw InternalError(text(name_of(model, index), part, ": ", e.what()));
  } catch (const c10::Error& e) {
    const std::string words = plain_words(e);
    if (words.find("can't allocate memory") != std::string::npos) throw;
    throw Error(text(name_of(model, index), part, ": ", words));
  } catch (const std::exception& e) {
    const std::string name = name_of(model, index);
    // A plug-in's model refuses a plan before it runs: in a block it has failed.
    if (typeid(e) == typeid(Refused) && model.origin.empty())
      throw Refused(text(name, part, ": ", e.what()));
    if (typeid(e) == typeid(ConfigError) || typeid(e) == typeid(Refused))
      throw ConfigError(text(name, part, ": ", e.what()));
    const bool is_nameless =
        typeid(e) == typeid(Error) && !std::string_view(e.what()).starts_with(name);
    if (is_nameless) throw Error(text(name, part, ": ", e.what()));
    const bool is_told =
        dynamic_cast<const Error*>(&e) != nullptr || dynamic_cast<const std::bad_alloc*>(&e);
    if (is_told) throw;
    const std::string_view words = e.what();
    throw Error(
        text(name, part, " threw", words.empty() ? " an exception without words" : ": ", words));
  }
}

}  // namespace kuafu
