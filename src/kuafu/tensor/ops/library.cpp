// SPDX-License-Identifier: Apache-2.0
#include "kuafu/tensor/ops/library.h"

namespace kuafu {

void register_ops() {
  const auto define = [](const char* name) {
    return torch::Library(torch::Library::DEF, name, std::nullopt, __FILE__, __LINE__);
  };
  const auto implement = [](const char* name, c10::DispatchKey key) {
    return torch::Library(torch::Library::IMPL, name, key, __FILE__, __LINE__);
  };
  // Never destroyed: ops stay registered as long as the process may call them.
  static auto* lib = new OpLibrary{define("kuafu"),
                                   implement("kuafu", c10::DispatchKey::CPU),
                                   implement("kuafu", c10::DispatchKey::CUDA),
                                   implement("kuafu", c10::DispatchKey::Meta),
                                   define("kuafu_portable"),
                                   implement("kuafu_portable", c10::DispatchKey::CPU),
                                   kernel_choice()};
  add_head_ops(*lib);
  add_matmul_ops(*lib);
  add_attention_ops(*lib);
  add_merge_ops(*lib);
  add_document_ops(*lib);
  add_rope_ops(*lib);
  add_sum_ops(*lib);
  add_norm_ops(*lib);
  add_sharded_norm_ops(*lib);
  add_rms_norm_ops(*lib);
  add_activation_ops(*lib);
  add_embedding_ops(*lib);
  add_loss_ops(*lib);
  add_dropout_ops(*lib);
  add_update_ops(*lib);
  add_layer_ops(*lib);
  add_orthogonal_ops(*lib);
  add_route_ops(*lib);
  add_slot_ops(*lib);
}

}  // namespace kuafu
