#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# mpirun with the settings that Open MPI 4.1 needs on a small or shared machine:
#   scripts/mpirun.sh -n 4 build/release/bin/kuafu-worker ...
# More ranks than cores are allowed and yield to each other, none is bound to a core, and messages go
# through shared memory only. Variables that are already set win.
set -euo pipefail

if [[ $# -eq 0 || "$1" == "--help" ]]; then
  sed -n '3,6s/^# \{0,1\}//p' "$0"
  exit 0
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

exec mpirun --oversubscribe "$@"
