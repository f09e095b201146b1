// SPDX-License-Identifier: Apache-2.0
//
// Rules of plug-ins, held to their contract. A wrong shape would be broadcast in silence, and a slot
// that is replaced is lost with the piece.

#include "kuafu/optim/checked_rule.h"

#include <ATen/ATen.h>

#include <functional>
#include <memory>
#include <new>
#include <string_view>

#include "kuafu/base/plugin_error.h"
#include "kuafu/base/suggest.h"

namespace kuafu {
namespace {

/// LibTorch's words without the stack that it appends.
std::string first_line(const std::string& what) { return what.substr(0, what.find('\n')); }

std::string described(const Tensor& t) {
  if (!t.defined()) return "no tensor";
  return text(t.scalar_type(), " ", to_string(shape_of(t)), t.is_meta() ? " without values" : "");
}

/// A tensor that may be changed in place and no otherwise.
class InPlace {
 public:
  /// `t` may be undefined, and stays so then.
  explicit InPlace(const Tensor& t) : tensor_(t), was_(described(t)) {
    if (!t.defined()) return;
    storage_ = t.storage().unsafeGetStorageImpl();
    strides_ = t.strides().vec();
    version_ = t._version();
  }

  /// "replaced by f32 (2, 3)", "resized from ... to ..."; empty where it is what it was.
  std::string change(const Tensor& now) const {
    if (!now.is_same(tensor_)) return "replaced by another tensor, " + described(now);
    const std::string is = described(now);
    if (is != was_) return text("changed from ", was_, " to ", is);
    if (!now.defined()) return "";
    const bool is_there =
        now.storage().unsafeGetStorageImpl() == storage_ && now.strides().vec() == strides_;
    return is_there ? "" : "given other memory";
  }
  /// By an operation in place that LibTorch knows of.
  bool has_other_elements(const Tensor& now) const {
    return now.defined() && now._version() != version_;
  }

 private:
  Tensor tensor_;
  const void* storage_ = nullptr;
  std::vector<int64_t> strides_;
  int64_t version_ = 0;
  std::string was_;
};

class CheckedRule {
 public:
  CheckedRule(Rule rule, std::string who) : rule_(std::move(rule)), who_(std::move(who)) {}

  Tensor measure(RulePiece& piece, const Rates& rates) const {
    Tensor sums;
    watched("measure", piece, uses_of(piece).measure, [&] { sums = rule_.measure(piece, rates); });
    expect(sums, piece.value.options().dtype(at::kDouble), {piece.layers.layers, rule_.num_norms},
           "measure", "a row for each layer of the piece, num_norms columns");
    return sums;
  }
  Tensor direction(RulePiece& piece, const Rates& rates) const {
    Tensor direction;
    watched("direction", piece, SlotUse::kChange,
            [&] { direction = rule_.direction(piece, rates); });
    expect(direction, piece.value.options(), shape_of(piece.value), "direction",
           "an element for each of the piece");
    return direction;
  }
  Tensor whole(const Tensor& direction, const LayerSplit& layers) const {
    Tensor step;
    run_foreign(who_, "whole", [&] { step = rule_.whole(direction, layers); });
    expect(step, direction.options(), shape_of(direction), "whole", "the step of each element");
    return step;
  }
  Tensor ratios(const Tensor& norms, const Rates& rates) const {
    Tensor ratios;
    run_foreign(who_, "ratios", [&] { ratios = rule_.ratios(norms, rates); });
    expect(ratios, norms.options().dtype(at::kDouble), {norms.size(0)}, "ratios",
           "one for each row of its norms");
    return ratios;
  }
  void update(RulePiece& piece, const Rates& rates, const Tensor& ratios) const {
    watched("update", piece, uses_of(piece).update, [&] { rule_.update(piece, rates, ratios); });
  }
  SlotUses uses_of(const RulePiece& piece) const {
    SlotUses uses;
    if (rule_.slot_uses) run_foreign(who_, "slot_uses", [&] { uses = rule_.slot_uses(piece); });
    return uses;
  }

 private:
  void watched(const char* part, RulePiece& piece, SlotUse use,
               const std::function<void()>& f) const {
    const InPlace value(piece.value);
    const std::vector<InPlace> slots(piece.slots.begin(), piece.slots.end());
    run_foreign(who_, part, f);
    const auto require = [&](const std::string& change, const std::string& of) {
      if (change.empty()) return;
      throw PluginError(text(who_, ": after ", part, " ", of, " is ", change,
                             "; allowed: changes of its elements in place, as by copy_ or mul_"));
    };
    require(value.change(piece.value), "the value");
    if (piece.slots.size() != slots.size()) {
      throw PluginError(text(who_, ": after ", part, " the piece has ", piece.slots.size(),
                             " slots; allowed: the ", slots.size(), " that the rule declares"));
    }
    const std::vector<std::string>& names = piece.is_matrix ? rule_.matrix_slots : rule_.slots;
    for (size_t i = 0; i < slots.size(); ++i) {
      const std::string slot = "slot " + in_quotes(names.at(i));
      require(slots[i].change(piece.slots[i]), slot);
      if (use == SlotUse::kChange || !slots[i].has_other_elements(piece.slots[i])) continue;
      throw PluginError(text(who_, ": ", part, " changes ", slot,
                             ", which it only reads by slot_uses; allowed: SlotUse::kChange"));
    }
  }

  void expect(const Tensor& given, at::TensorOptions options, const Shape& shape, const char* part,
              const char* meaning) const {
    const at::ScalarType type = c10::typeMetaToScalarType(options.dtype());
    const bool is_right = given.defined() && given.scalar_type() == type &&
                          shape_of(given) == shape && given.device() == options.device();
    if (is_right) return;
    throw PluginError(text(who_, ": ", part, " gave ", described(given), "; allowed: ", type, " ",
                           to_string(shape), " on ", options.device().str(), ", ", meaning));
  }

  Rule rule_;
  std::string who_;
};

}  // namespace

void run_foreign(const std::string& who, const std::string& what, const std::function<void()>& f) {
  const auto fail = [&](const std::string& how) {
    throw PluginError(text(who, ": ", what, " threw ", how));
  };
  const auto is_of_memory = [](std::string_view words) {
    return words.find("can't allocate memory") != std::string_view::npos;
  };
  try {
    f();
  } catch (const OutOfMemory&) {
    throw;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const RankLost&) {
    throw;
  } catch (const PluginError&) {
    throw;
  } catch (const c10::Error& e) {
    if (is_of_memory(e.what_without_backtrace())) throw;
    fail("an error of LibTorch: " + first_line(e.what_without_backtrace()));
  } catch (const std::exception& e) {
    if (is_of_memory(e.what())) throw;
    fail(text("an exception: ", first_line(e.what())));
  } catch (...) {
    fail(
        "something that is no std::exception; allowed: kuafu::ConfigError for what a user can "
        "mend, or another std::exception");
  }
}

Rule checked(Rule rule, const std::string& who) {
  const auto held = std::make_shared<const CheckedRule>(rule, who);
  if (rule.measure) rule.measure = std::bind_front(&CheckedRule::measure, held);
  if (rule.slot_uses) rule.slot_uses = std::bind_front(&CheckedRule::uses_of, held);
  if (rule.direction) rule.direction = std::bind_front(&CheckedRule::direction, held);
  if (rule.whole) rule.whole = std::bind_front(&CheckedRule::whole, held);
  if (rule.ratios) rule.ratios = std::bind_front(&CheckedRule::ratios, held);
  if (rule.update) rule.update = std::bind_front(&CheckedRule::update, held);
  return rule;
}

}  // namespace kuafu
