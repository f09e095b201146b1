#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Set-up, build, and all tests labelled `quick`:
#   scripts/test.sh                    at most 12 minutes on 2 cores, 25 from a fresh clone
#   scripts/test.sh --full             the tests labelled `full` after them, up to an hour more
#   scripts/test.sh --filter REGEX     only the tests whose names match
# Fails if any test does, or if there is none to run.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

full=no
filter=""
while [[ $# -gt 0 ]]; do
  case "$1" in
    --help) show_help "$0"; exit 0 ;;
    --full) full=yes ;;
    --filter) [[ $# -gt 1 ]] || die "--filter needs a regular expression"; filter="$2"; shift ;;
    *) die "unknown option $1; see scripts/test.sh --help" ;;
  esac
  shift
done

scripts/setup.sh --build release
if [[ "$full" == yes ]]; then
  scripts/transformers.sh --install || say "no transformers: the tests hf_transformers_* are skipped"
fi
folder=build/release
failed=no

# run_label LABEL: the tests of one label; remembers a failure, prints totals and time.
run_label() {
  local label="$1" began=$SECONDS options=(-L "^$1\$")
  if [[ -n "$filter" ]]; then options+=(-R "$filter"); fi
  local number
  number="$(ctest --test-dir "$folder" -N "${options[@]}" | sed -n 's/^Total Tests: //p')"
  if [[ "${number:-0}" -eq 0 ]]; then
    say "no test has the label $label${filter:+ and a name that matches $filter}"
    return 0
  fi
  total=$((total + number))
  say "running the $number tests labelled $label"
  local result=passed
  ctest --test-dir "$folder" -j "$(nproc)" --output-on-failure "${options[@]}" || { result=FAILED; failed=yes; }
  say "tests labelled $label: $result, $number tests in $((SECONDS - began)) s"
  if [[ "$label" == quick && $((SECONDS - began)) -gt 720 ]]; then
    say "quick tests took more than their 720 s: other work on the machine, or too many of them"
  fi
}

total=0
run_label quick
if [[ "$full" == yes ]]; then
  run_label full
fi
[[ $total -gt 0 ]] || die "no test ran"
if [[ "$failed" == yes ]]; then
  die "some tests failed; their names and output are above"
fi
say "all $total tests passed"
