// SPDX-License-Identifier: Apache-2.0
#include "kuafu/tokenizer/post_processor.h"

#include <algorithm>
#include <utility>

#include "kuafu/base/errors.h"
#include "kuafu/base/suggest.h"

namespace kuafu::tokenizer {

PostProcessor::PostProcessor(const Component& part) { add(part); }

void PostProcessor::add(const Component& part) {
  const std::string kind = part.kind(
      {"TemplateProcessing", "BertProcessing", "RobertaProcessing", "ByteLevel", "Sequence"});
  if (kind == "Sequence") {
    part.allow({"processors"});
    for (const Component& element : part.at("processors").elements()) add(element);
  } else if (kind == "ByteLevel") {  // changes offsets alone
    part.allow({"add_prefix_space", "trim_offsets", "use_regex"});
  } else {
    if (has_template_) part.fail(" follows a TemplateProcessing; allowed there: ByteLevel");
    if (kind == "TemplateProcessing") return add_template(part);
    add_between(part);
  }
}

/// The part of a template for two texts is read by nobody here.
void PostProcessor::add_template(const Component& part) {
  part.allow({"single", "pair", "special_tokens"});
  has_template_ = true;
  Template items;
  for (const Component& piece : part.at("single").elements()) {
    const bool is_text = piece.has("Sequence");
    if (is_text == piece.has("SpecialToken"))
      piece.refuse("{Sequence: ...} or {SpecialToken: ...}");
    const Component about = piece.at(is_text ? "Sequence" : "SpecialToken");
    if (is_text) {
      about.at("id").one_of({"A"});
      items.push_back({.is_text = true});
      continue;
    }
    const std::string name = about.at("id").text();
    const Component tokens = part.at("special_tokens");
    std::vector<std::string> known;
    if (!tokens.has(name)) {
      for (const auto& [token, row] : tokens.value().items()) known.push_back(token);
      about.at("id").refuse(
          text("one of ", part.path(), ".special_tokens", did_you_mean(name, known)));
    }
    Item item;
    for (const Component& id : tokens.at(name).at("ids").elements()) item.ids.push_back(id.id());
    items.push_back(std::move(item));
  }
  templates_.push_back(std::move(items));
}

/// {"cls": ["<s>", 0], "sep": ["</s>", 2]}
void PostProcessor::add_between(const Component& part) {
  part.allow({"cls", "sep", "trim_offsets", "add_prefix_space"});
  const auto id_of = [&](const char* name) {
    const Component pair = part.at(name);
    if (!pair.value().is_array() || pair.value().size() != 2) pair.refuse(R"(["token", id])");
    return pair.elements()[1].id();
  };
  templates_.push_back({{.ids = {id_of("cls")}}, {.is_text = true}, {.ids = {id_of("sep")}}});
}

std::vector<int32_t> PostProcessor::applied(std::vector<int32_t> ids, bool has_special) const {
  for (const Template& items : templates_) {
    std::vector<int32_t> out;
    for (const Item& item : items) {
      if (!item.is_text && !has_special) continue;
      const std::vector<int32_t>& added = item.is_text ? ids : item.ids;
      out.insert(out.end(), added.begin(), added.end());
    }
    ids = std::move(out);
  }
  return ids;
}

int32_t PostProcessor::last_id() const {
  int32_t last = -1;
  for (const Template& items : templates_) {
    for (const Item& item : items) {
      for (const int32_t id : item.ids) last = std::max(last, id);
    }
  }
  return last;
}

}  // namespace kuafu::tokenizer
