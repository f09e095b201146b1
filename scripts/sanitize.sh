#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds what lies below LibTorch under a sanitizer and runs its tests:
#   scripts/sanitize.sh asan     AddressSanitizer and UndefinedBehaviorSanitizer
#   scripts/sanitize.sh tsan     ThreadSanitizer
# Fails if a test does, a report of the sanitizer included.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

case "${1:-}" in
  --help) show_help "$0"; exit 0 ;;
  asan | tsan) preset="$1" ;;
  *) die "expected asan or tsan; see scripts/sanitize.sh --help" ;;
esac
cmake --preset "$preset"
cmake --build --preset "$preset"
ctest --preset "$preset" -L quick -j "$(nproc)"
