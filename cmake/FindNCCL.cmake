# SPDX-License-Identifier: Apache-2.0
# NCCL: the library that libtorch_cuda loads, or, without LibTorch, the one of NCCL_ROOT or the toolkit.
# Sets NCCL_FOUND, NCCL_VERSION, NCCL_LIBRARY, NCCL_INCLUDE_DIR, or NCCL_REASON; target NCCL::NCCL.

set(NCCL_FOUND FALSE)
set(hints "")
if(LibTorch_FOUND AND EXISTS "${LibTorch_DIRECTORY}/lib/libtorch_cuda.so")
  list(JOIN LibTorch_RPATH ":" search)
  execute_process(
    COMMAND ${CMAKE_COMMAND} -E env "LD_LIBRARY_PATH=${search}:$ENV{LD_LIBRARY_PATH}"
            ldd "${LibTorch_DIRECTORY}/lib/libtorch_cuda.so"
    OUTPUT_VARIABLE loaded ERROR_QUIET)
  if(loaded MATCHES "libnccl\\.so\\.2 => (/[^ \n]+)")
    file(REAL_PATH "${CMAKE_MATCH_1}" library)
    set(NCCL_LIBRARY "${library}" CACHE FILEPATH "The libnccl that LibTorch loads")
    get_filename_component(folder "${library}" DIRECTORY)
    list(APPEND hints "${folder}/../include")
  endif()
endif()
find_library(NCCL_LIBRARY NAMES nccl libnccl.so.2
  HINTS ${NCCL_ROOT} ENV NCCL_ROOT ${CUDAToolkit_LIBRARY_DIR} PATH_SUFFIXES lib lib64)
find_path(NCCL_INCLUDE_DIR nccl.h
  HINTS ${hints} ${NCCL_ROOT} ENV NCCL_ROOT ${CUDAToolkit_INCLUDE_DIRS} PATH_SUFFIXES include)

if(NOT NCCL_INCLUDE_DIR)
  set(NCCL_REASON "nccl.h not found (set NCCL_ROOT)")
elseif(NOT NCCL_LIBRARY)
  set(NCCL_REASON "libnccl not found (set NCCL_ROOT)")
else()
  file(STRINGS "${NCCL_INCLUDE_DIR}/nccl.h" lines REGEX "#define NCCL_(MAJOR|MINOR|PATCH) ")
  string(REGEX REPLACE ".*MAJOR ([0-9]+).*MINOR ([0-9]+).*PATCH ([0-9]+).*" "\\1.\\2.\\3"
         NCCL_VERSION "${lines}")
  set(NCCL_FOUND TRUE)
  add_library(NCCL::NCCL UNKNOWN IMPORTED GLOBAL)
  set_target_properties(NCCL::NCCL PROPERTIES IMPORTED_LOCATION "${NCCL_LIBRARY}")
  target_include_directories(NCCL::NCCL SYSTEM INTERFACE "${NCCL_INCLUDE_DIR}")
  target_link_libraries(NCCL::NCCL INTERFACE CUDA::cudart)
endif()
mark_as_advanced(NCCL_LIBRARY NCCL_INCLUDE_DIR)
