// SPDX-License-Identifier: Apache-2.0
//
// Preloaded into a run: the disk under its checkpoints ends in the middle of a save.
//
//   KUAFU_TEST_DISK=kill:5000   SIGKILL at byte 5000 of what is written below a *.partial folder;
//                               a call of fsync or rename there counts as one byte
//   KUAFU_TEST_DISK=full:5000   no space left from byte 5000 on
//   KUAFU_TEST_DISK=count:FILE  writes the number of bytes to FILE at each rename
//   KUAFU_TEST_DISK_RANK=1      on this MPI rank only
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static long long done = 0;

static const char* mode(void) {
  const char* rank = getenv("KUAFU_TEST_DISK_RANK");
  const char* mine = getenv("OMPI_COMM_WORLD_RANK");
  if (rank != NULL && (mine == NULL || strcmp(rank, mine) != 0)) return "";
  const char* m = getenv("KUAFU_TEST_DISK");
  return m == NULL ? "" : m;
}

static int is_save(int file) {
  char link[64], path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  const ssize_t n = readlink(link, path, sizeof path - 1);
  if (n < 0) return 0;
  path[n] = '\0';
  return strstr(path, ".partial") != NULL;
}

/// How many of the next `bytes` the disk takes; those that it does not take are an error.
static long long taken(long long bytes) {
  const char* m = mode();
  const int is_kill = strncmp(m, "kill:", 5) == 0, is_full = strncmp(m, "full:", 5) == 0;
  const long long end = is_kill || is_full ? atoll(m + 5) : -1;
  pthread_mutex_lock(&lock);
  long long n = bytes;
  if (end >= 0 && done + bytes > end) n = done < end ? end - done : 0;
  done += n;
  pthread_mutex_unlock(&lock);
  return n;
}

static void stop(void) {
  if (strncmp(mode(), "kill:", 5) == 0) raise(SIGKILL);
  errno = ENOSPC;
}

ssize_t write(int file, const void* data, size_t bytes) {
  ssize_t (*real)(int, const void*, size_t) = dlsym(RTLD_NEXT, "write");
  if (mode()[0] == '\0' || !is_save(file)) return real(file, data, bytes);
  const long long n = taken((long long)bytes);
  if (n == (long long)bytes) return real(file, data, bytes);
  if (n > 0 && real(file, data, (size_t)n) < 0) return -1;
  stop();
  return -1;
}

int fsync(int file) {
  int (*real)(int) = dlsym(RTLD_NEXT, "fsync");
  if (mode()[0] != '\0' && is_save(file) && taken(1) == 0) {
    stop();
    return -1;
  }
  return real(file);
}

int rename(const char* from, const char* to) {
  int (*real)(const char*, const char*) = dlsym(RTLD_NEXT, "rename");
  const char* m = mode();
  if (m[0] == '\0' || strstr(from, ".partial") == NULL) return real(from, to);
  if (taken(1) == 0) {
    stop();
    return -1;
  }
  if (strncmp(m, "count:", 6) == 0) {
    FILE* out = fopen(m + 6, "w");
    if (out != NULL) {
      fprintf(out, "%lld\n", done);
      fclose(out);
    }
  }
  return real(from, to);
}
