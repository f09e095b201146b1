#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The Python of .venv with the CUDA toolkit's libraries where LibTorch finds them:
#   scripts/python.sh -c 'import torch; print(torch.__version__)'
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd - >/dev/null 2>&1 || cd "$root"

[[ -x "$root/.venv/bin/python" ]] || die "no .venv; run scripts/setup.sh"
folders="$(toolkit_folders | tr '\n' ':')"
export LD_LIBRARY_PATH="$folders${LD_LIBRARY_PATH:-}"
exec "$root/.venv/bin/python" "$@"
