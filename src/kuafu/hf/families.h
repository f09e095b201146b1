// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kuafu/hf/tensors.h"

// What configs and Kuafu call the same: read and written.
namespace kuafu::hf {

struct FamilyName {
  Family family;
  const char* name;
  const char* architecture;  ///< the class that has all of our tensors
};
inline constexpr FamilyName kFamilies[] = {{Family::kGpt2, "gpt2", "GPT2LMHeadModel"},
                                           {Family::kOpt, "opt", "OPTForCausalLM"},
                                           {Family::kLlama, "llama", "LlamaForCausalLM"},
                                           {Family::kBert, "bert", "BertForPreTraining"},
                                           {Family::kVit, "vit", "ViTForImageClassification"}};

/// Their name of an activation, and ours.
struct ActivationName {
  const char* theirs;
  const char* ours;
};
inline constexpr ActivationName kActivations[] = {
    {"gelu_new", "gelu"}, {"gelu_pytorch_tanh", "gelu"}, {"gelu", "gelu_exact"}, {"relu", "relu"}};

}  // namespace kuafu::hf
