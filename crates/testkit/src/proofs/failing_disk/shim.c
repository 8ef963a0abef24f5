/* A full or failing disk, as a library to preload into the server under test (proof `disk`).
 *
 * The shipped server has no switch for faults, so this library injects them between the program and the C
 * library, for files in one folder only (DISK_FOLDER). The proof chooses the fault while the server runs,
 * through a file that both have mapped (DISK_ORDERS).
 *
 * A full disk has a number of free bytes, at first none. Making a file longer takes from them, truncating or
 * removing a file gives its bytes back, and overwriting costs nothing. New files cannot be created.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

enum { WELL = 0, FULL = 1, WRITES_FAIL = 2, SYNCS_FAIL = 3 };

struct orders {
    int64_t mode;
    int64_t free_bytes;
    int64_t refused;
};

static volatile struct orders *orders;
static char folder[PATH_MAX];

static ssize_t (*real_write)(int, const void *, size_t);
static ssize_t (*real_pwrite)(int, const void *, size_t, off_t);
static ssize_t (*real_pwrite64)(int, const void *, size_t, off64_t);
static int (*real_fsync)(int);
static int (*real_fdatasync)(int);
static int (*real_ftruncate)(int, off_t);
static int (*real_ftruncate64)(int, off64_t);
static int (*real_unlink)(const char *);
static int (*real_open)(const char *, int, ...);
static int (*real_open64)(const char *, int, ...);

__attribute__((constructor)) static void begin(void)
{
    real_write = dlsym(RTLD_NEXT, "write");
    real_pwrite = dlsym(RTLD_NEXT, "pwrite");
    real_pwrite64 = dlsym(RTLD_NEXT, "pwrite64");
    real_fsync = dlsym(RTLD_NEXT, "fsync");
    real_fdatasync = dlsym(RTLD_NEXT, "fdatasync");
    real_ftruncate = dlsym(RTLD_NEXT, "ftruncate");
    real_ftruncate64 = dlsym(RTLD_NEXT, "ftruncate64");
    real_unlink = dlsym(RTLD_NEXT, "unlink");
    real_open = dlsym(RTLD_NEXT, "open");
    real_open64 = dlsym(RTLD_NEXT, "open64");
    const char *where = getenv("DISK_FOLDER"), *file = getenv("DISK_ORDERS");
    if (!where || !file)
        return;
    snprintf(folder, sizeof folder, "%s/", where);
    int fd = real_open64(file, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return;
    void *mapped = mmap(NULL, sizeof(struct orders), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (mapped != MAP_FAILED)
        orders = mapped;
}

static int64_t mode(void)
{
    return orders ? __atomic_load_n(&orders->mode, __ATOMIC_SEQ_CST) : WELL;
}

static int refuse(int error)
{
    __atomic_add_fetch(&orders->refused, 1, __ATOMIC_SEQ_CST);
    errno = error;
    return -1;
}

static int is_inside(const char *path)
{
    return strncmp(path, folder, strlen(folder)) == 0;
}

/* Whether an open file is in the folder. */
static int is_ours(int fd)
{
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0)
        return 0;
    path[length] = 0;
    return is_inside(path);
}

/* Takes free bytes to make a file longer; whether there were enough. */
static int takes(int64_t bytes)
{
    if (bytes <= 0)
        return 1;
    if (__atomic_sub_fetch(&orders->free_bytes, bytes, __ATOMIC_SEQ_CST) >= 0)
        return 1;
    __atomic_add_fetch(&orders->free_bytes, bytes, __ATOMIC_SEQ_CST);
    return 0;
}

static void gives_back(int64_t bytes)
{
    if (bytes > 0)
        __atomic_add_fetch(&orders->free_bytes, bytes, __ATOMIC_SEQ_CST);
}

/* The error that a write of this many bytes fails with, or 0. */
static int fault_of_write(int fd, int64_t at, int64_t bytes)
{
    int64_t now = mode();
    if ((now != FULL && now != WRITES_FAIL) || !is_ours(fd))
        return 0;
    if (now == WRITES_FAIL)
        return EIO;
    struct stat file;
    if (fstat(fd, &file) != 0)
        return 0;
    if (at < 0)
        at = (fcntl(fd, F_GETFL) & O_APPEND) ? file.st_size : lseek(fd, 0, SEEK_CUR);
    return takes(at + bytes - file.st_size) ? 0 : ENOSPC;
}

ssize_t write(int fd, const void *buffer, size_t bytes)
{
    int fault = fault_of_write(fd, -1, (int64_t)bytes);
    return fault ? refuse(fault) : real_write(fd, buffer, bytes);
}

ssize_t pwrite(int fd, const void *buffer, size_t bytes, off_t at)
{
    int fault = fault_of_write(fd, at, (int64_t)bytes);
    return fault ? refuse(fault) : real_pwrite(fd, buffer, bytes, at);
}

ssize_t pwrite64(int fd, const void *buffer, size_t bytes, off64_t at)
{
    int fault = fault_of_write(fd, at, (int64_t)bytes);
    return fault ? refuse(fault) : real_pwrite64(fd, buffer, bytes, at);
}

int fsync(int fd)
{
    return mode() == SYNCS_FAIL && is_ours(fd) ? refuse(EIO) : real_fsync(fd);
}

int fdatasync(int fd)
{
    return mode() == SYNCS_FAIL && is_ours(fd) ? refuse(EIO) : real_fdatasync(fd);
}

static void shortened(int fd, int64_t bytes)
{
    struct stat file;
    if (mode() == FULL && is_ours(fd) && fstat(fd, &file) == 0)
        gives_back(file.st_size - bytes);
}

int ftruncate(int fd, off_t bytes)
{
    shortened(fd, bytes);
    return real_ftruncate(fd, bytes);
}

int ftruncate64(int fd, off64_t bytes)
{
    shortened(fd, bytes);
    return real_ftruncate64(fd, bytes);
}

/* The path made absolute, as the folder's is. */
static const char *whole(const char *path, char *place)
{
    if (path[0] == '/' || !getcwd(place, PATH_MAX / 2))
        return path;
    size_t length = strlen(place);
    snprintf(place + length, PATH_MAX - length, "/%s", path);
    return place;
}

int unlink(const char *path)
{
    struct stat file;
    char place[PATH_MAX];
    int ours = mode() == FULL && is_inside(whole(path, place)) && stat(path, &file) == 0;
    int ended = real_unlink(path);
    if (ours && ended == 0)
        gives_back((int64_t)file.st_blocks * 512);
    return ended;
}

static int is_full_for(const char *path, int flags)
{
    char place[PATH_MAX];
    return (flags & O_CREAT) && mode() == FULL && is_inside(whole(path, place)) && access(path, F_OK) != 0;
}

int open(const char *path, int flags, ...)
{
    va_list rest;
    va_start(rest, flags);
    mode_t permissions = va_arg(rest, mode_t);
    va_end(rest);
    return is_full_for(path, flags) ? refuse(ENOSPC) : real_open(path, flags, permissions);
}

int open64(const char *path, int flags, ...)
{
    va_list rest;
    va_start(rest, flags);
    mode_t permissions = va_arg(rest, mode_t);
    va_end(rest);
    return is_full_for(path, flags) ? refuse(ENOSPC) : real_open64(path, flags, permissions);
}
