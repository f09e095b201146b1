#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# quickstart_regression.sh KUAFU OUT: runs suites/quickstart.toml into OUT, kills the sweep once with SIGKILL
# after some cases, continues it, and holds the exact metrics against results/quickstart at zero tolerance.
set -euo pipefail
kuafu=$1
out=$2
rm -rf "$out"

"$kuafu" suite suites/quickstart.toml --out "$out" > /dev/null 2>&1 &
first=$!
finished() { cat "$out/run.jsonl" 2> /dev/null | grep -c '"kind":"case"' || :; }  # grep -c fails on a count of 0
while kill -0 "$first" 2> /dev/null && [ "$(finished)" -lt 3 ]; do sleep 0.2; done
kill -KILL "$first"
wait "$first" || true  # its status is the kill's
echo "killed after $(finished) cases"

"$kuafu" suite suites/quickstart.toml --out "$out" --resume
[ "$(finished)" -eq 38 ] || { echo "38 cases were expected in $out/run.jsonl, found $(finished)"; exit 1; }
"$kuafu" compare --exact results/quickstart "$out"
