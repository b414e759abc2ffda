/* flows SEED FIRST COUNT: makes flows. A flow depends only on the seed and on the number of the flow. After each flow,
 * the program calls `end_of_flow`; then `now` describes the flow. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "flows.h"

struct flow now;
u64 written_at, some_flags;
unsigned width;
int own;

static u64 state;
static u8 in_image[ARENA] __attribute__((aligned(4096)));
static u8 *on_heap, *shared, *shared_again, *on_stack;

u64 rnd(void) {
    u64 z = state += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

unsigned below(unsigned limit) { return rnd() % limit; }

void must(int is_good, const char *what) {
    if (is_good)
        return;
    printf("flows failed: %s, error %d; flow%s\n", what, errno, now.story);
    fflush(stdout);
    _exit(1);
}

/* An offset in an arena. Some values cross a page. */
static unsigned some_offset(void) {
    unsigned offset = MARGIN + below(ARENA - 2 * MARGIN);
    switch (below(4)) {
    case 0:
        return (offset | 4095) + 1 - below(MOST);
    case 1:
        return offset;
    default:
        return offset & ~15u;
    }
}

static int is_near(const u8 *one, const u8 *other) { return llabs(one - other) < MARGIN; }

static u8 *place_in(u8 *arena, const u8 *other) {
    for (;;) {
        unsigned offset = some_offset();
        if (offset < MARGIN || offset > ARENA - MARGIN)
            continue;
        u8 *at = arena + offset, *again = alias(at);
        if (!is_near(at, other) && !(again && is_near(again, other)))
            return at;
    }
}

u8 *shared_place(const u8 *other) { return place_in(shared, other); }
u8 *private_place(const u8 *other) { return place_in(below(2) ? in_image : on_heap, other); }

u8 *place(const u8 *other) {
    u8 *arenas[] = {in_image, on_heap, shared, on_stack};
    return place_in(arenas[below(4)], other);
}

u8 *alias(u8 *at) {
    u64 offset = at - shared;
    return offset < ARENA ? shared_again + offset : 0;
}

/* Sets byte `to` of the new flow to byte `from` of the old one. */
static void put(struct flow *new, const struct flow *old, unsigned to, unsigned from) {
    new->value[to] = old->value[from];
    new->from[to] = old->from[from];
}

/* The new byte `i` is the old byte `order[i]`. */
static void reorder(const unsigned *order, unsigned bytes) {
    struct flow old = now;
    for (unsigned i = 0; i < bytes; i++) {
        put(&now, &old, i, order[i]);
        now.apart[i] = 0;
        for (unsigned k = 0; k < bytes; k++)
            now.apart[i] |= (old.apart[order[i]] >> order[k] & 1) << k;
    }
    now.bytes = bytes;
}

static void extend(unsigned bytes, unsigned signs) {
    u64 fill = now.value[now.bytes - 1] & 0x80 ? 0xff : 0;
    for (unsigned i = now.bytes; i < bytes; i++) {
        int is_sign = i < signs;
        now.value[i] = is_sign ? fill : 0;
        now.from[i] = (struct from){is_sign ? SIGNS : ZEROS, written_at};
        now.apart[i] = 0;
    }
    now.bytes = bytes;
}

static void cut(unsigned bytes) {
    for (unsigned i = 0; i < bytes; i++)
        now.apart[i] &= (1u << bytes) - 1;
    now.bytes = bytes;
}

/* Different instructions move the bytes of different parts; a part has so many bytes. */
static void split(unsigned part) {
    for (unsigned i = 0; i < now.bytes; i++)
        for (unsigned k = 0; k < now.bytes; k++)
            if (i / part != k / part)
                now.apart[i] |= 1u << k;
}

static void apply(enum effect effect) {
    unsigned order[MOST], bytes = now.bytes;
    for (unsigned i = 0; i < MOST; i++)
        order[i] = effect == REVERSE       ? (bytes - 1 - i) % MOST
                   : effect == SWAP_HALVES ? i ^ bytes / 2
                   : effect == REPEAT      ? i % bytes
                                           : 0;
    switch (effect) {
    case KEEP:
        return;
    case MAY:
        now.may_split = 1;
        return;
    case SPLIT:
        return split(1);
    case SPLIT_HALVES:
        return split(bytes / 2);
    case REVERSE:
    case SWAP_HALVES:
        return reorder(order, bytes);
    case PATTERN:
        reorder(order, bytes);
        return split(1);
    case REPEAT:
        return reorder(order, MOST);
    case ZERO_2:
        return extend(2, 0);
    case ZERO_4:
        return extend(4, 0);
    case ZERO_8:
        return extend(8, 0);
    case SIGN_2:
        return extend(2, 2);
    case SIGN_4:
        return extend(4, 4);
    case SIGN_8:
        return extend(8, 8);
    case SIGN_4_ZERO_8:
        return extend(8, 4);
    case LOW_1:
        return cut(1);
    case LOW_2:
        return cut(2);
    case LOW_4:
        return cut(4);
    case AGAIN:
        now.may_split = 0;
        for (unsigned i = 0; i < bytes; i++) {
            now.from[i] = (struct from){COMPUTED, written_at};
            now.apart[i] = 0;
        }
    }
}

static void tell(const char *name) {
    size_t length = strlen(now.story);
    snprintf(now.story + length, sizeof now.story - length, " %s", name);
}

static void begin(void) {
    const struct origin *origin = &origins[below(origin_count)];
    now = (struct flow){.bytes = origin->bytes};
    tell(origin->name);
    u8 *at = origin->go(place(0));
    for (unsigned i = 0; i < now.bytes; i++) {
        now.value[i] = at[i];
        if (origin->kind != NONE)
            now.from[i] = (struct from){i < origin->low ? origin->kind : ZEROS, written_at};
    }
    now.at = (u64)at;
}

static const struct hop *some_hop(void) {
    for (;;) {
        const struct hop *hop = below(5) < 3 ? &moves[below(move_count)] : &calls[below(call_count)];
        /* Few flows are cut or computed again, because such a hop makes the flow shorter. */
        int is_rare = hop->effect == AGAIN || (hop->effect >= LOW_1 && hop->effect <= LOW_4);
        if (hop->widths & now.bytes && !(is_rare && below(4)))
            return hop;
    }
}

static void move(void) {
    u8 *from = (u8 *)now.at;
    width = now.bytes;
    some_flags = 0x202 | (rnd() & 0x8d5);
    const struct hop *hop = some_hop();
    tell(hop->name);
    u8 *at = hop->go(place(from), from);
    apply(hop->effect);
    now.at = (u64)at;
    for (unsigned i = 0; i < now.bytes; i++)
        must(at[i] == now.value[i], "a hop changed the value");
}

/* The test stops here. */
__attribute__((noinline)) void end_of_flow(void) { __asm__ volatile("" ::: "memory"); }

static u8 *pages(int flags, int file) {
    u8 *at = mmap(0, ARENA, PROT_READ | PROT_WRITE, flags, file, 0);
    must(at != MAP_FAILED, "mmap");
    return at;
}

int main(int count, char **arguments) {
    must(count == 4, "arguments");
    u64 seed = strtoull(arguments[1], 0, 0);
    unsigned first = atoi(arguments[2]), flows = atoi(arguments[3]);
    u8 here[ARENA];
    on_stack = here;
    on_heap = pages(MAP_PRIVATE | MAP_ANONYMOUS, -1);
    int file = memfd_create("shared", 0);
    must(file >= 0 && ftruncate(file, ARENA) == 0, "memfd");
    shared = pages(MAP_SHARED, file);
    shared_again = pages(MAP_SHARED, file);
    own = getpid();
    prepare_calls();
    prepare_origins();
    printf("flows end at %p and are at %p\n", (void *)end_of_flow, (void *)&now);
    fflush(stdout);
    for (unsigned i = first; i < first + flows; i++) {
        state = seed * 0x2545f4914f6cdd1d + i;
        rnd();
        number_flow(i);
        begin();
        for (unsigned hops = 1 + below(HOPS); hops; hops--)
            move();
        end_of_flow();
        forget_calls();
    }
    printf("that were all flows\n");
    return 0;
}
