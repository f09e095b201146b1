# SPDX-License-Identifier: Apache-2.0
"""Makes `import torch` work and every rank one thread, whatever the shell looks like."""

import os
import shutil
import sys
import sysconfig
from pathlib import Path

_MARK = "KUAFU_TORCH_PATH_SET"


def _toolkit_libraries():
    """Library folders of the CUDA toolkit whose nvcc is on the path; empty without one."""
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        return []
    root = Path(nvcc).resolve().parent.parent
    folders = [root / "lib64", root / "lib", root / "extras" / "CUPTI" / "lib64"]
    return [str(f) for f in folders if f.is_dir()]


def lacks_for_compiling():
    """Why torch.compile cannot work here; empty where it can. Its CPU code is C++ that it compiles at
    run time, with a wrapper that includes Python.h."""
    if shutil.which("g++") is None and shutil.which("clang++") is None:
        return "torch.compile makes C++ and finds neither g++ nor clang++ on the path; install g++"
    headers = Path(sysconfig.get_paths()["include"]) / "Python.h"
    return "" if headers.is_file() else f"torch.compile includes {headers}, which is not there; install python3-dev"


def prepare():
    """Call before anything else: one thread per process, and torch's libraries findable.

    The small install leaves CUDA's libraries to the toolkit; where the loader does not know them,
    the program starts itself again with LD_LIBRARY_PATH set, once."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # ranks are forked; a pool would not be
    try:
        import torch
    except (ImportError, OSError) as error:
        folders = _toolkit_libraries()
        if os.environ.get(_MARK) or not folders:
            sys.exit(f"cannot import torch: {error}\nRun scripts/setup.sh, then use the Python of "
                     ".venv")
        os.environ[_MARK] = "1"
        os.environ["LD_LIBRARY_PATH"] = ":".join(
            folders + [p for p in [os.environ.get("LD_LIBRARY_PATH")] if p])
        os.execv(sys.executable, [sys.executable] + sys.argv)
    torch.set_num_threads(1)
