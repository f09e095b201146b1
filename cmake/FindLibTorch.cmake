# SPDX-License-Identifier: Apache-2.0
# LibTorch as the C++ side of the Python package `torch`, without the package's own CMake files (they
# append to global flags and need a GPU toolkit).
#
# Looks in KUAFU_TORCH_DIR, then the .venv of the source tree, then the python3 on the path. Sets
# LibTorch_FOUND, LibTorch_VERSION, LibTorch_DIRECTORY, LibTorch_RPATH, or LibTorch_REASON, and defines
#   torch::c10    libc10
#   torch::cpu    libtorch_cpu, the headers, and the run-time search path
#   torch::c10_cuda  libc10_cuda
#   torch::cuda   torch::cpu plus libtorch_cuda, always loaded (only where CUDA is used)

set(LibTorch_FOUND FALSE)
set(LibTorch_REASON "")
set(candidates "")
if(KUAFU_TORCH_DIR)
  set(candidates "${KUAFU_TORCH_DIR}")
else()
  file(GLOB candidates "${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch")
  if(NOT candidates)
    execute_process(
      COMMAND python3 -c "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
      OUTPUT_VARIABLE candidates ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
  endif()
endif()

foreach(candidate IN LISTS candidates)
  if(NOT LibTorch_FOUND AND EXISTS "${candidate}/lib/libtorch_cpu.so"
     AND EXISTS "${candidate}/include/ATen/ATen.h")
    # Not resolved: under the source tree ccache knows it again in another checkout.
    cmake_path(ABSOLUTE_PATH candidate NORMALIZE OUTPUT_VARIABLE LibTorch_DIRECTORY)
    set(LibTorch_FOUND TRUE)
  endif()
endforeach()
if(NOT LibTorch_FOUND)
  set(LibTorch_REASON "no torch package in .venv (run scripts/setup.sh, or set KUAFU_TORCH_DIR)")
  return()
endif()

file(STRINGS "${LibTorch_DIRECTORY}/version.py" line REGEX "^__version__")
string(REGEX REPLACE ".*'(.*)'.*" "\\1" LibTorch_VERSION "${line}")

# Where the libraries that LibTorch needs may lie: beside it in the Python environment, or in the
# toolkit. DT_RPATH and not DT_RUNPATH, because it must also serve LibTorch's own dependencies.
set(LibTorch_RPATH "${LibTorch_DIRECTORY}/lib")
file(GLOB wheels "${LibTorch_DIRECTORY}/../nvidia/*/lib")
foreach(wheel IN LISTS wheels)
  file(REAL_PATH "${wheel}" wheel)
  list(APPEND LibTorch_RPATH "${wheel}")
endforeach()
if(CUDAToolkit_FOUND)
  foreach(folder IN ITEMS "${CUDAToolkit_LIBRARY_DIR}" "${CUDAToolkit_LIBRARY_ROOT}/extras/CUPTI/lib64"
                          "${CUDAToolkit_LIBRARY_ROOT}/lib64" "${CUDAToolkit_LIBRARY_ROOT}/lib")
    if(IS_DIRECTORY "${folder}")
      file(REAL_PATH "${folder}" folder)
      list(APPEND LibTorch_RPATH "${folder}")
    endif()
  endforeach()
endif()
list(REMOVE_DUPLICATES LibTorch_RPATH)

add_library(torch::c10 SHARED IMPORTED GLOBAL)
set_target_properties(torch::c10 PROPERTIES
  IMPORTED_LOCATION "${LibTorch_DIRECTORY}/lib/libc10.so")

add_library(torch::cpu SHARED IMPORTED GLOBAL)
set_target_properties(torch::cpu PROPERTIES
  IMPORTED_LOCATION "${LibTorch_DIRECTORY}/lib/libtorch_cpu.so")
target_include_directories(torch::cpu SYSTEM INTERFACE
  "${LibTorch_DIRECTORY}/include" "${LibTorch_DIRECTORY}/include/torch/csrc/api/include")
target_link_libraries(torch::cpu INTERFACE torch::c10)
target_link_options(torch::cpu INTERFACE LINKER:--disable-new-dtags LINKER:--allow-shlib-undefined)
foreach(folder IN LISTS LibTorch_RPATH)
  target_link_options(torch::cpu INTERFACE "LINKER:-rpath,${folder}")
endforeach()

if(KUAFU_HAS_CUDA AND EXISTS "${LibTorch_DIRECTORY}/lib/libtorch_cuda.so")
  # Its allocator, and little else: quick to load.
  add_library(torch::c10_cuda SHARED IMPORTED GLOBAL)
  set_target_properties(torch::c10_cuda PROPERTIES
    IMPORTED_LOCATION "${LibTorch_DIRECTORY}/lib/libc10_cuda.so")
  target_link_libraries(torch::c10_cuda INTERFACE torch::cpu CUDA::cudart)
  # Its kernels register in static initialisers: it must be loaded though no symbol is used.
  add_library(torch::cuda INTERFACE IMPORTED GLOBAL)
  target_link_libraries(torch::cuda INTERFACE torch::cpu
    "-Wl,--push-state,--no-as-needed"
    "${LibTorch_DIRECTORY}/lib/libtorch_cuda.so" "${LibTorch_DIRECTORY}/lib/libc10_cuda.so"
    "-Wl,--pop-state" CUDA::cudart)
endif()
