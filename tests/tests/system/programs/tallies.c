/* Counts in a table of structures, for questions about variables by the program's own debug information. The program says when
 * its pages are there, counts, and ends. */
#include <stdio.h>
#include <unistd.h>

enum phase { WAITING = 3, COUNTING, DONE };

struct tally {
    struct tally *next;
    long steps;
    unsigned low : 4, level : 9;
    enum phase phase;
    char name[8];
};

struct tally tallies[2] = { { &tallies[1], 1, 1, 1, WAITING, "first" }, { &tallies[0], 1, 2, 3, WAITING, "second" } };

static void __attribute__((noinline)) advance(struct tally *tally, long by) {
    tally->steps += by;
}

int main(void) {
    puts("the program begins");
    tallies[1].phase = COUNTING;
    for (long step = 1; step <= 10; step++)
        advance(tallies[0].next, step * step);
    tallies[1].level = 300;
    tallies[1].phase = DONE;
    puts("the program has counted");
    return 0;
}
