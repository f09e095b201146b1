# SPDX-License-Identifier: Apache-2.0
# What compiles and links: ccache, the linker, and kuafu_options, the flags of every target.

if(KUAFU_CCACHE)
  find_program(KUAFU_CCACHE_PROGRAM ccache)
endif()
if(KUAFU_CCACHE AND KUAFU_CCACHE_PROGRAM)
  # The sloppiness is what lets ccache serve files that use a precompiled header; the base
  # directory makes its hits independent of where the tree is checked out.
  foreach(language IN ITEMS C CXX CUDA)
    set(CMAKE_${language}_COMPILER_LAUNCHER
        ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
        CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_PCH_EXTSUM=1 ${KUAFU_CCACHE_PROGRAM})
  endforeach()
  message(STATUS "Kuafu: ccache   found ${KUAFU_CCACHE_PROGRAM}")
else()
  message(STATUS "Kuafu: ccache   left out")
endif()

set(KUAFU_LINKER "")
foreach(linker IN ITEMS mold lld)
  if(NOT KUAFU_LINKER)
    include(CheckLinkerFlag)
    check_linker_flag(CXX "-fuse-ld=${linker}" KUAFU_HAS_${linker})
    if(KUAFU_HAS_${linker})
      set(KUAFU_LINKER "${linker}")
    endif()
  endif()
endforeach()
if(KUAFU_LINKER)
  message(STATUS "Kuafu: linker   found ${KUAFU_LINKER}")
else()
  message(STATUS "Kuafu: linker   the compiler's own (mold and lld not found)")
endif()

set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)

# Every target compiles with these. They are the same for libraries and executables, down to -fPIC,
# because a precompiled header is only accepted by files compiled with the flags it was made with (-O1 for
# what was made with -O2 is fine). A test's own code need not be fast: -O1 saves a fifth of its time.
add_library(kuafu_options INTERFACE)
set(warnings -Wall -Wextra -Werror)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # g++ 12 reports overlapping copies inside std::string that cannot happen (GCC bug 105651).
  list(APPEND warnings -Wno-restrict)
endif()
# The standard is spelt out, because CMake 3.25 does not know C++20 for nvcc.
target_compile_options(kuafu_options INTERFACE
  "$<$<COMPILE_LANGUAGE:CXX>:-std=c++20;${warnings};-fPIC>"
  "$<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:Release>>:$<IF:$<BOOL:$<TARGET_PROPERTY:KUAFU_IS_TEST>>,-O1,-O2>>"
  "$<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:Debug>>:-Og>"
  "$<$<COMPILE_LANGUAGE:CUDA>:-std=c++20;-Xcompiler=-Wall,-Wextra,-Werror,-fPIC>"
  "$<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings>")
# LibTorch's headers have an assertion that is wrong in user code; Kuafu's own checks never vanish.
target_compile_definitions(kuafu_options INTERFACE NDEBUG)
target_link_libraries(kuafu_options INTERFACE Threads::Threads)
# A library is loaded only where one of its symbols is used: the front stays free of LibTorch.
target_link_options(kuafu_options INTERFACE LINKER:--as-needed)
if(KUAFU_LINKER)
  target_link_options(kuafu_options INTERFACE -fuse-ld=${KUAFU_LINKER})
endif()
if(KUAFU_SANITIZE)
  target_compile_options(kuafu_options INTERFACE
    -fsanitize=${KUAFU_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer -g1)  # lines of files, a quarter less time than -g
  target_link_options(kuafu_options INTERFACE -fsanitize=${KUAFU_SANITIZE})
  message(STATUS "Kuafu: sanitize ${KUAFU_SANITIZE}")
endif()
