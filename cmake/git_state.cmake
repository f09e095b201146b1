# SPDX-License-Identifier: Apache-2.0
# cmake -D GIT=... -D SOURCE=... -D OUTPUT=... -P git_state.cmake
# Writes git_state() for build_info.h, leaving the file alone where nothing changed. What lies under
# results/ makes no tree dirty: programs write it, none is made of it, and of two results that are
# recorded one after the other the first would spoil the second.

set(commit "unknown")
set(dirty "true")
# A tree that comes without a history is of the commit that it is said to be.
if(NOT EXISTS "${SOURCE}/.git" AND "$ENV{KUAFU_COMMIT}" MATCHES "^[0-9a-f]+$")
  set(commit "$ENV{KUAFU_COMMIT}")
  set(dirty "false")
elseif(GIT)
  # Another user's checkout (a container, sudo) is still ours to read.
  set(git "${GIT}" -c "safe.directory=${SOURCE}" -C "${SOURCE}")
  execute_process(COMMAND ${git} rev-parse --show-toplevel
    RESULT_VARIABLE failed OUTPUT_VARIABLE top ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
  file(REAL_PATH "${SOURCE}" source)
  if(NOT failed AND top STREQUAL source)
    execute_process(COMMAND ${git} rev-parse HEAD
      RESULT_VARIABLE failed OUTPUT_VARIABLE head ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
    execute_process(COMMAND ${git} --no-optional-locks status --porcelain --untracked-files=no
      -- . ":(exclude)results"
      RESULT_VARIABLE status_failed OUTPUT_VARIABLE changes ERROR_QUIET)
    if(NOT failed AND NOT status_failed)
      set(commit "${head}")
      if(changes STREQUAL "")
        set(dirty "false")
      endif()
    endif()
  endif()
endif()

file(CONFIGURE OUTPUT "${OUTPUT}" @ONLY CONTENT [[
// SPDX-License-Identifier: Apache-2.0
// Written at build time by cmake/git_state.cmake.
#include "kuafu/base/build_info.h"

namespace kuafu {

GitState git_state() { return {"@commit@", @dirty@}; }

}  // namespace kuafu
]])
