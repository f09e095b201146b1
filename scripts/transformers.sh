#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The Python that has Hugging Face's transformers beside .venv's PyTorch, for tests/hf/transformers_test.py:
#   scripts/transformers.sh --install      makes .venv-transformers, 500 MB; quick where nothing is missing
#   scripts/transformers.sh FILE.py ...    runs a program in it; fails with 77 where it is not there
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd - >/dev/null 2>&1 || cd "$root"

readonly kOwn="$root/.venv-transformers"
readonly kBase="$root/.venv"
readonly kList="$root/scripts/requirements-transformers.txt"

missing() { "$kOwn/bin/python" "$root/scripts/check_environment.py" "$kList"; }

install_it() {
  [[ -x "$kBase/bin/python" ]] || die "no .venv; run scripts/setup.sh"
  if ! "$kOwn/bin/python" -c '' 2>/dev/null; then
    say "making .venv-transformers"
    rm -rf "$kOwn"
    "$kBase/bin/python" -m venv "$kOwn"
  fi
  # What .venv has is found behind what this environment has itself.
  local site
  site="$(echo "$kOwn"/lib/python3*/site-packages)"
  echo "../../../../.venv/lib/$(basename "$(dirname "$site")")/site-packages" >"$site/kuafu.pth"
  local packages
  mapfile -t packages < <(missing)
  if [[ ${#packages[@]} -gt 0 ]]; then
    say "installing ${#packages[@]} Python packages"
    "$kOwn/bin/python" -m pip --quiet --disable-pip-version-check install --no-compile --force-reinstall --no-deps \
      "${packages[@]}" || die "pip could not install: ${packages[*]}; is there a network?"
    mapfile -t packages < <(missing)
    [[ ${#packages[@]} -eq 0 ]] || die "still missing after installation: ${packages[*]}"
  fi
  say "transformers are there"
}

case "${1:-}" in
  --help | "") show_help "$0" ;;
  --install) install_it ;;
  -*) die "unknown option $1; see scripts/transformers.sh --help" ;;
  *)
    if ! "$kOwn/bin/python" -c 'import importlib.metadata as m; m.version("transformers")' 2>/dev/null; then
      echo "skipped: no transformers in .venv-transformers; scripts/transformers.sh --install makes it"
      exit 77
    fi
    export KUAFU_SOURCE_DIR="${KUAFU_SOURCE_DIR:-$root}" KUAFU_BINARY_DIR="${KUAFU_BINARY_DIR:-$root/build/release}"
    folders="$(toolkit_folders | tr '\n' ':')"
    export LD_LIBRARY_PATH="$folders${LD_LIBRARY_PATH:-}"
    exec "$kOwn/bin/python" "$@"
    ;;
esac
