# SPDX-License-Identifier: Apache-2.0
# Compiles every header of the libraries alone: an object library with one line a header, `header_check` for
# folders without LibTorch and `header_check_torch` for those with it (no precompiled header: it would hide
# a missing include). Call after all libraries are there. Neither is part of `all`.
function(kuafu_header_check target property libraries)
  get_property(folders GLOBAL PROPERTY ${property})
  if(property STREQUAL "KUAFU_PLAIN_FOLDERS")  # a folder with both kinds of library needs LibTorch
    get_property(torch_folders GLOBAL PROPERTY KUAFU_TORCH_FOLDERS)
    list(REMOVE_ITEM folders ${torch_folders})
  endif()
  list(REMOVE_DUPLICATES folders)
  set(sources "")
  foreach(folder IN LISTS folders)
    file(GLOB headers CONFIGURE_DEPENDS "${folder}/*.h")
    foreach(header IN LISTS headers)
      file(RELATIVE_PATH name "${PROJECT_SOURCE_DIR}/src" "${header}")
      set(source "${CMAKE_BINARY_DIR}/generated/header_check/${name}.cpp")
      file(CONFIGURE OUTPUT "${source}" CONTENT "#include \"${name}\"\n")
      list(APPEND sources "${source}")
    endforeach()
  endforeach()
  if(sources)
    add_library(${target} OBJECT EXCLUDE_FROM_ALL ${sources})
    kuafu_target(${target} VISIBILITY PRIVATE LIBS ${libraries})
  else()
    add_custom_target(${target})
  endif()
endfunction()

kuafu_header_check(header_check KUAFU_PLAIN_FOLDERS "")
kuafu_header_check(header_check_torch KUAFU_TORCH_FOLDERS torch::cpu)
