// SPDX-License-Identifier: Apache-2.0
#include "kuafu/tensor/op_library.h"

namespace kuafu {

void register_ops() {
  const auto impl = [](c10::DispatchKey key) {
    return torch::Library(torch::Library::IMPL, "kuafu", key, __FILE__, __LINE__);
  };
  // Never destroyed: ops stay registered as long as the process may call them.
  static auto* lib = new OpLibrary{
      torch::Library(torch::Library::DEF, "kuafu", std::nullopt, __FILE__, __LINE__),
      impl(c10::DispatchKey::CPU), impl(c10::DispatchKey::CUDA), impl(c10::DispatchKey::Meta)};
  add_matmul_ops(*lib);
  add_attention_ops(*lib);
  add_norm_ops(*lib);
  add_sharded_norm_ops(*lib);
  add_embedding_ops(*lib);
  add_loss_ops(*lib);
  add_dropout_ops(*lib);
  add_update_ops(*lib);
}

}  // namespace kuafu
