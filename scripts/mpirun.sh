#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# mpirun with the settings that Open MPI 4.1 needs on a small or shared machine:
#   scripts/mpirun.sh -n 4 build/release/bin/kuafu-worker ...
# More ranks than cores are allowed and yield to each other, none is bound to a core, and messages go
# through shared memory only. Variables that are already set win.
# Ctrl-C, SIGTERM or SIGHUP reach the ranks as SIGUSR2, at which kuafu ends after its step and saves; a
# second one, half a second later or more, ends them at once. Started with & in a script, it never gets
# SIGINT, which the shell has such programs ignore: send SIGTERM.
#   scripts/mpirun.sh --exec ...    becomes mpirun, for a program that passes signals on by itself
set -euo pipefail

if [[ $# -eq 0 || "$1" == "--help" ]]; then
  sed -n '3,10s/^# \{0,1\}//p' "$0"
  exit 0
fi
is_replaced=false
if [[ "$1" == "--exec" ]]; then
  is_replaced=true
  shift
fi
if ! command -v mpirun >/dev/null; then
  echo "mpirun.sh: mpirun not found; install it (Debian: openmpi-bin, or scripts/setup.sh)" >&2
  exit 127
fi

export OMPI_ALLOW_RUN_AS_ROOT="${OMPI_ALLOW_RUN_AS_ROOT:-1}"
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="${OMPI_ALLOW_RUN_AS_ROOT_CONFIRM:-1}"
export OMPI_MCA_rmaps_base_oversubscribe="${OMPI_MCA_rmaps_base_oversubscribe:-1}"
export OMPI_MCA_mpi_yield_when_idle="${OMPI_MCA_mpi_yield_when_idle:-1}"
export OMPI_MCA_hwloc_base_binding_policy="${OMPI_MCA_hwloc_base_binding_policy:-none}"
export OMPI_MCA_pml="${OMPI_MCA_pml:-ob1}"
export OMPI_MCA_btl="${OMPI_MCA_btl:-self,vader}"
# The ranks of one machine find each other without a network.
export OMPI_MCA_oob_tcp_if_include="${OMPI_MCA_oob_tcp_if_include:-lo}"

if $is_replaced; then exec mpirun --oversubscribe "$@"; fi

# mpirun takes the ranks' standard error through a pipe: they are told of the terminal behind it, as by kuafu run.
is_terminal=false
if [[ -t 2 ]]; then
  is_terminal=true
  size=$(stty size <&2 2>/dev/null || true) # none: the columns of a terminal that says nothing of its own
  columns=${size#* }
  export KUAFU_TERMINAL_COLUMNS="${KUAFU_TERMINAL_COLUMNS:-$((columns > 0 ? columns : 80))}"
fi

# Sets `line`; of progress that redraws, which is no whole line, on a terminal what there is of it.
next_line() {
  local part code
  is_whole=true
  if ! $is_terminal; then
    IFS= read -r line
    return
  fi
  line=""
  while true; do
    code=0
    IFS= read -r -t 0.1 part || code=$?
    line+=$part
    if ((code <= 128)); then return "$code"; fi
    if [[ "$line" == *$'\r'* ]]; then
      is_whole=false
      return
    fi
  done
}

# Passes lines on, but not the blocks in which mpirun says that a job was aborted whose ranks ended as asked (130), or
# with another code of kuafu (1 to 7) of which it told the reason: those wait for the end.
# Its blocks stand between lines of 74 dashes; what ranks print between such lines is passed on as it comes. The block
# about the "Primary job" waits for the one with the exit code, and is not told without it: mpirun does not always have both.
without_news() {
  local line head block="" first="" held="" is_told=false is_whole=true dashes rest
  printf -v dashes '%74s' ""
  dashes=${dashes// /-}
  while next_line; do
    rest=${line##*$'\r\033[K'} # what mpirun says stands behind progress that was drawn over
    printf %s "${line%"$rest"}"
    line=$rest
    if ! $is_whole; then
      printf %s "$line"
      continue
    fi
    if [[ "$line" != "$dashes" ]]; then
      case "$line" in
        "mpirun: Forwarding signal "*" to job") continue ;;
        "["*"help message help-mpi-api.txt / mpi-abort" | "["*'MCA parameter "orte_base_help_aggregate"'*)
          held+=$line$'\n'
          continue
          ;;
        "kuafu: "*) is_told=true ;;
      esac
      echo "$line"
      continue
    fi
    IFS= read -r head || { echo "$line"; break; }
    block=$line$'\n'$head$'\n'
    if [[ "$head" != "Primary job "* && "$head" != "mpirun detected that one or more processes exited"* &&
      "$head" != "MPI_ABORT was invoked on rank "* ]]; then
      printf %s "$block"
      continue
    fi
    while IFS= read -r line; do
      block+=$line$'\n'
      if [[ "$line" == "$dashes" ]]; then break; fi
    done
    case "$block" in
      *"Primary job "*) first=$block ;;
      *"Exit code:    130"*) first="" ;;
      *"Exit code:    "[1-7]$'\n'* | *"with errorcode "[1-7].*) held+=$first$block first="" ;;
      *) printf %s "$first$block"; first="" ;;
    esac
  done
  printf %s "$line"
  if ! $is_told; then printf %s "$held"; fi
}
# Signals to the group are for the ranks: it ends when mpirun has.
exec {words}> >(trap '' INT TERM HUP USR1 USR2; without_news >&2)
filter=$!

# Ranks read here which signal it was that they get as SIGUSR2: kuafu/base/launcher.h.
marked=$(mktemp)
exec {marks}<>"$marked"
rm -f "$marked"
printf 00 >&"$marks"
export KUAFU_RANKS_LISTEN="/proc/$$/fd/$marks"

# Folders of our own for Open MPI's files, locked while this script or what it starts is alive: what killed ones leave
# goes with the next run (kuafu/record/launch_folders.h, which has the same names and the same rules).
own=()
make_own() { # BASE VARIABLE
  local folder="$1/kuafu-run-$$" lock
  if [[ -n "${!2:-}" || ! -w "$1" ]] || ! command -v flock >/dev/null; then return; fi
  exec {lock}>>"$folder.lock"
  # Another run may have taken the lock's file away before it was locked.
  if ! flock -n "$lock" || [[ ! "$folder.lock" -ef "/proc/$$/fd/$lock" ]]; then return; fi
  mkdir -p "$folder"
  export "$2=$folder"
  own+=("$folder" "$folder.lock")
}
remove_own() {
  if ((${#own[@]} > 0)); then rm -rf "${own[@]}"; fi
}
if [[ -z "${SLURM_JOB_ID:-}${PBS_JOBID:-}${LSB_JOBID:-}${JOB_ID:-}${OMPI_MCA_orte_default_hostfile:-}" ]]; then
  make_own "${TMPDIR:-/tmp}" OMPI_MCA_orte_tmpdir_base
  make_own /dev/shm OMPI_MCA_btl_vader_backing_directory
fi

# mpirun kills its ranks a second after a signal that ends. In a group of its own it gets none from the
# terminal, and it ends with this script, whatever ends that.
set -m
launch=(mpirun --oversubscribe "$@")
# A script that died before setpriv had asked for its signal has another process in its place.
if command -v setpriv >/dev/null; then
  launch=(setpriv --pdeathsig TERM sh -c '[ "$PPID" = "$1" ] || exit 1; shift; exec "$@"' sh "$$" "${launch[@]}")
fi
"${launch[@]}" <&0 2>&"$words" {words}>&- {marks}>&- &
launcher=$!
exec {words}>&-

received=0 first_us=0 wakes=0 ended_by=0
# A terminal and `timeout` send a signal to the process and to its group: what comes at once is a copy.
pass_on() {
  local now_us=${EPOCHREALTIME/[.,]/}
  wakes=$((wakes + 1)) received=$((received + 1))
  if ((received == 1)); then
    first_us=$now_us
    printf %02d "$(kill -l "$1")" >&"$marks"
    # `|| true`: mpirun may have ended before the signal came; `wait` below has its exit code.
    kill -USR2 "$launcher" 2>/dev/null || true
  elif ((now_us - first_us > 500000)); then
    ended_by=$(kill -l "$1")
    # `|| true`: mpirun may have ended since the first signal; this script ends by the second.
    kill "-$1" "$launcher" 2>/dev/null || true
  fi
}
trap 'pass_on INT' INT
trap 'pass_on TERM' TERM
trap 'pass_on HUP' HUP
trap 'pass_on TERM' USR2
# `|| true`: mpirun may have ended, and then there is nothing left to save.
trap 'wakes=$((wakes + 1)); kill -USR1 "$launcher" 2>/dev/null || true' USR1

# A signal ends `wait`, not mpirun.
while true; do
  before=$wakes code=0
  wait "$launcher" || code=$?
  if ((wakes == before)); then break; fi
done
# `|| true`: the exit code is mpirun's.
wait "$filter" || true
remove_own
if ((ended_by > 0)); then exit $((128 + ended_by)); fi
exit "$code"
