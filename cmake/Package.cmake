# SPDX-License-Identifier: Apache-2.0
# find_package(Kuafu) for plug-ins built out of tree, on this build folder and where it is installed:
# `cmake --install BUILD --prefix PREFIX` copies the two programs, the headers and the package file.
# Suites, baselines and the Python of reports stay in the source tree, which the programs remember.
include(CMakePackageConfigHelpers)

set(Kuafu_PROGRAMS "${CMAKE_RUNTIME_OUTPUT_DIRECTORY}")
set(Kuafu_HEADERS "\"${PROJECT_SOURCE_DIR}/src\" \"${CMAKE_BINARY_DIR}/generated\"")
configure_file("${CMAKE_CURRENT_LIST_DIR}/KuafuConfig.cmake.in" "${CMAKE_BINARY_DIR}/KuafuConfig.cmake" @ONLY)
write_basic_package_version_file("${CMAKE_BINARY_DIR}/KuafuConfigVersion.cmake"
  VERSION ${PROJECT_VERSION} COMPATIBILITY SameMinorVersion)

# PREFIX/lib/cmake/Kuafu: three folders below the prefix, wherever that is moved to.
set(Kuafu_PROGRAMS "\${CMAKE_CURRENT_LIST_DIR}/../../../bin")
set(Kuafu_HEADERS "\"\${CMAKE_CURRENT_LIST_DIR}/../../../include\"")
configure_file("${CMAKE_CURRENT_LIST_DIR}/KuafuConfig.cmake.in" "${CMAKE_BINARY_DIR}/install/KuafuConfig.cmake" @ONLY)
install(FILES "${CMAKE_BINARY_DIR}/install/KuafuConfig.cmake" "${CMAKE_BINARY_DIR}/KuafuConfigVersion.cmake"
  DESTINATION lib/cmake/Kuafu)
foreach(folder IN ITEMS "${PROJECT_SOURCE_DIR}/src/kuafu" "${CMAKE_BINARY_DIR}/generated/kuafu")
  install(DIRECTORY "${folder}" DESTINATION include FILES_MATCHING PATTERN "*.h" PATTERN "*.def")
endforeach()
# As they are: their search paths to LibTorch, MPI and HDF5 are absolute and stay.
foreach(program IN ITEMS kuafu kuafu-worker)
  if(TARGET ${program})
    install(PROGRAMS "$<TARGET_FILE:${program}>" DESTINATION bin)
  endif()
endforeach()
