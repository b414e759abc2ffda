/* Functions that count their calls. Each function is on a page of its own, which is not present at the first call in a
 * process. Several processes run at the same time, and a timer's signals interrupt them. */
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#define PROCESSES 3
#define CALLS 400

static unsigned *counts;

#define F(n)                                                                                                                      \
    __attribute__((noinline, aligned(4096))) static void f##n(void) { __atomic_fetch_add(&counts[n], 1, __ATOMIC_RELAXED); }
#define TEN(n) F(n##0) F(n##1) F(n##2) F(n##3) F(n##4) F(n##5) F(n##6) F(n##7) F(n##8) F(n##9)
/* TEN(0) is left out, because a number with a leading zero would be octal. */
TEN(1) TEN(2) TEN(3) TEN(4) TEN(5)

#define NAMES(n) f##n##0, f##n##1, f##n##2, f##n##3, f##n##4, f##n##5, f##n##6, f##n##7, f##n##8, f##n##9
static void (*const functions[])(void) = {NAMES(1), NAMES(2), NAMES(3), NAMES(4), NAMES(5)};
#define FUNCTIONS (sizeof functions / sizeof *functions)

/* The signal handler calls a function, too. */
static void on_signal(int number) {
    (void)number;
    f10();
}

static void work(unsigned seed) {
    struct itimerval often = {{0, 5000}, {0, 5000}};
    signal(SIGALRM, on_signal);
    setitimer(ITIMER_REAL, &often, 0);
    for (int i = 0; i < CALLS; i++) {
        seed = seed * 1664525 + 1013904223;
        functions[(seed >> 16) % FUNCTIONS]();
        for (volatile int wait = 0; wait < 20000; wait++) {
        }
    }
}

int main(void) {
    counts = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (unsigned i = 0; i < PROCESSES; i++)
        if (fork() == 0) {
            work(i);
            _exit(0);
        }
    while (wait(0) > 0) {
    }
    for (unsigned i = 0; i < FUNCTIONS; i++) printf("called %p %u\n", (void *)functions[i], counts[i + 10]);
    puts("that was all");
    return 0;
}
