#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Lays out the C++ and CUDA sources with clang-format 14:
#   scripts/format.sh            rewrites what differs
#   scripts/format.sh --check    only says what differs, and fails if anything does
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"

mode="${1:-}"
if [[ "$mode" == "--help" ]]; then
  sed -n '3,5s/^# \{0,1\}//p' "$0"
  exit 0
elif [[ -n "$mode" && "$mode" != "--check" ]]; then
  echo "format.sh: unknown option $mode; allowed: --check, --help" >&2
  exit 2
fi

# `|| true`: that there is none is said below. Other versions lay the same code out differently.
tool="$(command -v clang-format-14 || command -v clang-format || true)"
if [[ -z "$tool" ]]; then
  echo "format.sh: clang-format not found; install it (Debian: clang-format-14, or scripts/setup.sh)" >&2
  exit 127
fi
if ! "$tool" --version | grep -q 'version 14\.'; then
  echo "format.sh: $("$tool" --version) found, but 14 decides the layout (Debian: clang-format-14)" >&2
  exit 2
fi

cd "$root"
# Tracked sources and new ones; without git, all of them.
patterns=('*.h' '*.cpp' '*.cu' '*.cuh')
if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
  mapfile -t listed < <(git ls-files --cached --others --exclude-standard -- "${patterns[@]}" | sort -u)
else
  mapfile -t listed < <(find src tests experiments -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh')
fi
files=()
for file in "${listed[@]}"; do
  if [[ -f "$file" ]]; then files+=("$file"); fi
done
if [[ ${#files[@]} -eq 0 ]]; then
  echo "format.sh: no sources found in $root" >&2
  exit 1
fi

mapfile -t changed < <("$tool" --style=file --dry-run "${files[@]}" 2>&1 \
  | sed -n 's/^\([^:]*\):[0-9]*:[0-9]*: warning: code should be clang-formatted.*/\1/p' | sort -u)
if [[ ${#changed[@]} -eq 0 ]]; then
  echo "format: ${#files[@]} files, none differs"
elif [[ "$mode" == "--check" ]]; then
  printf '%s: not laid out as clang-format 14 does; run scripts/format.sh\n' "${changed[@]}"
  echo "format: ${#files[@]} files, ${#changed[@]} differ"
  exit 1
else
  "$tool" --style=file -i "${changed[@]}"
  printf 'formatted %s\n' "${changed[@]}"
  echo "format: ${#files[@]} files, ${#changed[@]} rewritten"
fi
