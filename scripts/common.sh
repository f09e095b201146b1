# SPDX-License-Identifier: Apache-2.0
# Shared by the scripts of this folder: sourced, never run.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$root"

# Folders in which this machine's CUDA toolkit keeps its libraries, one a line.
toolkit_folders() {
  local nvcc
  # `|| true`: where there is no nvcc, `ls` fails: no error, such a machine has no folders.
  nvcc="$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null || true)"
  [[ -n "$nvcc" ]] || return 0
  local home
  home="$(dirname "$(dirname "$(readlink -f "$nvcc")")")"
  # `|| true`: a toolkit has some of the three, and `ls` fails for those that it has not.
  ls -d "$home/lib64" "$home/lib" "$home/extras/CUPTI/lib64" 2>/dev/null || true
}

# say TEXT: a progress line with the seconds since the script began.
say() { printf '[%4d s] %s\n' "$SECONDS" "$*"; }

# die TEXT: the error and what to do, then exit with 1.
die() {
  printf '%s: error: %s\n' "$(basename "$0")" "$*" >&2
  exit 1
}

# show_help FILE: the comment block at the top of a script.
show_help() { sed -n '3,/^[^#]/s/^# \{0,1\}//p' "$1"; }
