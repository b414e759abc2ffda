/* Hops through the kernel and the C library, and hops of blocks. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#include "flows.h"

enum { PAGE = 4096, MOST_MAPPINGS = 64 };

/* For the hops in moves.c: the pipes of the companion, and the alarm. */
int there, back, rang;
u8 passed_on;
struct itimerval soon = {{0, 0}, {0, 150}};

static int pipe_ends[2], second_pipe[2], sockets[2], datagrams[2], file, events;
static struct {
    u8 *at;
    size_t bytes;
} mappings[MOST_MAPPINGS];
static unsigned mapping_count;
static void *(*volatile copy)(void *, const void *, size_t) = memcpy;
static void *(*volatile move)(void *, const void *, size_t) = memmove;

/* A random block around the value: the number of bytes before the value, and the number of all bytes. */
struct block {
    unsigned before, bytes;
};

static struct block around(unsigned unit) {
    unsigned before = below(3) ? below(64) * unit : 0;
    unsigned bytes = before + width + (below(3) ? below(200) : 0);
    return (struct block){before, (bytes + unit - 1) / unit * unit};
}

/* REP MOVS, upward or downward. */
#define REP_MOVS(letter, unit)                                                                                         \
    static u8 *rep_movs##letter(u8 *to, u8 *from) {                                                                    \
        struct block block = around(unit);                                                                             \
        u8 *source = from - block.before, *target = to - block.before;                                                 \
        u64 count = block.bytes / unit;                                                                                \
        if (below(2)) {                                                                                                \
            source += block.bytes - unit, target += block.bytes - unit;                                                \
            __asm__ volatile("std; rep movs" #letter "; cld" : "+S"(source), "+D"(target), "+c"(count)::"memory");     \
        } else                                                                                                         \
            __asm__ volatile("rep movs" #letter : "+S"(source), "+D"(target), "+c"(count)::"memory");                  \
        return to;                                                                                                     \
    }
REP_MOVS(b, 1)
REP_MOVS(w, 2)
REP_MOVS(d, 4)
REP_MOVS(q, 8)

static u8 *library_copy(u8 *to, u8 *from) {
    struct block block = around(1);
    copy(to - block.before, from - block.before, block.bytes);
    return to;
}

/* Moves the value a few bytes upward or downward, after a move to the new place. */
static u8 *overlapping_move(u8 *to, u8 *from) {
    library_copy(to, from);
    u8 *beside = to + below(48) - 24;
    struct block block = around(1);
    move(beside - block.before, to - block.before, block.bytes);
    return beside;
}

static u8 *overlapping_rep_movsb(u8 *to, u8 *from) {
    library_copy(to, from);
    u8 *beside = to - 1 - below(20), *source = to, *target = beside;
    u64 count = width + below(30);
    __asm__ volatile("rep movsb" : "+S"(source), "+D"(target), "+c"(count)::"memory");
    return beside;
}

static void put_in(int end, const u8 *from, unsigned bytes) {
    must(write(end, from, bytes) == (ssize_t)bytes, "writing");
}

static void take_out(int end, u8 *to, unsigned bytes) {
    must(read(end, to, bytes) == (ssize_t)bytes, "reading");
}

static u8 *through(int in, int out, u8 *to, u8 *from) {
    struct block block = around(1);
    put_in(in, from - block.before, block.bytes);
    take_out(out, to - block.before, block.bytes);
    return to;
}

static u8 *through_pipe(u8 *to, u8 *from) { return through(pipe_ends[1], pipe_ends[0], to, from); }
static u8 *through_socket(u8 *to, u8 *from) { return through(sockets[0], sockets[1], to, from); }
static u8 *through_datagram(u8 *to, u8 *from) { return through(datagrams[1], datagrams[0], to, from); }

static u8 *through_two_pipes(u8 *to, u8 *from) {
    struct block block = around(1);
    put_in(pipe_ends[1], from - block.before, block.bytes);
    ssize_t moved = splice(pipe_ends[0], 0, second_pipe[1], 0, block.bytes, 0);
    must(moved == (ssize_t)block.bytes, "splice");
    take_out(second_pipe[0], to - block.before, block.bytes);
    return to;
}

static u8 *through_file(u8 *to, u8 *from) {
    struct block block = around(1);
    off_t at = below(20000);
    must(pwrite(file, from - block.before, block.bytes, at) == (ssize_t)block.bytes, "writing a file");
    must(pread(file, to - block.before, block.bytes, at) == (ssize_t)block.bytes, "reading a file");
    return to;
}

static u8 *file_to_pipe(u8 *to, u8 *from) {
    struct block block = around(1);
    loff_t at = below(20000);
    must(pwrite(file, from - block.before, block.bytes, at) == (ssize_t)block.bytes, "writing a file");
    ssize_t moved = splice(file, &at, pipe_ends[1], 0, block.bytes, 0);
    must(moved == (ssize_t)block.bytes, "splice from a file");
    take_out(pipe_ends[0], to - block.before, block.bytes);
    return to;
}

static u8 *in_pieces(u8 *to, u8 *from) {
    unsigned first = below(width + 1);
    struct iovec out[] = {{from, first}, {from + first, width - first}}, in[] = {{to, width}};
    must(writev(sockets[0], out, 2) == (ssize_t)width, "writev");
    must(readv(sockets[1], in, 1) == (ssize_t)width, "readv");
    return to;
}

static u8 *of_process(u8 *to, u8 *from) {
    struct block block = around(1);
    struct iovec mine = {to - block.before, block.bytes}, its = {from - block.before, block.bytes};
    must(process_vm_readv(own, &mine, 1, &its, 1, 0) == (ssize_t)block.bytes, "process_vm_readv");
    return to;
}

static u8 *to_process(u8 *to, u8 *from) {
    struct block block = around(1);
    struct iovec its = {to - block.before, block.bytes}, mine = {from - block.before, block.bytes};
    must(process_vm_writev(own, &mine, 1, &its, 1, 0) == (ssize_t)block.bytes, "process_vm_writev");
    return to;
}

static u64 load(const u8 *from) { return *(const volatile u64 *)from; }
static void store(u8 *to, u64 value) { *(volatile u64 *)to = value; }

/* Moves eight bytes, of which the value is the first. */
static u8 *simply(u8 *to, u8 *from) {
    store(to, load(from));
    return to;
}

static u8 *in_event(u8 *to, u8 *from) {
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = load(from)};
    must(epoll_ctl(events, EPOLL_CTL_ADD, pipe_ends[0], &event) == 0, "epoll_ctl");
    put_in(pipe_ends[1], &passed_on, 1);
    must(epoll_wait(events, &event, 1, -1) == 1, "epoll_wait");
    store(to, event.data.u64);
    take_out(pipe_ends[0], &passed_on, 1);
    must(epoll_ctl(events, EPOLL_CTL_DEL, pipe_ends[0], 0) == 0, "epoll_ctl");
    return to;
}

static u8 *with_signal(u8 *to, u8 *from) {
    sigset_t awaited;
    siginfo_t about;
    sigemptyset(&awaited);
    sigaddset(&awaited, SIGRTMIN);
    must(sigqueue(own, SIGRTMIN, (union sigval){.sival_ptr = (void *)load(from)}) == 0, "sigqueue");
    must(sigwaitinfo(&awaited, &about) == SIGRTMIN, "sigwaitinfo");
    store(to, (u64)about.si_value.sival_ptr);
    return to;
}

/* The kernel keeps the address of the list of robust futexes. Linux does not return an address of all ones. */
static u8 *as_robust_list(u8 *to, u8 *from) {
    u64 before, kept, bytes;
    if (load(from) == ~(u64)0)
        return simply(to, from);
    must(syscall(SYS_get_robust_list, 0, &before, &bytes) == 0, "get_robust_list");
    must(syscall(SYS_set_robust_list, load(from), bytes) == 0, "set_robust_list");
    must(syscall(SYS_get_robust_list, 0, &kept, &bytes) == 0, "get_robust_list");
    store(to, kept);
    must(syscall(SYS_set_robust_list, before, bytes) == 0, "set_robust_list");
    return to;
}

static u8 *as_signal_stack(u8 *to, u8 *from) {
    stack_t stack = {.ss_sp = (void *)load(from), .ss_size = 65536}, kept;
    must(sigaltstack(&stack, 0) == 0, "sigaltstack");
    stack = (stack_t){.ss_flags = SS_DISABLE};
    must(sigaltstack(&stack, &kept) == 0, "sigaltstack");
    store(to, (u64)kept.ss_sp);
    return to;
}

static u8 *in_other_mapping(u8 *to, u8 *from) {
    return alias(simply(shared_place(from), from));
    (void)to;
}

/* A write to a byte of the value's page, not near the value. */
static void touch_page(u8 *at) {
    u64 page = (u64)at & ~(u64)(PAGE - 1);
    u64 first = (u64)at - page < PAGE / 2 ? page + PAGE - 64 : page + 32;
    *(volatile u8 *)first = 1;
    /* The value may continue on the next page. */
    if ((u64)at - page > PAGE - MOST)
        *(volatile u8 *)(page + PAGE + PAGE / 2) = 1;
}

static int forked(void) {
    long child = syscall(SYS_fork);
    must(child >= 0, "fork");
    return (int)child;
}

static void wait_for(int child) {
    int status;
    must(waitpid(child, &status, 0) == child && status == 0, "a child");
}

/* After a fork, the parent writes to the page and gets a copy of the page. */
static u8 *copied_for_parent(u8 *to, u8 *from) {
    u8 *at = simply(private_place(from), from);
    int child = forked();
    if (child == 0) {
        take_out(second_pipe[0], &passed_on, 1);
        _exit(0);
    }
    touch_page(at);
    put_in(second_pipe[1], &passed_on, 1);
    wait_for(child);
    return at;
    (void)to;
}

/* The child writes to the page and gets a copy, and stores the value in shared memory. */
static u8 *copied_for_child(u8 *to, u8 *from) {
    u8 *at = simply(private_place(from), from), *shared = shared_place(at);
    int child = forked();
    if (child == 0) {
        touch_page(at);
        simply(shared, at);
        _exit(0);
    }
    wait_for(child);
    return shared;
    (void)to;
}

static u8 *mapped(size_t bytes, int flags, int of) {
    u8 *at = mmap(0, bytes, PROT_READ | PROT_WRITE, flags, of, 0);
    must(at != MAP_FAILED && mapping_count < MOST_MAPPINGS, "mmap");
    mappings[mapping_count].at = at;
    mappings[mapping_count++].bytes = bytes;
    return at;
}

static u8 *remapped(u8 *to, u8 *from) {
    u8 *pages = mapped(4 * PAGE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    /* The value may lie on two pages. */
    unsigned offset = 2 * PAGE - below(24);
    simply(pages + offset, from);
    u8 *moved = mapped(4 * PAGE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    must(mremap(pages, 4 * PAGE, 4 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, moved) == moved, "mremap");
    mappings[mapping_count - 2].bytes = 0;
    return moved + offset;
    (void)to;
}

/* The value lies in a page of a file, and then in a private copy of the page. */
static u8 *mapped_file(u8 *to, u8 *from) {
    unsigned offset = PAGE + below(3000);
    struct block block = around(1);
    must(pwrite(file, from - block.before, block.bytes, offset - block.before) == (ssize_t)block.bytes, "writing");
    u8 *pages = mapped(4 * PAGE, below(2) ? MAP_PRIVATE : MAP_SHARED, file);
    touch_page(pages + offset);
    return pages + offset;
    (void)to;
}

void forget_calls(void) {
    for (unsigned i = 0; i < mapping_count; i++)
        if (mappings[i].bytes)
            must(munmap(mappings[i].at, mappings[i].bytes) == 0, "munmap");
    mapping_count = 0;
}

#define JUNK                                                                                                           \
    "mov rbx,-1; mov r12,rbx; mov r13,rbx; mov r14,rbx; mov r15,rbx; mov r8,rbx; mov r9,rbx; mov r10,rbx; "            \
    "pcmpeqd xmm0,xmm0; movdqa xmm2,xmm0; movdqa xmm6,xmm0; movdqa xmm9,xmm0; movdqa xmm14,xmm0"
#define JUNKED                                                                                                         \
    "rbx", "r8", "r9", "r10", "r12", "r13", "r14", "r15", "xmm0", "xmm2", "xmm6", "xmm9", "xmm14"

static void on_signal(int number) {
    __asm__ volatile(JUNK ::: JUNKED);
    if (number == SIGALRM)
        rang = 1;
}

static void on_fault(int number, siginfo_t *about, void *context) {
    (void)number, (void)about;
    __asm__ volatile(JUNK ::: JUNKED);
    /* UD2 has two bytes. */
    ((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP] += 2;
}

/* Another process, which runs while the program waits for its answer. */
static void companion(int in, int out) {
    for (u8 byte; read(in, &byte, 1) == 1;) {
        __asm__ volatile(JUNK ::: JUNKED);
        if (write(out, &byte, 1) != 1)
            break;
    }
    _exit(0);
}

void prepare_calls(void) {
    int to_companion[2], from_companion[2];
    must(pipe(pipe_ends) == 0 && pipe(second_pipe) == 0, "pipes");
    must(pipe(to_companion) == 0 && pipe(from_companion) == 0, "pipes");
    must(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0, "socketpair");
    must(socketpair(AF_UNIX, SOCK_DGRAM, 0, datagrams) == 0, "socketpair");
    file = open("/tmp/flows", O_RDWR | O_CREAT | O_TRUNC, 0600);
    must(file >= 0 && ftruncate(file, 65536) == 0, "a file");
    events = epoll_create1(0);
    must(events >= 0, "epoll");
    struct sigaction action = {.sa_handler = on_signal};
    must(sigaction(SIGUSR1, &action, 0) == 0 && sigaction(SIGALRM, &action, 0) == 0, "sigaction");
    action = (struct sigaction){.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
    must(sigaction(SIGILL, &action, 0) == 0, "sigaction");
    sigset_t blocked;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGRTMIN);
    must(sigprocmask(SIG_BLOCK, &blocked, 0) == 0, "sigprocmask");
    if (forked() == 0) {
        close(to_companion[1]);
        companion(to_companion[0], from_companion[1]);
    }
    there = to_companion[1];
    back = from_companion[0];
}

const struct hop calls[] = {
    {"rep_movsb", rep_movsb, 15, KEEP},
    {"rep_movsw", rep_movsw, 15, KEEP},
    {"rep_movsd", rep_movsd, 15, KEEP},
    {"rep_movsq", rep_movsq, 15, KEEP},
    {"library_copy", library_copy, 15, MAY},
    {"overlapping_move", overlapping_move, 15, MAY},
    {"overlapping_rep_movsb", overlapping_rep_movsb, 15, MAY},
    {"through_pipe", through_pipe, 15, MAY},
    {"through_two_pipes", through_two_pipes, 15, MAY},
    {"through_socket", through_socket, 15, MAY},
    {"through_datagram", through_datagram, 15, MAY},
    {"through_file", through_file, 15, MAY},
    {"file_to_pipe", file_to_pipe, 15, MAY},
    {"in_pieces", in_pieces, 15, MAY},
    {"of_process", of_process, 15, MAY},
    {"to_process", to_process, 15, MAY},
    {"in_event", in_event, 8, MAY},
    {"with_signal", with_signal, 8, MAY},
    {"as_robust_list", as_robust_list, 8, MAY},
    {"as_signal_stack", as_signal_stack, 8, MAY},
    {"in_other_mapping", in_other_mapping, 15, KEEP},
    {"copied_for_parent", copied_for_parent, 15, MAY},
    {"copied_for_child", copied_for_child, 15, MAY},
    {"remapped", remapped, 15, KEEP},
    {"mapped_file", mapped_file, 15, MAY},
};
const unsigned call_count = sizeof calls / sizeof *calls;
