// Lets one of a program's calls on the files below a directory fail, as a device or a full disk would. For LD_PRELOAD.
//
//   FAIL_BELOW   the directory
//   FAIL_AT      the number of the first call that fails, from 1; 0: none
//   FAIL_CALL    only calls of this name are counted, such as fsync
//   FAIL_COUNT   how many fail from there on
//   FAIL_ERRNO   the error. ENOSPC is given only by calls that may need room, and only these are counted then
//   FAIL_REPORT  a file: a line for each call that failed, and the number of calls at the end
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static atomic_long calls;

static long setting(const char *name, long otherwise) {
    const char *text = getenv(name);
    return text ? atol(text) : otherwise;
}

static void report(const char *what, long number, const char *path) {
    const char *file = getenv("FAIL_REPORT");
    if (!file) return;
    char line[5000];
    int len = snprintf(line, sizeof line, "%s %ld %s\n", what, number, path);
    // Straight to the kernel: these calls are not to be counted.
    int fd = (int)syscall(SYS_openat, AT_FDCWD, file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (fd < 0) return;
    if (len > 0 && syscall(SYS_write, fd, line, (size_t)len) < 0) {}
    syscall(SYS_close, fd);
}

static int fails_at(const char *what, int needs_room, const char *path) {
    const char *below = getenv("FAIL_BELOW");
    size_t len = below ? strlen(below) : 0;
    if (!below || strncmp(path, below, len) != 0) return 0;
    const char *only = getenv("FAIL_CALL");
    if (only && strcmp(only, what) != 0) return 0;
    long error = setting("FAIL_ERRNO", EIO);
    if (error == ENOSPC && !needs_room) return 0;
    long number = atomic_fetch_add(&calls, 1) + 1, at = setting("FAIL_AT", 0);
    if (at == 0 || number < at || number - at >= setting("FAIL_COUNT", 1)) return 0;
    report(what, number, path);
    errno = (int)error;
    return 1;
}

static int fails_on(const char *what, int needs_room, int fd) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    long len = syscall(SYS_readlinkat, AT_FDCWD, link, path, sizeof path - 1);
    if (len < 0) return 0;
    path[len] = 0;
    return fails_at(what, needs_room, path);
}

__attribute__((destructor)) static void count(void) { report("calls", atomic_load(&calls), ""); }

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define MODE(flags) \
    mode_t mode = 0; \
    if ((flags) & (O_CREAT | O_TMPFILE)) { va_list more; va_start(more, flags); mode = va_arg(more, mode_t); va_end(more); }

int open(const char *path, int flags, ...) {
    MODE(flags)
    return fails_at("open", flags & O_CREAT, path) ? -1 : NEXT(open)(path, flags, mode);
}
int open64(const char *path, int flags, ...) {
    MODE(flags)
    return fails_at("open", flags & O_CREAT, path) ? -1 : NEXT(open64)(path, flags, mode);
}
int openat(int dir, const char *path, int flags, ...) {
    MODE(flags)
    return fails_at("openat", flags & O_CREAT, path) ? -1 : NEXT(openat)(dir, path, flags, mode);
}
int openat64(int dir, const char *path, int flags, ...) {
    MODE(flags)
    return fails_at("openat", flags & O_CREAT, path) ? -1 : NEXT(openat64)(dir, path, flags, mode);
}
int mkdir(const char *path, mode_t mode) { return fails_at("mkdir", 1, path) ? -1 : NEXT(mkdir)(path, mode); }
int rename(const char *from, const char *to) { return fails_at("rename", 1, to) ? -1 : NEXT(rename)(from, to); }
int unlink(const char *path) { return fails_at("unlink", 0, path) ? -1 : NEXT(unlink)(path); }
ssize_t read(int fd, void *to, size_t len) { return fails_on("read", 0, fd) ? -1 : NEXT(read)(fd, to, len); }
ssize_t pread(int fd, void *to, size_t len, off_t at) {
    return fails_on("pread", 0, fd) ? -1 : NEXT(pread)(fd, to, len, at);
}
ssize_t pread64(int fd, void *to, size_t len, off64_t at) {
    return fails_on("pread", 0, fd) ? -1 : NEXT(pread64)(fd, to, len, at);
}
ssize_t write(int fd, const void *from, size_t len) {
    return fails_on("write", 1, fd) ? -1 : NEXT(write)(fd, from, len);
}
ssize_t writev(int fd, const struct iovec *from, int count) {
    return fails_on("writev", 1, fd) ? -1 : NEXT(writev)(fd, from, count);
}
ssize_t pwrite(int fd, const void *from, size_t len, off_t at) {
    return fails_on("pwrite", 1, fd) ? -1 : NEXT(pwrite)(fd, from, len, at);
}
ssize_t pwrite64(int fd, const void *from, size_t len, off64_t at) {
    return fails_on("pwrite", 1, fd) ? -1 : NEXT(pwrite64)(fd, from, len, at);
}
int fsync(int fd) { return fails_on("fsync", 1, fd) ? -1 : NEXT(fsync)(fd); }
int fdatasync(int fd) { return fails_on("fdatasync", 1, fd) ? -1 : NEXT(fdatasync)(fd); }
int ftruncate(int fd, off_t len) { return fails_on("ftruncate", 1, fd) ? -1 : NEXT(ftruncate)(fd, len); }
int ftruncate64(int fd, off64_t len) { return fails_on("ftruncate", 1, fd) ? -1 : NEXT(ftruncate64)(fd, len); }
void *mmap(void *at, size_t len, int how, int flags, int fd, off_t from) {
    if (fd >= 0 && fails_on("mmap", 0, fd)) return MAP_FAILED;
    return NEXT(mmap)(at, len, how, flags, fd, from);
}
