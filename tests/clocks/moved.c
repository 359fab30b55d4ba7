/* A wall clock that a test moves: LD_PRELOADed into a server, it adds what the file named by
 * LOCK_TEST_CLOCK says, in ms, to what the system's clock says. The monotonic clock is left alone, as
 * it is by whoever sets a machine's time.
 *
 * Valkey from 8.1 on opens modules so that they find their own libraries' functions before those that
 * were preloaded; here they are opened without that. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static _Atomic int64_t *offset_ms;

__attribute__((constructor)) static void map_the_offset(void) {
    const char *path = getenv("LOCK_TEST_CLOCK");
    int file = path == NULL ? -1 : open(path, O_RDONLY);
    if (file == -1) return;
    void *page = mmap(NULL, sizeof *offset_ms, PROT_READ, MAP_SHARED, file, 0);
    if (page != MAP_FAILED) offset_ms = page;
    close(file);
}

static void move(struct timespec *ts) {
    int64_t ms = offset_ms == NULL ? 0 : atomic_load(offset_ms);
    int64_t ns = ts->tv_nsec + ms % 1000 * 1000000;
    ts->tv_sec += ms / 1000;
    if (ns < 0) {
        ns += 1000000000;
        ts->tv_sec--;
    } else if (ns >= 1000000000) {
        ns -= 1000000000;
        ts->tv_sec++;
    }
    ts->tv_nsec = ns;
}

int clock_gettime(clockid_t clock, struct timespec *ts) {
    int status = (int)syscall(SYS_clock_gettime, clock, ts);
    if (status == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) move(ts);
    return status;
}

int gettimeofday(struct timeval *restrict tv, void *restrict zone) {
    (void)zone;
    struct timespec ts;
    int status = clock_gettime(CLOCK_REALTIME, &ts);
    if (status == 0) {
        tv->tv_sec = ts.tv_sec;
        tv->tv_usec = ts.tv_nsec / 1000;
    }
    return status;
}

time_t time(time_t *place) {
    struct timespec ts;
    if (clock_gettime(CLOCK_REALTIME, &ts) != 0) return (time_t)-1;
    if (place != NULL) *place = ts.tv_sec;
    return ts.tv_sec;
}

void *dlopen(const char *path, int flags) {
    void *(*next)(const char *, int) = (void *(*)(const char *, int))dlsym(RTLD_NEXT, "dlopen");
    return next(path, flags & ~RTLD_DEEPBIND);
}
