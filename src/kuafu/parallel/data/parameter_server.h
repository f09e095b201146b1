// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "kuafu/parallel/data/flat.h"

namespace kuafu {

struct ServerOptions {
  int64_t servers = 1;  ///< the first replicas also serve
  int64_t bucket_bytes = 25 * 1024 * 1024;
  bool is_overlapped = true;  ///< gradients are pushed during backward and summed after it
};

/// Servers that each hold a part of every bucket, in step with all workers.
/// @pre options.servers <= mesh.size("data"); experts are not shared.
std::unique_ptr<DataParallel> make_parameter_server(const Mesh& mesh, ServerOptions options);

}  // namespace kuafu
