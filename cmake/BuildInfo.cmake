# SPDX-License-Identifier: Apache-2.0
# kuafu_build_info: what was built, with what. The headers are written when CMake configures; the commit is
# looked up at every build, but its file only changes when the commit or the dirty flag does.

find_package(Git QUIET)
set(KUAFU_FLAGS "${CMAKE_CXX_FLAGS} ${CMAKE_CXX_FLAGS_${CMAKE_BUILD_TYPE}}")
get_target_property(options kuafu_options INTERFACE_COMPILE_OPTIONS)
if(CMAKE_BUILD_TYPE STREQUAL "Debug")
  string(APPEND KUAFU_FLAGS " ${CMAKE_CXX_FLAGS_DEBUG} -Og")
else()
  string(APPEND KUAFU_FLAGS " ${CMAKE_CXX_FLAGS_RELEASE} -O2")
endif()
if(KUAFU_SANITIZE)
  string(APPEND KUAFU_FLAGS " -fsanitize=${KUAFU_SANITIZE}")
endif()
string(REGEX REPLACE " +" " " KUAFU_FLAGS "${KUAFU_FLAGS} -std=c++20 -fPIC -DNDEBUG")
string(STRIP "${KUAFU_FLAGS}" KUAFU_FLAGS)
foreach(feature IN ITEMS TORCH CUDA NCCL MPI HDF5 CBC URING UTF8PROC PCRE2)
  if(KUAFU_HAS_${feature})
    set(KUAFU_${feature}_FOUND true)
  else()
    set(KUAFU_${feature}_FOUND false)
  endif()
endforeach()

set(generated "${CMAKE_BINARY_DIR}/generated/kuafu/base")
foreach(header IN ITEMS build_info build_folders)
  configure_file("${CMAKE_CURRENT_LIST_DIR}/${header}.h.in" "${generated}/${header}.h" @ONLY)
endforeach()

add_custom_target(kuafu_git_state
  COMMAND ${CMAKE_COMMAND} -D "GIT=${GIT_EXECUTABLE}" -D "SOURCE=${PROJECT_SOURCE_DIR}"
          -D "OUTPUT=${generated}/git_state.cpp" -P "${CMAKE_CURRENT_LIST_DIR}/git_state.cmake"
  BYPRODUCTS "${generated}/git_state.cpp"
  COMMENT "" VERBATIM)
add_library(kuafu_build_info STATIC "${generated}/git_state.cpp")
add_library(kuafu::build_info ALIAS kuafu_build_info)
add_dependencies(kuafu_build_info kuafu_git_state)
kuafu_target(kuafu_build_info VISIBILITY PUBLIC)
