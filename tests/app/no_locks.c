// SPDX-License-Identifier: Apache-2.0
#include <errno.h>

/// What flock() does on file systems mounted without locks.
int flock(int file, int operation) {
  (void)file;
  (void)operation;
  errno = ENOLCK;
  return -1;
}
