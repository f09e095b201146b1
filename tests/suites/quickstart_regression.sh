#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# quickstart_regression.sh KUAFU OUT [PATTERNS]: runs suites/quickstart.toml, or its cases named like PATTERNS (a list with
# commas), once each into OUT, kills the sweep once with SIGKILL after some cases, continues it, and holds the exact metrics
# against results/quickstart at zero tolerance.
set -euo pipefail
kuafu=$1
out=$2
names=${3:-*}
rm -rf "$out"
sweep=("$kuafu" suite suites/quickstart.toml --out "$out" --repeats 1 --filter "name=$names" --no-report)
expected=$("${sweep[@]}" --dry-run | sed -n 's/^\([0-9]*\) of [0-9]* cases.*/\1/p')
[ "$expected" -gt 5 ] || { echo "too few cases named like $names: $expected"; exit 1; }

"${sweep[@]}" > /dev/null 2>&1 &
first=$!
finished() { cat "$out/run.jsonl" 2> /dev/null | grep -c '"kind":"case"' || :; }  # grep -c fails on a count of 0
while kill -0 "$first" 2> /dev/null && [ "$(finished)" -lt 3 ]; do sleep 0.2; done
kill -KILL "$first"
wait "$first" || true  # its status is the kill's
echo "killed after $(finished) cases"

"${sweep[@]}" --resume
[ "$(finished)" -eq "$expected" ] || { echo "$expected cases were expected in $out/run.jsonl, found $(finished)"; exit 1; }
"$kuafu" compare --exact results/quickstart "$out" --subset "name=$names"
