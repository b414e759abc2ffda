/* The beginnings of flows. RDI is the place of the value. RAX, RCX and RDX are random numbers. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/io.h>
#include <sys/random.h>
#include <termios.h>
#include <unistd.h>

#include "flows.h"

enum { SECTOR = 512, SECTORS_PER_FLOW = 40 };

/* An area of XRSTOR without any state. */
static u8 empty_area[4096] __attribute__((aligned(64), used));
static unsigned flow_number, keys;
static int disk, disk_direct, urandom;
static u8 from_disk[8192] __attribute__((aligned(4096)));

#define STORE_8 "mov [rdi],rax"
#define COMPUTES(X, name, bytes, code) X(name, bytes, bytes, COMPUTED, code, "r11")

#define ORIGINS(X)                                                                                                     \
    X(immediate_1, 1, 1, CONSTANT, HERE "mov byte ptr [rdi],0x9d" WHERE, "r11")                                        \
    X(immediate_2, 2, 2, CONSTANT, HERE "mov word ptr [rdi],0x8a31" WHERE, "r11")                                      \
    X(immediate_4, 4, 4, CONSTANT, HERE "mov dword ptr [rdi],0x91c3d5e7" WHERE, "r11")                                 \
    X(immediate_8, 8, 8, CONSTANT, HERE "mov qword ptr [rdi],-0x12345678" WHERE, "r11")                                \
    X(movabs, 8, 8, CONSTANT, HERE "movabs rax,0xf1e2d3c4b5a69788" WHERE STORE_8, "r11")                               \
    X(movabs_r9, 8, 8, CONSTANT, HERE "movabs r9,0x0123456789abcdef" WHERE "mov [rdi],r9", "r9", "r11")                \
    X(mov_eax, 8, 4, CONSTANT, HERE "mov eax,0xc7b6a594" WHERE STORE_8, "r11")                                         \
    X(mov_ah, 1, 1, CONSTANT, HERE "mov ah,0x5e" WHERE "mov [rdi],ah", "r11")                                          \
    X(xor_eax, 8, 4, CONSTANT, HERE "xor eax,eax" WHERE STORE_8, "r11")                                                \
    X(sub_rcx, 8, 8, CONSTANT, HERE "sub rcx,rcx" WHERE "mov [rdi],rcx", "r11")                                        \
    X(or_ones, 8, 8, CONSTANT, HERE "or rax,-1" WHERE STORE_8, "r11")                                                  \
    X(and_zero, 4, 4, CONSTANT, HERE "and dword ptr [rdi],0" WHERE, "r11")                                             \
    X(pxor_xmm1, 8, 8, CONSTANT, HERE "pxor xmm1,xmm1" WHERE "movups [rdi],xmm1", "xmm1", "r11")                       \
    X(pcmpeqd, 8, 8, CONSTANT, HERE "pcmpeqd xmm10,xmm10" WHERE "movdqu [rdi],xmm10", "xmm10", "r11")                  \
    X(push_immediate, 8, 8, CONSTANT, HERE "push 0x5a6b7c8d" WHERE "pop qword ptr [rdi]", "r11")                       \
    X(return_address, 8, 8, CONSTANT, HERE "call .Lc%=; .Lc%=: pop qword ptr [rdi]" WHERE, "r11")                      \
    X(lea_address, 8, 8, CONSTANT, HERE "lea rax,[rip+.Lw%=]" WHERE STORE_8, "r11")                                    \
    X(lea_absolute, 8, 8, CONSTANT, HERE "lea rax,[0x12345678]" WHERE STORE_8, "r11")                                  \
    X(rep_stosb_immediate, 8, 8, CONSTANT, HERE "mov al,0xb7" WHERE "mov ecx,77; rep stosb", "r11")                    \
    X(rep_stosq_zero, 8, 4, CONSTANT, HERE "xor eax,eax" WHERE "mov ecx,40; rep stosq", "r11")                         \
    X(xrstor_empty, 8, 8, CONSTANT,                                                                                    \
      "mov eax,2; xor edx,edx; " HERE "xrstor64 [rip+empty_area]" WHERE "movq [rdi],xmm5", "xmm0", "xmm1", "xmm2",     \
      "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15",    \
      "r11")                                                                                                           \
    COMPUTES(X, add, 8, HERE "add rax,rcx" WHERE STORE_8)                                                              \
    COMPUTES(X, add_4, 4, HERE "add eax,ecx" WHERE "mov [rdi],eax")                                                    \
    X(add_4_8, 8, 4, COMPUTED, HERE "add eax,ecx" WHERE STORE_8, "r11")                                                \
    COMPUTES(X, add_memory, 8, "mov [rdi],rax; " HERE "add [rdi],rcx" WHERE)                                           \
    COMPUTES(X, add_ah, 1, HERE "add ah,ch" WHERE "mov [rdi],ah")                                                      \
    COMPUTES(X, sub, 8, HERE "sub rax,rcx" WHERE STORE_8)                                                              \
    COMPUTES(X, xor, 8, HERE "xor rax,rcx" WHERE STORE_8)                                                              \
    COMPUTES(X, or, 2, HERE "or ax,cx" WHERE "mov [rdi],ax")                                                           \
    COMPUTES(X, and, 4, HERE "and ecx,edx" WHERE "mov [rdi],ecx")                                                      \
    COMPUTES(X, and_itself, 8, HERE "and rcx,rcx" WHERE "mov [rdi],rcx")                                               \
    COMPUTES(X, imul, 8, HERE "imul rax,rcx" WHERE STORE_8)                                                            \
    COMPUTES(X, mul_low, 8, HERE "mul rcx" WHERE STORE_8)                                                              \
    COMPUTES(X, mul_high, 8, HERE "mul rcx" WHERE "mov [rdi],rdx")                                                     \
    COMPUTES(X, div, 4, "xor edx,edx; or ecx,1; " HERE "div ecx" WHERE "mov [rdi],edx")                                \
    COMPUTES(X, neg, 8, HERE "neg rax" WHERE STORE_8)                                                                  \
    COMPUTES(X, not_memory, 1, "mov [rdi],al; " HERE "not byte ptr [rdi]" WHERE)                                       \
    COMPUTES(X, inc, 4, "mov [rdi],eax; " HERE "lock inc dword ptr [rdi]" WHERE)                                       \
    COMPUTES(X, shl, 8, HERE "shl rax,3" WHERE STORE_8)                                                                \
    COMPUTES(X, sar, 4, HERE "sar eax,5" WHERE "mov [rdi],eax")                                                        \
    COMPUTES(X, rol, 8, HERE "rol rax,13" WHERE STORE_8)                                                               \
    COMPUTES(X, rcr, 2, HERE "rcr cx,1" WHERE "mov [rdi],cx")                                                          \
    COMPUTES(X, shld, 8, HERE "shld rax,rdx,9" WHERE STORE_8)                                                          \
    COMPUTES(X, adc, 8, HERE "adc rax,rdx" WHERE STORE_8)                                                              \
    COMPUTES(X, sbb_itself, 4, HERE "sbb eax,eax" WHERE "mov [rdi],eax")                                               \
    COMPUTES(X, lea_sum, 8, HERE "lea rcx,[rax+rdx*2+5]" WHERE "mov [rdi],rcx")                                        \
    COMPUTES(X, lea_beside, 8, HERE "lea rcx,[rax+8]" WHERE "mov [rdi],rcx")                                           \
    COMPUTES(X, lea_index, 8, HERE "lea rcx,[rax*2]" WHERE "mov [rdi],rcx")                                            \
    COMPUTES(X, setp, 1, "test eax,eax; " HERE "setp cl" WHERE "mov [rdi],cl")                                         \
    COMPUTES(X, sets_memory, 1, "test eax,eax; " HERE "sets [rdi]" WHERE)                                              \
    COMPUTES(X, popcnt, 8, HERE "popcnt rcx,rax" WHERE "mov [rdi],rcx")                                                \
    COMPUTES(X, bsf, 4, "or eax,0x1000; " HERE "bsf ecx,eax" WHERE "mov [rdi],ecx")                                    \
    COMPUTES(X, btc, 8, HERE "btc rax,17" WHERE STORE_8)                                                               \
    COMPUTES(X, xadd_sum, 8, "mov [rdi],rcx; " HERE "xadd [rdi],rax" WHERE)                                            \
    COMPUTES(X, xadd_register_sum, 8, HERE "xadd rcx,rax" WHERE "mov [rdi],rcx")                                       \
    COMPUTES(X, xadd_itself, 8, HERE "xadd rax,rax" WHERE STORE_8)                                                     \
    COMPUTES(X, xadd_own_byte, 1, HERE "xadd al,al" WHERE "mov [rdi],al")                                              \
    COMPUTES(X, lahf, 1, "test ecx,ecx; " HERE "lahf" WHERE "mov [rdi],ah")                                            \
    COMPUTES(X, cqo, 8, HERE "cqo" WHERE "mov [rdi],rdx")                                                              \
    X(paddq, 8, 8, COMPUTED, "movq xmm0,rax; movq xmm1,rcx; " HERE "paddq xmm0,xmm1" WHERE "movq [rdi],xmm0", "xmm0",  \
      "xmm1", "r11")                                                                                                   \
    X(pxor_two, 8, 8, COMPUTED, "movq xmm0,rax; movq xmm1,rcx; " HERE "pxor xmm1,xmm0" WHERE "movq [rdi],xmm1",        \
      "xmm0", "xmm1", "r11")                                                                                           \
    X(pshufb, 8, 8, COMPUTED, "movq xmm0,rax; movq xmm1,rcx; " HERE "pshufb xmm0,xmm1" WHERE "movq [rdi],xmm0",        \
      "xmm0", "xmm1", "r11")                                                                                           \
    X(cvtsi2sd, 8, 8, COMPUTED, HERE "cvtsi2sd xmm3,rax" WHERE "movq [rdi],xmm3", "xmm3", "r11")                       \
    X(movmskps, 4, 4, COMPUTED, "movq xmm0,rax; " HERE "movmskps ecx,xmm0" WHERE "mov [rdi],ecx", "xmm0", "r11")       \
    X(fistp, 8, 8, COMPUTED, "mov [rdi],rax; fild qword ptr [rdi]; " HERE "fistp qword ptr [rdi]" WHERE, "r11")        \
    X(from_mm0, 8, 8, UNFOLLOWED, "movq mm0,rax; " HERE "movq [rdi],mm0" WHERE "emms", "r11")                          \
    X(from_mm3, 4, 4, UNFOLLOWED, "movd mm3,eax; " HERE "movd ecx,mm3" WHERE "emms; mov [rdi],ecx", "r11")             \
    X(from_cs, 2, 2, UNFOLLOWED, HERE "mov word ptr [rdi],cs" WHERE, "r11")                                            \
    X(from_flags, 8, 8, UNFOLLOWED, "cmp eax,ecx; " HERE "pushfq" WHERE "pop qword ptr [rdi]", "r11")                  \
    X(rdtsc, 4, 4, PROCESSOR, HERE "rdtsc" WHERE "mov [rdi],eax", "r11")                                               \
    X(rdtsc_8, 8, 4, PROCESSOR, HERE "rdtsc" WHERE STORE_8, "r11")                                                     \
    X(rdtscp, 4, 4, PROCESSOR, HERE "rdtscp" WHERE "mov [rdi],eax", "r11")                                             \
    X(cpuid, 4, 4, PROCESSOR, "xor eax,eax; " HERE "cpuid" WHERE "mov [rdi],ebx", "rbx", "r11")                        \
    X(cpuid_edx, 1, 1, PROCESSOR, "mov eax,1; xor ecx,ecx; " HERE "cpuid" WHERE "mov [rdi],dh", "rbx", "r11")          \
    X(xgetbv, 4, 4, PROCESSOR, "xor ecx,ecx; " HERE "xgetbv" WHERE "mov [rdi],eax", "r11")                             \
    X(port, 1, 1, PORT, HERE "in al,0x61" WHERE "mov [rdi],al", "r11")                                                 \
    X(port_dx, 1, 1, PORT, "mov edx,0x61; " HERE "in al,dx" WHERE "mov [rdi],al", "r11")

#define FUNCTION(name, bytes, low, kind, code, ...)                                                                    \
    static u8 *begin_##name(u8 *to) {                                                                                  \
        u8 *place = to;                                                                                                \
        u64 a = rnd(), c = rnd(), d = rnd();                                                                           \
        __asm__ volatile(code : "+D"(place), "+a"(a), "+c"(c), "+d"(d)::"memory", "cc", __VA_ARGS__);                  \
        return to;                                                                                                     \
    }
ORIGINS(FUNCTION)

/* Two instructions write the halves. */
static u8 *joined(u8 *to) {
    u64 second;
    __asm__ volatile(HERE "mov dword ptr [rdi],0x1b2c3d4e" WHERE ".Lsecond%=: mov dword ptr [rdi+4],0x5f6e7d8c; "
                          "lea %0,[rip+.Lsecond%=]"
                     : "=r"(second)
                     : "D"(to)
                     : "memory", "r11");
    for (int i = 0; i < 4; i++) {
        now.from[i] = (struct from){CONSTANT, written_at};
        now.from[i + 4] = (struct from){CONSTANT, second};
        now.apart[i] = 0xf0;
        now.apart[i + 4] = 0x0f;
    }
    return to;
}

/* Two instructions write the halves of a register. */
static u8 *joined_in_register(u8 *to) {
    u64 second;
    __asm__ volatile(HERE "mov al,0x2d" WHERE ".Lsecond%=: mov ah,0x96; lea %0,[rip+.Lsecond%=]; mov [rdi],ax"
                     : "=r"(second)
                     : "D"(to)
                     : "memory", "rax", "r11");
    now.from[0] = (struct from){CONSTANT, written_at};
    now.from[1] = (struct from){CONSTANT, second};
    now.apart[0] = 2;
    now.apart[1] = 1;
    return to;
}

static unsigned some_bytes(void) { return 1u << below(4); }

static u8 *read_disk(u8 *to, int is_direct) {
    u64 sector = (u64)flow_number * SECTORS_PER_FLOW + below(SECTORS_PER_FLOW);
    unsigned bytes = some_bytes(), offset = below(SECTOR - bytes + 1);
    now.bytes = bytes;
    for (unsigned i = 0; i < bytes; i++)
        now.from[i] = (struct from){DISK, sector * SECTOR + offset + i};
    if (is_direct) {
        /* ttvm sees a device's write only if the bytes change. The disk has no zeros. */
        memset(from_disk, 0, SECTOR);
        must(pread(disk_direct, from_disk, SECTOR, sector * SECTOR) == SECTOR, "reading the disk directly");
        return from_disk + offset;
    }
    now.may_split = 1;
    must(pread(disk, to, bytes, sector * SECTOR + offset) == (ssize_t)bytes, "reading the disk");
    return to;
}

static u8 *disk_cached(u8 *to) { return read_disk(to, 0); }
static u8 *disk_uncached(u8 *to) { return read_disk(to, 1); }

static u8 *key(u8 *to) {
    must(write(1, "\nkey?\n", 6) == 6, "asking for a key");
    must(read(0, to, 1) == 1, "reading a key");
    now.bytes = 1;
    now.from[0] = (struct from){KEY, keys++};
    return to;
}

/* The generator of the kernel computes random bytes. */
static u8 *random_bytes(u8 *to, int is_file) {
    now.bytes = some_bytes();
    now.may_split = 1;
    ssize_t count = is_file ? read(urandom, to, now.bytes) : getrandom(to, now.bytes, 0);
    must(count == (ssize_t)now.bytes, "reading random bytes");
    for (unsigned i = 0; i < now.bytes; i++)
        now.from[i] = (struct from){RANDOM, 0};
    return to;
}

static u8 *random_file(u8 *to) { return random_bytes(to, 1); }
static u8 *random_call(u8 *to) { return random_bytes(to, 0); }

void number_flow(unsigned number) { flow_number = number; }

void prepare_origins(void) {
    struct termios mode;
    must(tcgetattr(0, &mode) == 0, "the console is a terminal");
    cfmakeraw(&mode);
    mode.c_oflag |= OPOST | ONLCR;
    must(tcsetattr(0, TCSANOW, &mode) == 0, "setting the terminal");
    disk = open("/dev/vda", O_RDONLY);
    disk_direct = open("/dev/vda", O_RDONLY | O_DIRECT);
    urandom = open("/dev/urandom", O_RDONLY);
    must(disk >= 0 && disk_direct >= 0 && urandom >= 0, "opening devices");
    /* MXCSR is at offset 24, and the XMM registers are at offset 160. XRSTOR must not take them from there. */
    empty_area[24] = 0x80;
    empty_area[25] = 0x1f;
    memset(empty_area + 160, 0x55, 256);
    must(ioperm(0x61, 1, 1) == 0, "ioperm");
}

#define ROW(name, bytes, low, kind, ...) {#name, begin_##name, bytes, low, kind},
/* Inputs from outside are there several times, so that many flows begin with them. */
#define INPUTS                                                                                                         \
    {"disk_cached", disk_cached, 0, 0, NONE}, {"disk_uncached", disk_uncached, 0, 0, NONE}, {"key", key, 0, 0, NONE},  \
        {"random_file", random_file, 0, 0, NONE}, {"random_call", random_call, 0, 0, NONE},
const struct origin origins[] = {ORIGINS(ROW) INPUTS INPUTS INPUTS {"joined", joined, 8, 8, NONE},
                                 {"joined_in_register", joined_in_register, 2, 2, NONE}};
const unsigned origin_count = sizeof origins / sizeof *origins;
