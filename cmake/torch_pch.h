// SPDX-License-Identifier: Apache-2.0
// Precompiled once, shared by every target that uses LibTorch.
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>
