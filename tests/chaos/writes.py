"""Count the calls by which a process changes files, and kill it at one of them: most other moments change nothing.

A library in C is loaded before all others (``LD_PRELOAD``) into every process that is started. It does nothing unless
the environment names the call at which the process shall end. A write is cut in its middle.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

AT, COUNT = "CHAOS_KILL_AT", "CHAOS_COUNT"  # the number of the call; a file for how many there were

SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

static long calls;

/* Whether the process must end now: this call is the one. */
static int is_last(void) {
    const char *at = getenv("CHAOS_KILL_AT"), *file = getenv("CHAOS_COUNT");
    if (!at && !file) return 0;
    long number = __atomic_add_fetch(&calls, 1, __ATOMIC_SEQ_CST);
    if (file) {
        char text[32];
        int length = snprintf(text, sizeof text, "%ld\n", number);
        long out = syscall(SYS_openat, AT_FDCWD, file, O_WRONLY | O_CREAT, 0644);
        if (out >= 0) { syscall(SYS_pwrite64, out, text, length, 0); syscall(SYS_close, out); }
    }
    return at && number == atol(at);
}
static void end(void) { kill(getpid(), SIGKILL); for (;;) pause(); }
static int is_file(int fd) { struct stat facts; return !fstat(fd, &facts) && S_ISREG(facts.st_mode); }

#define REAL(kind, name, ...) static kind (*real)(__VA_ARGS__); if (!real) real = dlsym(RTLD_NEXT, #name)
#define BEFORE(kind, name, types, names) \
    kind name types { REAL(kind, name, ) ; if (is_last()) end(); return ((kind (*) types) real) names; }

ssize_t write(int fd, const void *data, size_t size) {
    REAL(ssize_t, write, int, const void *, size_t);
    if (is_file(fd) && is_last()) { real(fd, data, size / 2); end(); }
    return real(fd, data, size);
}
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    REAL(ssize_t, pwrite64, int, const void *, size_t, off64_t);
    if (is_file(fd) && is_last()) { real(fd, data, size / 2, at); end(); }
    return real(fd, data, size, at);
}
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) { return pwrite64(fd, data, size, at); }

BEFORE(int, rename, (const char *a, const char *b), (a, b))
BEFORE(int, renameat, (int a, const char *b, int c, const char *d), (a, b, c, d))
BEFORE(int, unlink, (const char *a), (a))
BEFORE(int, unlinkat, (int a, const char *b, int c), (a, b, c))
BEFORE(int, rmdir, (const char *a), (a))
BEFORE(int, mkdir, (const char *a, mode_t b), (a, b))
BEFORE(int, link, (const char *a, const char *b), (a, b))
BEFORE(int, ftruncate, (int a, off_t b), (a, b))
BEFORE(int, ftruncate64, (int a, off64_t b), (a, b))
BEFORE(int, fsync, (int a), (a))
BEFORE(int, fdatasync, (int a), (a))

#define OPENS(name) \
    int name(const char *path, int flags, ...) { \
        REAL(int, name, const char *, int, ...); \
        va_list more; va_start(more, flags); mode_t mode = va_arg(more, mode_t); va_end(more); \
        if ((flags & (O_CREAT | O_TRUNC)) && is_last()) end(); \
        return real(path, flags, mode); \
    }
OPENS(open)
OPENS(open64)
"""


def build_library(folder: Path, name: str, source: str) -> Path | None:
    """Compile a library to be preloaded; return None where there is no C compiler."""
    library, file = folder / f"{name}.so", folder / f"{name}.c"
    file.write_text(source)
    build = ["gcc", "-shared", "-fPIC", "-O1", "-o", str(library), str(file), "-ldl"]
    if shutil.which("gcc") is None or subprocess.run(build, capture_output=True, check=False).returncode:
        return None
    return library


def load_everywhere(folder: Path) -> bool:
    """Have the library in all processes that are started from now on; return False where it cannot be made."""
    library = build_library(folder, "writes", SOURCE)
    if library is not None:
        os.environ["LD_PRELOAD"] = " ".join(filter(None, [os.environ.get("LD_PRELOAD"), str(library)]))
    return library is not None


def count_in(file: Path) -> int:
    """Return how many calls a process made whose environment had ``COUNT``."""
    return int(file.read_text()) if file.exists() else 0
