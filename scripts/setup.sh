#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes a fresh Debian 12 machine ready for Kuafu (root or sudo), and can build it:
#   scripts/setup.sh                       Debian packages and the Python environment .venv with LibTorch
#   scripts/setup.sh --no-install          only says what is missing; fails if anything is
#   scripts/setup.sh --build [PRESET]      then configures and builds (release, debug, asan or tsan)
#   scripts/setup.sh --build release --target kuafu --target kuafu-worker
# Calling it again is quick where nothing is missing, and goes on where it was interrupted.
# Variables: KUAFU_PYTHON, the python3 (3.11 or later) that makes .venv; JOBS, compile jobs at once.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

readonly kPackages=(
  g++ make cmake ninja-build ccache mold git python3 python3-venv
  openmpi-bin libopenmpi-dev libhdf5-dev liburing-dev coinor-libcbc-dev libutf8proc-dev libpcre2-dev
  libtomlplusplus-dev libcli11-dev nlohmann-json3-dev libgtest-dev libbenchmark-dev clang-format-14)
readonly kVenv="$root/.venv"
readonly kStamp="$kVenv/kuafu-setup"

install=yes
preset=""
targets=()
while [[ $# -gt 0 ]]; do
  case "$1" in
    --help) show_help "$0"; exit 0 ;;
    --no-install) install=no ;;
    --build)
      preset=release
      if [[ $# -gt 1 && "$2" != --* ]]; then preset="$2"; shift; fi
      ;;
    --target)
      [[ $# -gt 1 ]] || die "--target needs a name"
      targets+=("$2"); shift
      ;;
    *) die "unknown option $1; see scripts/setup.sh --help" ;;
  esac
  shift
done

# Debian packages that are not installed, one a line. Elsewhere than on Debian: nothing, CMake will tell.
missing_packages() {
  command -v dpkg-query >/dev/null || return 0
  local package
  for package in "${kPackages[@]}"; do
    dpkg-query -W -f '${Status}\n' "$package" 2>/dev/null | grep -q '^install ok installed$' \
      || echo "$package"
  done
}

install_packages() {
  local as_root=()
  if [[ "$(id -u)" -ne 0 ]]; then
    command -v sudo >/dev/null || die "run as root or install sudo; needed packages: $*"
    as_root=(sudo)
  fi
  local apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300)
  # An earlier installation may have been killed between unpacking and configuring.
  "${as_root[@]}" dpkg --configure -a >/dev/null
  say "installing Debian packages: $*"
  if ! "${apt[@]}" install -y -qq --no-install-recommends "$@" >/dev/null 2>&1; then
    say "the package lists are old or absent: apt-get update"
    "${apt[@]}" update -qq || die "apt-get update failed; is there a network?"
    "${apt[@]}" install -y -qq --no-install-recommends "$@" >/dev/null \
      || die "apt-get could not install: $*"
  fi
}

# True where the toolkit has every library that LibTorch's wheel would bring.
has_toolkit() {
  local nvcc  # `|| true`: none is an answer
  nvcc="$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null || true)"
  [[ -n "$nvcc" ]] && "$nvcc" --version | grep -q 'release 13\.' || return 1
  local library folder found
  for library in libcudart.so.13 libcublas.so.13 libcublasLt.so.13 libcufft.so.12 libcurand.so.10 \
                 libcusolver.so.12 libcusparse.so.12 libcupti.so.13 libnvrtc.so.13 libnvJitLink.so.13 \
                 libcudnn.so.9 libnccl.so.2; do
    found=no
    while read -r folder; do
      if [[ -e "$folder/$library" ]]; then found=yes; fi
    done < <(toolkit_folders)
    [[ "$found" == yes ]] || return 1
  done
}

# The first python3 that is new enough and can make environments.
find_python() {
  local python
  for python in ${KUAFU_PYTHON:-} python3 /usr/bin/python3; do
    if "$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      command -v "$python"
      return 0
    fi
  done
  return 1
}

# What .venv must hold, as text: the stamp is its hash.
wanted() { sha256sum scripts/requirements.txt "scripts/requirements-$torch.txt" | cut -d' ' -f1 | tr '\n' ' '; }

# Requirements that .venv lacks, and packages that it has in part. Options go to the check.
missing_requirements() {
  "$kVenv/bin/python" scripts/check_environment.py "$@" scripts/requirements.txt "scripts/requirements-$torch.txt"
}

pip() { "$kVenv/bin/python" -m pip --quiet --disable-pip-version-check "$@"; }

# What does not fit together, as text. huggingface-hub, which tokenizers has for downloads, is left out.
# `|| true`: where all fits, nothing is left to print and grep fails.
unfit_packages() {
  "$kVenv/bin/python" -m pip --disable-pip-version-check check \
    | grep -v -e '^No broken requirements' -e '^tokenizers .* requires huggingface-hub, which is not installed' || true
}

venv_works() { [[ -x "$kVenv/bin/python" ]] && pip --version >/dev/null 2>&1; }

make_venv() {
  venv_works && return 0
  [[ ! -L "$kVenv" ]] || die ".venv is a link to an environment that does not work; repair or remove it"
  local python
  python="$(find_python)" || die "no python3 of 3.11 or later with venv found (set KUAFU_PYTHON)"
  say "making .venv with $python"
  rm -rf "$kVenv"
  "$python" -m venv "$kVenv"
}

install_requirements() {
  local missing
  mapfile -t missing < <(missing_requirements --repair)
  if [[ ${#missing[@]} -gt 0 && "$torch" == torch ]]; then
    say "installing LibTorch and what it needs"
    pip install --no-compile --constraint scripts/requirements.txt --requirement scripts/requirements-torch.txt \
      || die "pip could not install LibTorch; is there a network?"
    mapfile -t missing < <(missing_requirements --repair)
  fi
  if [[ ${#missing[@]} -gt 0 ]]; then
    say "installing ${#missing[@]} Python packages"
    # By force, because a package that is there in part counts as installed.
    pip install --no-compile --force-reinstall --no-deps "${missing[@]}" \
      || die "pip could not install: ${missing[*]}"
  fi
  if [[ "$torch" == torch ]]; then
    local unfit
    unfit="$(unfit_packages)"
    [[ -z "$unfit" ]] || die "the packages in .venv do not fit together; remove .venv and call again: $unfit"
  fi
  mapfile -t missing < <(missing_requirements)
  [[ ${#missing[@]} -eq 0 ]] || die "still missing after installation: ${missing[*]}"
}

set_up() {
  local missing
  mapfile -t missing < <(missing_packages)
  if [[ ${#missing[@]} -gt 0 ]]; then
    install_packages "${missing[@]}"
  fi
  say "Debian packages are there"
  # `|| true`: without a stamp the environment is made.
  if [[ "$(cat "$kStamp" 2>/dev/null || true)" != "$(wanted)" ]] || ! venv_works; then
    rm -f "$kStamp"
    make_venv
    install_requirements
    wanted >"$kStamp.part"
    mv "$kStamp.part" "$kStamp"
  fi
  say "Python environment is there (LibTorch: $torch)"
}

only_check() {
  local problems=0 item
  while read -r item; do
    echo "missing Debian package: $item"; problems=$((problems + 1))
  done < <(missing_packages)
  if ! venv_works; then
    echo "missing: a Python environment in .venv"; problems=$((problems + 1))
  else
    while read -r item; do
      echo "missing Python package: $item"; problems=$((problems + 1))
    done < <(missing_requirements)
  fi
  if [[ $problems -gt 0 ]]; then
    echo "$problems missing; scripts/setup.sh installs them"
    return 1
  fi
  say "nothing is missing (LibTorch: $torch)"
}

# Compile jobs: a core each, and 3 GB of memory each, because LibTorch's headers need it.
jobs_at_once() {
  if [[ -n "${JOBS:-}" ]]; then echo "$JOBS"; return; fi
  local cores memory limit
  cores="$(nproc)"
  memory="$(awk '/^MemTotal:/ {print int($2 / 1024)}' /proc/meminfo)"
  limit="$(cat /sys/fs/cgroup/memory.max 2>/dev/null || echo max)"
  if [[ "$limit" != max && $((limit / 1048576)) -lt $memory ]]; then memory=$((limit / 1048576)); fi
  local jobs=$((memory / 3072))
  if [[ $jobs -gt $cores ]]; then jobs=$cores; fi
  if [[ $jobs -lt 1 ]]; then jobs=1; fi
  echo "$jobs"
}

build() {
  local folder="build/$preset" log="build/$preset/setup.log"
  # A build folder that was made for another place cannot be used.
  if [[ -f "$folder/CMakeCache.txt" ]] && ! grep -qx "CMAKE_HOME_DIRECTORY:INTERNAL=$root" "$folder/CMakeCache.txt"; then
    say "$folder was made for another source tree: starting it afresh"
    rm -rf "$folder"
  fi
  mkdir -p "$folder"
  say "configuring $folder"
  if ! cmake --preset "$preset" >"$log" 2>&1; then
    cat "$log" >&2
    die "configuring failed; the lines above say why"
  fi
  grep '^-- Kuafu:' "$log" || true  # only shown; a log without such lines is no error
  local jobs options=()
  jobs="$(jobs_at_once)"
  for target in "${targets[@]}"; do options+=(--target "$target"); done
  say "building $folder with $jobs jobs${targets[*]:+: ${targets[*]}}"
  cmake --build "$folder" -j "$jobs" "${options[@]}" || die "the build failed"
  say "built $folder"
}

torch=torch
if has_toolkit; then torch=toolkit; fi
if [[ "$install" == no ]]; then
  only_check
else
  # One set-up at a time in one tree.
  mkdir -p build
  exec 8>build/.setup.lock
  flock 8
  set_up
  exec 8>&-
fi
if [[ -n "$preset" ]]; then
  build
fi
