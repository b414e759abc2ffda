/* reverse-debugging target: one process, argv[1] rounds of ~15.5M insns each. Before the end it calls farNN()
 * and writes v_farNN once, at distances of ~20e9, 5e9, 1e9, 0.1e9 instructions; then the_end(). Fixed
 * (non-PIE) addresses. */
#define main cpu_main
#include "w_cpu.c"
#undef main
#include <stdlib.h>
/* The peer (QEMU) is slow on every page that holds a breakpoint, so the breakpoint targets and the watched
 * variables get pages of their own (best case for the peer); "hot" targets stay in round_fn / progress. */
__asm__(
    ".globl v_far20,v_far5,v_far1,v_far01,v_never\n.section .bss.vpg,\"aw\",@nobits\n.balign 4096\nv_far20: "
    ".skip 8\nv_far5: .skip 8\nv_far1: .skip 8\nv_far01: .skip 8\nv_never: .skip 8\n.balign 4096\n.text");
extern volatile uint64_t v_far20, v_far5, v_far1, v_far01, v_never;
#define FP __attribute__((noinline, section(".text.zfar")))
#define F(n)                                                                                                 \
    FP void far##n(uint64_t r) {                                                                             \
        v_far##n = r + 1;                                                                                    \
        __asm__ volatile("nop;nop" ::: "memory");                                                            \
    }
__asm__(".section .text.zfar,\"ax\",@progbits\n.balign 4096\n.text");
F(20) F(5) F(1) F(01) FP void the_end(uint64_t s) { __asm__ volatile("nop;nop;nop" ::"r"(s) : "memory"); }
__asm__(".section .text.zfar,\"ax\",@progbits\n.balign 4096\n.text");
int main(int c, char **v) {
    int N = c > 1 ? atoi(v[1]) : 1500;
    uint64_t sum = 0;
    const double per = 15.53e6;
    int r20 = N - (int)(20e9 / per), r5 = N - (int)(5e9 / per), r1 = N - (int)(1e9 / per),
        r01 = N - (int)(.1e9 / per);
    for (int i = 0; i < 256; i++) {
        uint32_t x = i;
        for (int k = 0; k < 8; k++)
            x = x & 1 ? 0xedb88320 ^ (x >> 1) : x >> 1;
        T[i] = x;
    }
    for (unsigned i = 0; i < sizeof B; i++)
        B[i] = i * 2654435761u >> 13;
    mark_begin("rd");
    for (int r = 0; r < N; r++) {
        if (r == r20)
            far20(r);
        if (r == r5)
            far5(r);
        if (r == r1)
            far1(r);
        if (r == r01)
            far01(r);
        sum = round_fn(r, sum);
    }
    the_end(sum);
    mark_end("rd", sum);
    return 0;
}
