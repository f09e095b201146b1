#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# From a bare Debian 12 machine to a report: set-up, build, a suite of experiments, figures.
#   scripts/run.sh                                    suites/quickstart.toml into results/runs/quickstart
#   scripts/run.sh suites/other.toml                  another suite, into results/runs/other
#   scripts/run.sh --filter strategy=2d               options go to `kuafu suite`
# Interrupt it whenever you like: calling it again continues where it stopped, with the same results.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

suite=suites/quickstart.toml
if [[ "${1:-}" == "--help" ]]; then
  show_help "$0"
  exit 0
fi
if [[ $# -gt 0 && "$1" != -* ]]; then
  suite="$1"
  shift
fi
[[ -f "$suite" ]] || die "no suite $suite; there are: $(ls suites/*.toml 2>/dev/null | tr '\n' ' ')"

out="results/runs/$(basename "$suite" .toml)"
report=yes
options=()
while [[ $# -gt 0 ]]; do
  case "$1" in
    --out) [[ $# -gt 1 ]] || die "--out needs a folder"; out="$2"; shift ;;
    --out=*) out="${1#--out=}" ;;
    --resume) ;;  # always
    --dry-run | --help) report=no; options+=("$1") ;;
    *) options+=("$1") ;;
  esac
  shift
done

scripts/setup.sh --build release --target kuafu --target kuafu-worker
kuafu=build/release/bin/kuafu

# An interrupt reaches kuafu too, which closes its record; we only say how to go on.
interrupted() {
  say "interrupted; call again to continue: scripts/run.sh $suite"
  exit 130
}
trap interrupted INT TERM

say "running $suite into $out"
status=0
"$kuafu" suite "$suite" --out "$out" --resume "${options[@]}" || status=$?
if [[ $status -gt 128 ]]; then
  say "ended by signal $((status - 128)); call again to continue: scripts/run.sh $suite"
  exit "$status"
fi
if [[ "$report" == yes ]]; then
  if [[ ! -f "$out/run.jsonl" ]]; then
    exit $((status == 0 ? 1 : status))
  fi
  say "writing the report"
  "$kuafu" report "$out" || die "the report failed; the results in $out are complete"
  say "done: $out/report.html"
fi
exit "$status"
