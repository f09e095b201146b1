// SPDX-License-Identifier: Apache-2.0
//
// Preloaded into a run: the disk under its checkpoints ends in the middle of a save.
//
//   KUAFU_TEST_DISK=kill:5000   SIGKILL at byte 5000 of what is written below a *.partial folder;
//                               a call of fsync or rename there counts as one byte
//   KUAFU_TEST_DISK=full:5000   no space left from byte 5000 on
//   KUAFU_TEST_DISK=count:FILE  writes the number of bytes to FILE at each rename
//   KUAFU_TEST_DISK_RANK=1      on this MPI rank only
//
// Or a disk that fills and stays full, for all processes of a run together:
//
//   KUAFU_TEST_DISK=from:50     from change 50 on (a write, fsync or rename, a new file, folder or link) no
//                               space is left for any change; from:-1 counts alone
//   KUAFU_TEST_DISK_FOLDER=DIR  the disk: what lies below
//   KUAFU_TEST_DISK_COUNTED=X   only changes of paths with X in them count to 50
//   KUAFU_TEST_DISK_STATE=FILE  16 + 4096 zero bytes, to be: changes that counted, whether one was refused
//                               (8 bytes each), the path of the first
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
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

/// The path of an open file; "" of what has none.
static const char* path_of(int file, char path[4096]) {
  char link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  const ssize_t n = readlink(link, path, 4095);
  path[n < 0 ? 0 : n] = '\0';
  return path;
}

static int is_save(int file) {
  char path[4096];
  return strstr(path_of(file, path), ".partial") != NULL;
}

struct Disk {
  _Atomic long long done, is_full;
  char first[4096];
};
static struct Disk* disk = NULL;

static void open_disk(void) {
  const char* state = getenv("KUAFU_TEST_DISK_STATE");
  int (*real)(const char*, int, ...) = dlsym(RTLD_NEXT, "open");
  const int file = state == NULL ? -1 : real(state, O_RDWR | O_CLOEXEC);
  void* there = mmap(NULL, sizeof *disk, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (file < 0 || there == MAP_FAILED) abort();
  close(file);
  disk = there;
}

enum Answer { kTaken, kFirst, kRefused };

/// What the disk that fills says to one more change of the path.
static enum Answer change(const char* path) {
  const char *m = mode(), *folder = getenv("KUAFU_TEST_DISK_FOLDER"),
             *counted = getenv("KUAFU_TEST_DISK_COUNTED");
  if (strncmp(m, "from:", 5) != 0 || folder == NULL) return kTaken;
  const size_t n = strlen(folder);
  if (strncmp(path, folder, n) != 0 || path[n] != '/') return kTaken;
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, open_disk);
  if (atomic_load(&disk->is_full)) return kRefused;
  if (counted != NULL && strstr(path + n, counted) == NULL) return kTaken;
  const long long end = atoll(m + 5), before = atomic_fetch_add(&disk->done, 1);
  if (end < 0 || before < end) return kTaken;
  long long no = 0;
  if (!atomic_compare_exchange_strong(&disk->is_full, &no, 1)) return kRefused;
  strncpy(disk->first, path, sizeof disk->first - 1);
  return kFirst;
}

static int is_refused(const char* path) {
  if (change(path) == kTaken) return 0;
  errno = ENOSPC;
  return 1;
}

static int is_there(const char* path) {
  struct stat status;
  return lstat(path, &status) == 0;
}

static int is_full_for(int file) {
  char path[4096];
  return is_refused(path_of(file, path));
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
  if (strncmp(mode(), "from:", 5) == 0) {
    char path[4096];
    const enum Answer answer = change(path_of(file, path));
    if (answer == kTaken) return real(file, data, bytes);
    if (answer == kFirst && bytes > 1) return real(file, data, bytes / 2);  // the last room
    errno = ENOSPC;
    return -1;
  }
  if (mode()[0] == '\0' || !is_save(file)) return real(file, data, bytes);
  const long long n = taken((long long)bytes);
  if (n == (long long)bytes) return real(file, data, bytes);
  if (n > 0 && real(file, data, (size_t)n) < 0) return -1;
  stop();
  return -1;
}

int fsync(int file) {
  int (*real)(int) = dlsym(RTLD_NEXT, "fsync");
  if (is_full_for(file)) return -1;
  if (mode()[0] != '\0' && is_save(file) && taken(1) == 0) {
    stop();
    return -1;
  }
  return real(file);
}

int rename(const char* from, const char* to) {
  int (*real)(const char*, const char*) = dlsym(RTLD_NEXT, "rename");
  const char* m = mode();
  if (is_refused(to)) return -1;
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

ssize_t pwrite(int file, const void* data, size_t bytes, off_t at) {
  ssize_t (*real)(int, const void*, size_t, off_t) = dlsym(RTLD_NEXT, "pwrite");
  return is_full_for(file) ? -1 : real(file, data, bytes, at);
}

ssize_t writev(int file, const struct iovec* parts, int num_parts) {
  ssize_t (*real)(int, const struct iovec*, int) = dlsym(RTLD_NEXT, "writev");
  return is_full_for(file) ? -1 : real(file, parts, num_parts);
}

int mkdir(const char* path, mode_t mode) {
  int (*real)(const char*, mode_t) = dlsym(RTLD_NEXT, "mkdir");
  return !is_there(path) && is_refused(path) ? -1 : real(path, mode);
}

int symlink(const char* to, const char* path) {
  int (*real)(const char*, const char*) = dlsym(RTLD_NEXT, "symlink");
  return is_refused(path) ? -1 : real(to, path);
}

#define OPEN(name)                                                                \
  int name(const char* path, int flags, ...) {                                    \
    int (*real)(const char*, int, ...) = dlsym(RTLD_NEXT, #name);                 \
    va_list rest;                                                                 \
    va_start(rest, flags);                                                        \
    const mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0; \
    va_end(rest);                                                                 \
    if ((flags & O_CREAT) != 0 && !is_there(path) && is_refused(path)) return -1; \
    return real(path, flags, mode);                                               \
  }
OPEN(open)
OPEN(open64)
