#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests and benchmarks on the card of this machine; needs neither MPI nor HDF5 nor a network:
#   scripts/gpu.sh                          builds, tests, measures; writes results/gpu
#   scripts/gpu.sh --limit 8                at most so many minutes: what is left is done by the next call
#   scripts/gpu.sh --only conformance       steps whose names begin so alone, again; may be repeated
#   scripts/gpu.sh --out DIR                elsewhere than results/gpu
#   scripts/gpu.sh --commit SHA             where the tree comes without .git: results name it
#   scripts/gpu.sh --dry-run                says what each step would run
#   scripts/gpu.sh --pack DIR               for a card in another machine: copies the programs of
#                                           build/release and the libraries they load into DIR
#   scripts/gpu.sh --programs DIR           there: runs those instead of building
# A step that is done is not done again by a call with the same commit and --out. A failing step stops no
# other; the exit code is 1 then. Variables: TORCH, the folder of the torch package (default: python3's).
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

limit=0
only=()
out=results/gpu
commit="$(git rev-parse HEAD 2>/dev/null || true)"  # none: the tree has no history, --commit says it
programs=""
dry=no
jobs=$(($(nproc) / 2 > 1 ? $(nproc) / 2 : 1))
while [[ $# -gt 0 ]]; do
  case "$1" in
    --help) show_help "$0"; exit 0 ;;
    --dry-run) dry=yes ;;
    --limit | --only | --out | --commit | --programs | --pack)
      [[ $# -gt 1 ]] || die "$1 needs a value; see scripts/gpu.sh --help"
      case "$1" in
        --limit) limit="$2" ;;
        --only) only+=("$2") ;;
        --out) out="$2" ;;
        --commit) commit="$2" ;;
        --programs) programs="${2%/}" ;;
        --pack) pack="$2" ;;
      esac
      shift
      ;;
    *) die "unknown option $1; see scripts/gpu.sh --help" ;;
  esac
  shift
done
[[ "$limit" =~ ^[0-9]+$ ]] || die "--limit $limit: a number of minutes is right"

readonly kTests=(device_test nccl_test card_test)

# The libraries that programs load besides those of a card machine: LibTorch, CUDA and the C library.
# `|| true`: a program may need no other, and grep then fails.
libraries_of() {
  ldd "$@" 2>/dev/null | awk '$2 == "=>" && $3 ~ /^\// {print $3}' | sort -u \
    | grep -Ev '/(torch|nvidia|cuda[^/]*)/|/lib(c|m|dl|rt|pthread|resolv|util|stdc\+\+|gcc_s)\.so' || true
}

if [[ -n "${pack:-}" ]]; then
  bin=build/release/bin
  mkdir -p "$pack/bin" "$pack/lib"
  found=()
  for program in kuafu kuafu-worker bench_card tensor_tests "${kTests[@]}"; do
    if [[ -x "$bin/$program" ]]; then found+=("$bin/$program"); fi
  done
  [[ ${#found[@]} -gt 1 ]] || die "no programs in $bin; scripts/setup.sh --build release makes them"
  for program in "${found[@]}"; do strip -o "$pack/bin/$(basename "$program")" "$program"; done
  libraries_of "${found[@]}" | while read -r library; do cp -Lu "$library" "$pack/lib/"; done
  say "$(du -sh "$pack" | cut -f1) in $pack: ${found[*]##*/}"
  exit 0
fi

began=$SECONDS
readonly kLogs="$out/logs"
if [[ "$dry" == no ]]; then
  mkdir -p "$kLogs"
  rm -f "$kLogs"/*.failed "$kLogs"/*.left
fi

# Whether a step is among those that --only names, by its whole name or its beginning.
is_wanted() {
  local some
  for some in "${only[@]}"; do
    if [[ "$1" == "$some"* ]]; then return 0; fi
  done
  return 1
}

# step NAME SECONDS COMMAND...: runs it with a limit, its output in a log, unless it is done.
step() {
  local name="$1" seconds="$2"
  shift 2
  if [[ ${#only[@]} -gt 0 ]]; then
    is_wanted "$name" || return 0
  elif [[ "$(cat "$kLogs/$name.done" 2>/dev/null)" == "$commit" && -n "$commit" ]]; then
    say "$name: done before"
    return 0
  fi
  if [[ "$dry" == yes ]]; then
    printf '%s (at most %s s): %s\n' "$name" "$seconds" "$*"
    return 0
  fi
  if [[ "$limit" -gt 0 ]]; then
    local rest=$((limit * 60 - SECONDS + began))
    if [[ "$rest" -lt 10 ]]; then touch "$kLogs/$name.left"; return 0; fi
    if [[ "$seconds" -gt "$rest" ]]; then seconds="$rest"; fi
  fi
  local from=$SECONDS code=0
  timeout --kill-after=5 "$seconds" "$@" >"$kLogs/$name.log" 2>&1 || code=$?
  if [[ "$code" -eq 0 ]]; then
    echo "$commit" >"$kLogs/$name.done"
    say "$name: passed in $((SECONDS - from)) s"
  else
    touch "$kLogs/$name.failed"
    say "$name: FAILED with $code in $((SECONDS - from)) s; $kLogs/$name.log ends:"$'\n'"$(tail -n 5 "$kLogs/$name.log" | sed 's/^/    /')"
  fi
}

# beside NAME SECONDS COMMAND...: a step whose time is not measured, beside others.
beside() {
  if [[ "$dry" == yes ]]; then step "$@"; return; fi
  # `|| true`: a step says by its files how it ended; the next one starts whatever that was.
  while [[ "$(jobs -rp | wc -l)" -ge "$jobs" ]]; do wait -n || true; done
  step "$@" &
}

export KUAFU_COMMIT="$commit"
# `|| true`: without PyTorch there CMake looks for LibTorch, and says what is missing.
torch="${TORCH:-$(python3 -c 'import torch; print(torch.__path__[0])' 2>/dev/null || true)}"
if [[ -n "$programs" ]]; then
  folder="$programs"
  export KUAFU_TORCH_DIR="$torch"
  export LD_LIBRARY_PATH="$(realpath "$programs")/lib:$torch/lib:$(ls -d "$torch"/../nvidia/*/lib 2>/dev/null | tr '\n' ':')${LD_LIBRARY_PATH:-}"
else
  folder=build/gpu
  step configure 120 cmake -S . -B build/gpu -G Ninja -DCMAKE_BUILD_TYPE=Release -DKUAFU_MPI=OFF -DKUAFU_HDF5=OFF \
    -DCMAKE_CUDA_ARCHITECTURES=native \
    ${torch:+-DKUAFU_TORCH_DIR="$torch"}
  step build 3000 cmake --build build/gpu
fi
bin="$folder/bin"
kuafu="$bin/kuafu"
plan=experiments/card/gpt-1.3b.toml
model=(--layers 24 --hidden 2048 --heads 16 --vocab 50304 --sequence 2048 --batch 8)

step card 60 bash -c "nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm,power.limit --format=csv && $kuafu doctor"
# What is right or wrong, side by side.
for test in "${kTests[@]}"; do
  beside "$test" 120 "$bin/$test"
done
beside ops 120 "$bin/tensor_tests" '--gtest_filter=CardOps.*'
beside matrix 600 "$kuafu" matrix --device cuda --filter world=threads --triples 0 --jobs "$jobs" --out "$out/matrix"
for scheme in none 1d 1d-sp 2d 2.5d 3d; do
  beside "conformance-$scheme" 600 "$kuafu" conformance "$scheme" --sizes 1,2,4,8 --device cuda
done
for mode in ring ring-zigzag ulysses all-gather; do
  beside "conformance-$mode" 600 "$kuafu" conformance --sequence "$mode" --sizes 1,2,4 --device cuda
done
for case in none:1:1 1d:2:1 1d:4:1 1d:8:1 1d-sp:2:1 1d-sp:4:1 2d:4:1 2.5d:8:2 3d:8:1; do
  IFS=: read -r mode size depth <<<"$case"
  for dtype in f64 f32; do
    beside "certified-$mode-$size-$dtype" 120 "$kuafu" run examples/gpt.toml --device cuda --certify --set model.heads=8 \
      --set model.dtype=$dtype --set "parallel.tensor={mode=\"$mode\", size=$size, depth=$depth}" \
      --json "$out/certified-$mode-$size-$dtype.json"
  done
done
wait
# What takes how long, one after the other.
step bench-card 120 "$bin/bench_card" --json "$out/bench-card.json"
step gpt-1.3b 300 "$kuafu" run "$plan" --device cuda --certify --json "$out/gpt-1.3b.json" --log-every 1
step pytorch-eager 300 python3 baselines/pytorch/card.py "${model[@]}" --programs "$folder" --json "$out/pytorch-eager.json"
step pytorch-compiled 600 python3 baselines/pytorch/card.py "${model[@]}" --compile --programs "$folder" --json "$out/pytorch-compiled.json"

names_of() { find "$kLogs" -name "*.$1" -printf '%f\n' 2>/dev/null | sort | sed "s/\.$1\$//" | tr '\n' ' '; }
if [[ "$dry" == yes ]]; then exit 0; fi
if [[ ${#only[@]} -gt 0 ]]; then
  for some in "${only[@]}"; do
    compgen -G "$kLogs/$some*" >/dev/null || die "--only $some: no step begins so; --dry-run lists them"
  done
fi
left="$(names_of left)" failed="$(names_of failed)"
if [[ -n "$left" ]]; then say "no time was left for: ${left}the same call goes on"; fi
if [[ -n "$failed" ]]; then say "failed: $failed"; exit 1; fi
say "all that was run has passed"
