/* A wall clock that a test moves. LD_PRELOADed into a server, this library adds an offset in ms to
 * the system's wall clock. The file named by LOCK_TEST_CLOCK holds the offset. The monotonic clock
 * is left alone, because setting a machine's time doesn't change it either. The file may also hold
 * a second offset that applies from the n-th read of the clock on. So a test can move the clock
 * between two reads in one function.
 *
 * Valkey 8.1 and later open a module with RTLD_DEEPBIND, so that it finds its own libraries'
 * functions before preloaded functions. `dlopen` here removes that flag. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

struct moved {
    _Atomic int64_t offset_ms;
    _Atomic int64_t looks_left;
    _Atomic int64_t later_ms;
};

static struct moved *moved;

__attribute__((constructor)) static void map_the_offset(void) {
    const char *path = getenv("LOCK_TEST_CLOCK");
    int file = path == NULL ? -1 : open(path, O_RDWR);
    if (file == -1) return;
    void *page = mmap(NULL, sizeof *moved, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (page != MAP_FAILED) moved = page;
    close(file);
}

static void add_ms(struct timespec *ts, int64_t ms) {
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

static void move(struct timespec *ts) {
    if (moved == NULL) return;
    if (atomic_load(&moved->looks_left) > 0 && atomic_fetch_sub(&moved->looks_left, 1) == 1) {
        atomic_store(&moved->offset_ms, atomic_load(&moved->later_ms));
    }
    add_ms(ts, atomic_load(&moved->offset_ms));
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

/* A server's only timed waits are those of jemalloc's background thread, by the wall clock. With a
 * clock set back each would end at once, and the thread would take a whole processor. */
int pthread_cond_timedwait(pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict until) {
    struct timespec system = *until;
    if (moved != NULL) add_ms(&system, -atomic_load(&moved->offset_ms));
    return pthread_cond_clockwait(condition, mutex, CLOCK_REALTIME, &system);
}

void *dlopen(const char *path, int flags) {
    void *(*next)(const char *, int) = (void *(*)(const char *, int))dlsym(RTLD_NEXT, "dlopen");
    return next(path, flags & ~RTLD_DEEPBIND);
}
