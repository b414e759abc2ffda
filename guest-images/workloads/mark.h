/* Phase markers shared by all workloads: lines "MARK begin NAME" and "MARK end NAME ... sum=CHECKSUM".
 * MARKNOP is an 8-byte NOP with a magic displacement. It costs nothing, and a tool that watches the instructions
 * (the peer's counting plugin does) can tell by it exactly where a phase begins and ends. */
#ifndef MARK_H
#define MARK_H
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#define MARKNOP() __asm__ volatile("nopl 0x5a7e11ed(%%rax,%%rax,1)" ::: "memory")
static inline uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec;
}
static uint64_t mark_t0;
static inline void mark_begin(const char *n) {
    char b[96];
    int k = snprintf(b, sizeof b, "MARK begin %s\n", n);
    (void)!write(1, b, k);
    mark_t0 = now_ns();
    MARKNOP();
}
static inline void mark_end(const char *n, uint64_t sum) {
    MARKNOP();
    uint64_t d = now_ns() - mark_t0;
    char b[128];
    int k = snprintf(b, sizeof b, "MARK end %s guest_ms=%llu.%03llu sum=%016llx\n", n,
                     (unsigned long long)d / 1000000, (unsigned long long)d / 1000 % 1000,
                     (unsigned long long)sum);
    (void)!write(1, b, k);
}
#endif
