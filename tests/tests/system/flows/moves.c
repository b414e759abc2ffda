/* Hops of some instructions in a program. RSI is the place of the value, and RDI is the new place. */
#include "flows.h"

static u8 scratch[64] __attribute__((aligned(64), used));
static u8 area[4096] __attribute__((aligned(64), used));
static u8 compact_area[4096] __attribute__((aligned(64), used));

#define S "[rip+scratch]"
#define FLAGS "mov rax,qword ptr [rip+some_flags]; push rax; popfq; "
/* If the condition is true, the value is in RAX and the move happens. Otherwise the value is in RDX and remains. */
#define CMOV(X, cc)                                                                                                    \
    X(cmov##cc##_8, 8, KEEP,                                                                                           \
      FLAGS "mov rax,[rsi]; mov edx,0x77; j" #cc " .Lt%=; xchg rax,rdx; .Lt%=: cmov" #cc " rdx,rax; mov [rdi],rdx",    \
      "rax", "rdx")                                                                                                    \
    X(cmov##cc##_4, 4, KEEP,                                                                                           \
      FLAGS "mov eax,[rsi]; mov r9d,0x77; j" #cc " .Lt%=; xchg eax,r9d; .Lt%=: cmov" #cc " r9d,eax; mov [rdi],r9d",    \
      "rax", "r9")
#define RAISE                                                                                                          \
    "mov r14,rdi; mov eax,62; mov edi,dword ptr [rip+own]; mov esi,10; syscall; mov rdi,r14; "
#define YIELD "mov r14,rdi; mov eax,24; syscall; mov rdi,r14; "
#define SWITCH                                                                                                         \
    "mov r14,rdi; mov eax,1; mov edi,dword ptr [rip+there]; lea rsi,[rip+passed_on]; mov edx,1; syscall; "            \
    "xor eax,eax; mov edi,dword ptr [rip+back]; lea rsi,[rip+passed_on]; mov edx,1; syscall; mov rdi,r14; "
#define ALARM                                                                                                          \
    "mov r14,rdi; mov dword ptr [rip+rang],0; mov eax,38; xor edi,edi; lea rsi,[rip+soon]; xor edx,edx; syscall; "    \
    ".Ls%=: cmp dword ptr [rip+rang],0; je .Ls%=; mov rdi,r14; "
#define SYSTEM "rax", "rcx", "rdx", "r11", "r14"

#define MOVES(X)                                                                                                       \
    X(mov_al, 1, KEEP, "mov al,[rsi]; mov [rdi],al", "rax")                                                            \
    X(mov_ah, 1, KEEP, "mov ah,[rsi]; mov [rdi],ah", "rax")                                                            \
    X(mov_dh_cl, 1, KEEP, "mov dh,[rsi]; mov cl,dh; mov [rdi],cl", "rcx", "rdx")                                       \
    X(mov_r9b, 1, KEEP, "mov r9b,[rsi]; mov r10b,r9b; mov [rdi],r10b", "r9", "r10")                                    \
    X(mov_sil, 1, KEEP, "mov sil,[rsi]; mov [rdi],sil", "rax")                                                         \
    X(mov_ax, 2, KEEP, "mov ax,[rsi]; mov [rdi],ax", "rax")                                                            \
    X(mov_r10w, 2, KEEP, "mov r10w,[rsi]; mov bx,r10w; mov [rdi],bx", "rbx", "r10")                                    \
    X(mov_ebx, 4, KEEP, "mov ebx,[rsi]; mov [rdi],ebx", "rbx")                                                         \
    X(mov_r12d, 4, KEEP, "mov r12d,[rsi]; mov r12d,r12d; mov eax,r12d; mov [rdi],eax", "r12", "rax")                   \
    X(mov_rdx, 8, KEEP, "mov rdx,[rsi]; mov [rdi],rdx", "rdx")                                                         \
    X(mov_three, 8, KEEP, "mov rax,[rsi]; mov rcx,rax; mov r15,rcx; mov [rdi],r15", "rax", "rcx", "r15")               \
    X(mov_twice, 8, KEEP, "mov rax,[rsi]; mov [rdi],rax; mov rcx,[rdi]; mov [rdi],rcx", "rax", "rcx")                  \
    X(mov_wide, 1 + 2 + 4, KEEP, "mov rax,[rsi]; mov [rdi],rax", "rax")                                                \
    X(push_pop_memory, 8, KEEP, "push qword ptr [rsi]; pop qword ptr [rdi]", "rax")                                    \
    X(push_pop_registers, 8, KEEP, "mov r11,[rsi]; push r11; pop rbx; mov [rdi],rbx", "r11", "rbx")                    \
    X(push_pop_word, 2, KEEP, "push word ptr [rsi]; pop word ptr [rdi]", "rax")                                        \
    X(pop_beside, 8, KEEP,                                                                                             \
      "sub rsp,16; push qword ptr [rsi]; pop qword ptr [rsp+8]; mov rax,[rsp+8]; mov [rdi],rax; add rsp,16", "rax")    \
    X(enter_leave, 8, KEEP, "push rbp; mov rbp,[rsi]; enter 32,0; leave; mov [rdi],rbp; pop rbp", "rax")               \
    X(argument, 8, KEEP,                                                                                               \
      "push qword ptr [rsi]; call .La%=; jmp .Lb%=; .La%=: mov rax,[rsp+8]; mov [rdi],rax; ret; .Lb%=: add rsp,8",     \
      "rax")                                                                                                           \
    X(xchg_registers_8, 8, KEEP, "mov rax,[rsi]; mov ecx,5; xchg rax,rcx; mov [rdi],rcx", "rax", "rcx")                \
    X(xchg_registers_4, 4, KEEP, "mov eax,[rsi]; mov ecx,5; xchg ecx,eax; mov [rdi],ecx", "rax", "rcx")                \
    X(xchg_registers_1, 1, KEEP, "mov al,[rsi]; mov ch,7; xchg al,ch; mov [rdi],ch", "rax", "rcx")                     \
    X(xchg_nothing, 8, KEEP, "mov rcx,[rsi]; xchg rcx,rcx; mov [rdi],rcx", "rcx")                                      \
    X(xchg_to_memory_8, 8, KEEP, "mov rax,[rsi]; xchg [rdi],rax", "rax")                                               \
    X(xchg_to_memory_4, 4, KEEP, "mov edx,[rsi]; xchg [rdi],edx", "rdx")                                               \
    X(xchg_to_memory_2, 2, KEEP, "mov ax,[rsi]; xchg [rdi],ax", "rax")                                                 \
    X(xchg_to_memory_1, 1, KEEP, "mov al,[rsi]; xchg [rdi],al", "rax")                                                 \
    X(xchg_from_memory_8, 8, KEEP, "mov eax,9; xchg [rsi],rax; mov [rdi],rax", "rax")                                  \
    X(xchg_from_memory_4, 4, KEEP, "mov eax,9; xchg [rsi],eax; mov [rdi],eax", "rax")                                  \
    X(xchg_bytes, 2, REVERSE, "mov ax,[rsi]; xchg al,ah; mov [rdi],ax", "rax")                                         \
    X(xadd_memory_8, 8, KEEP, "mov eax,3; lock xadd [rsi],rax; mov [rdi],rax", "rax")                                  \
    X(xadd_memory_4, 4, KEEP, "mov eax,3; xadd [rsi],eax; mov [rdi],eax", "rax")                                       \
    X(xadd_memory_2, 2, KEEP, "mov eax,3; xadd [rsi],ax; mov [rdi],ax", "rax")                                         \
    X(xadd_memory_1, 1, KEEP, "mov eax,3; xadd [rsi],al; mov [rdi],al", "rax")                                         \
    X(xadd_registers, 8, KEEP, "mov rax,[rsi]; mov ecx,11; xadd rax,rcx; mov [rdi],rcx", "rax", "rcx")                 \
    X(xadd_registers_4, 4, KEEP, "mov eax,[rsi]; mov ecx,11; xadd eax,ecx; mov [rdi],ecx", "rax", "rcx")               \
    X(cmpxchg_equal_8, 8, KEEP, "mov rcx,[rsi]; mov rax,[rdi]; lock cmpxchg [rdi],rcx", "rax", "rcx")                  \
    X(cmpxchg_equal_4, 4, KEEP, "mov ecx,[rsi]; mov eax,[rdi]; cmpxchg [rdi],ecx", "rax", "rcx")                       \
    X(cmpxchg_equal_1, 1, KEEP, "mov cl,[rsi]; mov al,[rdi]; cmpxchg [rdi],cl", "rax", "rcx")                          \
    X(cmpxchg_other_8, 8, KEEP, "mov rax,[rsi]; not rax; mov ecx,1; cmpxchg [rsi],rcx; mov [rdi],rax", "rax", "rcx")   \
    X(cmpxchg_other_4, 4, KEEP, "mov eax,[rsi]; not eax; mov ecx,1; cmpxchg [rsi],ecx; mov [rdi],eax", "rax", "rcx")   \
    X(cmpxchg_other_2, 2, KEEP, "mov ax,[rsi]; not ax; mov ecx,1; cmpxchg [rsi],cx; mov [rdi],ax", "rax", "rcx")       \
    X(cmpxchg_other_1, 1, KEEP, "mov al,[rsi]; not al; mov ecx,1; cmpxchg [rsi],cl; mov [rdi],al", "rax", "rcx")       \
    X(cmpxchg_wrote_back, 8, KEEP,                                                                                     \
      "mov rax,[rsi]; not rax; mov ecx,1; lock cmpxchg [rsi],rcx; mov rdx,[rsi]; mov [rdi],rdx", "rax", "rcx", "rdx")  \
    X(cmpxchg_registers, 8, KEEP, "mov rbx,[rsi]; mov eax,7; mov edx,7; cmpxchg rdx,rbx; mov [rdi],rdx", "rax",        \
      "rbx", "rdx")                                                                                                    \
    X(cmpxchg_registers_4, 4, KEEP, "mov ebx,[rsi]; mov eax,7; mov edx,7; cmpxchg edx,ebx; mov [rdi],edx", "rax",      \
      "rbx", "rdx")                                                                                                    \
    X(cmpxchg_registers_other, 8, KEEP,                                                                                \
      "mov rdx,[rsi]; mov rax,rdx; not rax; mov ebx,1; cmpxchg rdx,rbx; mov [rdi],rax", "rax", "rbx", "rdx")           \
    X(cmpxchg_registers_kept, 8, KEEP,                                                                                 \
      "mov rdx,[rsi]; mov rax,rdx; not rax; mov ebx,1; cmpxchg rdx,rbx; mov [rdi],rdx", "rax", "rbx", "rdx")           \
    X(cmpxchg_accumulator_kept, 8, KEEP,                                                                               \
      "mov rax,[rsi]; mov rdx,rax; mov ebx,1; cmpxchg rdx,rbx; mov [rdi],rax", "rax", "rbx", "rdx")                    \
    X(cmpxchg8b_equal, 4, KEEP,                                                                                        \
      "mov eax,dword ptr " S "; mov edx,dword ptr " S "+4; mov ebx,[rsi]; mov ecx,1; lock cmpxchg8b qword ptr " S      \
      "; mov eax,dword ptr " S "; mov [rdi],eax",                                                                      \
      "rax", "rbx", "rcx", "rdx")                                                                                      \
    X(cmpxchg8b_other, 4, KEEP,                                                                                        \
      "mov eax,[rsi]; mov dword ptr " S "+4,eax; mov edx,eax; not edx; mov ebx,1; mov ecx,2; cmpxchg8b qword ptr " S   \
      "; mov [rdi],edx",                                                                                               \
      "rax", "rbx", "rcx", "rdx")                                                                                      \
    X(cmpxchg16b_equal, 8, KEEP,                                                                                       \
      "mov rax,qword ptr " S "; mov rdx,qword ptr " S "+8; mov rcx,[rsi]; mov ebx,1; lock cmpxchg16b xmmword ptr " S   \
      "; mov rax,qword ptr " S "+8; mov [rdi],rax",                                                                    \
      "rax", "rbx", "rcx", "rdx")                                                                                      \
    X(cmpxchg16b_other, 8, KEEP,                                                                                       \
      "mov rax,[rsi]; mov qword ptr " S ",rax; not rax; mov edx,1; mov ebx,1; mov ecx,2; cmpxchg16b xmmword ptr " S    \
      "; mov [rdi],rax",                                                                                               \
      "rax", "rbx", "rcx", "rdx")                                                                                      \
    CMOV(X, o) CMOV(X, no) CMOV(X, b) CMOV(X, ae) CMOV(X, e) CMOV(X, ne) CMOV(X, be) CMOV(X, a)                        \
    CMOV(X, s) CMOV(X, ns) CMOV(X, p) CMOV(X, np) CMOV(X, l) CMOV(X, ge) CMOV(X, le) CMOV(X, g)                        \
    X(bswap_8, 8, REVERSE, "mov rax,[rsi]; bswap rax; mov [rdi],rax", "rax")                                           \
    X(bswap_r15, 8, REVERSE, "mov r15,[rsi]; bswap r15; mov [rdi],r15", "r15")                                         \
    X(bswap_4, 4, REVERSE, "mov ecx,[rsi]; bswap ecx; mov [rdi],ecx", "rcx")                                           \
    X(bswap_twice, 8, KEEP, "mov rax,[rsi]; bswap rax; bswap rax; mov [rdi],rax", "rax")                               \
    X(lea, 8, KEEP, "mov rax,[rsi]; lea rcx,[rax]; mov [rdi],rcx", "rax", "rcx")                                       \
    X(lea_4, 4, KEEP, "mov rax,[rsi]; lea ecx,[rax]; mov [rdi],ecx", "rax", "rcx")                                     \
    X(movzx_low, 1, KEEP, "movzx eax,byte ptr [rsi]; mov [rdi],al", "rax")                                             \
    X(movzx_high, 1, KEEP, "mov ah,[rsi]; movzx ecx,ah; mov [rdi],cl", "rax", "rcx")                                   \
    X(movsx_low, 1, KEEP, "movsx rax,byte ptr [rsi]; mov [rdi],al", "rax")                                             \
    X(movzx_low_2, 2, KEEP, "movzx ecx,word ptr [rsi]; mov [rdi],cx", "rcx")                                           \
    X(movsxd_low, 4, KEEP, "movsxd rcx,dword ptr [rsi]; mov [rdi],ecx", "rcx")                                         \
    X(movzx_1_2, 1, ZERO_2, HERE "movzx ax,byte ptr [rsi]" WHERE "mov [rdi],ax", "rax", "r11")                         \
    X(movzx_1_4, 1, ZERO_4, HERE "movzx eax,byte ptr [rsi]" WHERE "mov [rdi],eax", "rax", "r11")                       \
    X(movzx_1_8, 1, ZERO_8, HERE "movzx eax,byte ptr [rsi]" WHERE "mov [rdi],rax", "rax", "r11")                       \
    X(movzx_2_8, 2, ZERO_8, HERE "movzx eax,word ptr [rsi]" WHERE "mov [rdi],rax", "rax", "r11")                       \
    X(mov_4_8, 4, ZERO_8, HERE "mov eax,[rsi]" WHERE "mov [rdi],rax", "rax", "r11")                                    \
    X(mov_edx_8, 4, ZERO_8, "mov rdx,[rsi]; " HERE "mov eax,edx" WHERE "mov [rdi],rax", "rax", "rdx", "r11")           \
    X(movd_4_8, 4, ZERO_8, HERE "movd xmm2,[rsi]" WHERE "movq [rdi],xmm2", "xmm2", "r11")                              \
    X(pextrb_1_8, 1, ZERO_8, "pinsrb xmm2,byte ptr [rsi],3; " HERE "pextrb eax,xmm2,3" WHERE "mov [rdi],rax", "rax",   \
      "xmm2", "r11")                                                                                                   \
    X(movsx_1_2, 1, SIGN_2, HERE "movsx ax,byte ptr [rsi]" WHERE "mov [rdi],ax", "rax", "r11")                         \
    X(movsx_1_4, 1, SIGN_4, HERE "movsx eax,byte ptr [rsi]" WHERE "mov [rdi],eax", "rax", "r11")                       \
    X(movsx_1_8, 1, SIGN_8, HERE "movsx rax,byte ptr [rsi]" WHERE "mov [rdi],rax", "rax", "r11")                       \
    X(movsx_2_8, 2, SIGN_8, HERE "movsx rax,word ptr [rsi]" WHERE "mov [rdi],rax", "rax", "r11")                       \
    X(movsx_eax_8, 2, SIGN_4_ZERO_8, HERE "movsx eax,word ptr [rsi]" WHERE "mov [rdi],rax", "rax", "r11")              \
    X(movsxd_8, 4, SIGN_8, HERE "movsxd rax,dword ptr [rsi]" WHERE "mov [rdi],rax", "rax", "r11")                      \
    X(cdqe, 4, SIGN_8, "mov eax,[rsi]; " HERE "cdqe" WHERE "mov [rdi],rax", "rax", "r11")                              \
    X(cwde, 2, SIGN_4, "mov ax,[rsi]; " HERE "cwde" WHERE "mov [rdi],eax", "rax", "r11")                               \
    X(cbw, 1, SIGN_2, "mov al,[rsi]; " HERE "cbw" WHERE "mov [rdi],ax", "rax", "r11")                                  \
    X(low_1, 2 + 4 + 8, LOW_1, "mov al,[rsi]; mov [rdi],al", "rax")                                                    \
    X(low_2, 4 + 8, LOW_2, "mov eax,[rsi]; mov [rdi],ax", "rax")                                                       \
    X(low_4, 8, LOW_4, "mov rax,[rsi]; mov [rdi],eax", "rax")                                                          \
    X(movdqu, 15, KEEP, "movdqu xmm3,[rsi]; movdqu [rdi],xmm3", "xmm3")                                                \
    X(movups, 15, KEEP, "movups xmm0,[rsi]; movaps xmm15,xmm0; movupd [rdi],xmm15", "xmm0", "xmm15")                   \
    X(lddqu, 15, KEEP, "lddqu xmm13,[rsi]; movdqa xmm7,xmm13; movups [rdi],xmm7", "xmm7", "xmm13")                     \
    X(aligned, 15, KEEP,                                                                                               \
      "mov rax,[rsi]; mov qword ptr " S ",rax; movaps xmm8,xmmword ptr " S "; movapd xmmword ptr " S                   \
      "+16,xmm8; movdqa xmm1,xmmword ptr " S "+16; movntdq xmmword ptr " S "+32,xmm1; movntdqa xmm2,xmmword ptr " S    \
      "+32; movntps xmmword ptr " S "+48,xmm2; mov rax,qword ptr " S "+48; mov [rdi],rax",                             \
      "rax", "xmm1", "xmm2", "xmm8")                                                                                   \
    X(movq_memory, 8, KEEP, "movq xmm5,[rsi]; movq xmm6,xmm5; movq [rdi],xmm6", "xmm5", "xmm6")                        \
    X(movq_general, 8, KEEP, "mov rax,[rsi]; movq xmm6,rax; movq rcx,xmm6; mov [rdi],rcx", "rax", "rcx", "xmm6")       \
    X(movd_memory, 4, KEEP, "movd xmm5,[rsi]; movd [rdi],xmm5", "xmm5")                                                \
    X(movd_general, 4, KEEP, "mov eax,[rsi]; movd xmm9,eax; movd ecx,xmm9; mov [rdi],ecx", "rax", "rcx", "xmm9")       \
    X(movss, 4, KEEP, "movss xmm2,dword ptr [rsi]; pcmpeqd xmm4,xmm4; movss xmm4,xmm2; movss dword ptr [rdi],xmm4",    \
      "xmm2", "xmm4")                                                                                                  \
    X(movsd, 8, KEEP, "movsd xmm2,qword ptr [rsi]; pcmpeqd xmm4,xmm4; movsd xmm4,xmm2; movsd qword ptr [rdi],xmm4",    \
      "xmm2", "xmm4")                                                                                                  \
    X(movhps, 8, KEEP, "movhps xmm1,qword ptr [rsi]; movhpd qword ptr [rdi],xmm1", "xmm1")                             \
    X(movlps, 8, KEEP,                                                                                                 \
      "movlps xmm1,qword ptr [rsi]; movlhps xmm7,xmm1; movhlps xmm9,xmm7; movlpd qword ptr [rdi],xmm9", "xmm1",        \
      "xmm7", "xmm9")                                                                                                  \
    X(punpcklqdq, 8, KEEP, "movq xmm0,[rsi]; pcmpeqd xmm2,xmm2; punpcklqdq xmm2,xmm0; movhps [rdi],xmm2", "xmm0",      \
      "xmm2")                                                                                                          \
    X(punpckhqdq, 8, KEEP, "movhps xmm0,[rsi]; punpckhqdq xmm0,xmm2; movq [rdi],xmm0", "xmm0", "xmm2")                 \
    X(unpckhpd, 8, KEEP, "movhps xmm0,[rsi]; unpckhpd xmm2,xmm0; movhps [rdi],xmm2", "xmm0", "xmm2")                   \
    X(unpcklpd, 8, KEEP, "movq xmm0,[rsi]; unpcklpd xmm0,xmm2; movq [rdi],xmm0", "xmm0", "xmm2")                       \
    X(punpcklqdq_memory, 8, KEEP,                                                                                      \
      "mov rax,[rsi]; mov qword ptr " S ",rax; punpcklqdq xmm2,xmmword ptr " S "; movhps [rdi],xmm2", "rax", "xmm2")   \
    X(movddup, 8, KEEP, "movddup xmm3,qword ptr [rsi]; movddup xmm4,xmm3; movhps [rdi],xmm4", "xmm3", "xmm4")          \
    X(pshufd, 8, SWAP_HALVES, "movq xmm0,[rsi]; pshufd xmm1,xmm0,0xe1; movq [rdi],xmm1", "xmm0", "xmm1")               \
    X(pshufd_up, 8, KEEP, "movq xmm0,[rsi]; pshufd xmm0,xmm0,0x4e; movhps [rdi],xmm0", "xmm0")                         \
    X(palignr, 8, KEEP,                                                                                                \
      "movdqu xmm0,[rsi-5]; pcmpeqd xmm1,xmm1; palignr xmm1,xmm0,5; movq [rdi],xmm1", "xmm0", "xmm1")                  \
    X(palignr_upper, 8, KEEP,                                                                                          \
      "movdqu xmm0,[rsi-2]; palignr xmm0,xmm1,14; palignr xmm1,xmm0,4; movq [rdi],xmm1", "xmm0", "xmm1")               \
    X(palignr_of_two, 8, SPLIT_HALVES,                                                                                 \
      "movdqu xmm0,[rsi-12]; movdqu xmm1,[rsi+4]; palignr xmm1,xmm0,12; movq [rdi],xmm1", "xmm0", "xmm1")              \
    X(shift_of_bytes, 8, KEEP,                                                                                         \
      "movq xmm0,[rsi]; pslldq xmm0,5; psrldq xmm0,2; psrldq xmm0,3; movq [rdi],xmm0", "xmm0")                         \
    X(shufps, 8, SWAP_HALVES, "movq xmm0,[rsi]; shufps xmm0,xmm0,0xe1; movq [rdi],xmm0", "xmm0")                       \
    X(shufps_of_two, 8, KEEP, "movq xmm0,[rsi]; shufps xmm2,xmm0,0x44; movhps [rdi],xmm2", "xmm0", "xmm2")             \
    X(shufpd, 8, KEEP, "movhps xmm0,[rsi]; shufpd xmm0,xmm2,1; movq [rdi],xmm0", "xmm0", "xmm2")                       \
    X(pshuflw, 4, SWAP_HALVES, "movd xmm0,[rsi]; pshuflw xmm1,xmm0,0xe1; movd [rdi],xmm1", "xmm0", "xmm1")             \
    X(pshufhw, 2, KEEP,                                                                                                \
      "pinsrw xmm0,word ptr [rsi],5; pshufhw xmm1,xmm0,0x40; pextrw word ptr [rdi],xmm1,7", "xmm0", "xmm1")            \
    X(punpcklbw, 1, KEEP,                                                                                              \
      "pinsrb xmm0,byte ptr [rsi],3; punpcklbw xmm1,xmm0; pextrb byte ptr [rdi],xmm1,7", "xmm0", "xmm1")               \
    X(punpckhwd, 2, KEEP,                                                                                              \
      "pinsrw xmm0,word ptr [rsi],6; punpckhwd xmm0,xmm1; pextrw word ptr [rdi],xmm0,4", "xmm0", "xmm1")               \
    X(punpckldq, 4, KEEP, "movd xmm0,[rsi]; punpckldq xmm1,xmm0; pextrd dword ptr [rdi],xmm1,1", "xmm0", "xmm1")       \
    X(unpckhps, 4, KEEP,                                                                                               \
      "pinsrd xmm0,dword ptr [rsi],3; unpckhps xmm1,xmm0; pextrd dword ptr [rdi],xmm1,3", "xmm0", "xmm1")              \
    X(movshdup, 4, KEEP,                                                                                               \
      "pinsrd xmm0,dword ptr [rsi],1; movshdup xmm1,xmm0; movsldup xmm2,xmm1; movd [rdi],xmm2",                        \
      "xmm0", "xmm1", "xmm2")                                                                                          \
    X(pblendw, 8, KEEP, "movq xmm0,[rsi]; pcmpeqd xmm1,xmm1; pblendw xmm1,xmm0,0x1f; movq [rdi],xmm1", "xmm0", "xmm1") \
    X(blendps, 8, KEEP,                                                                                                \
      "movhps xmm0,[rsi]; pcmpeqd xmm1,xmm1; blendps xmm1,xmm0,12; blendpd xmm1,xmm0,1; movhps [rdi],xmm1",            \
      "xmm0", "xmm1")                                                                                                  \
    X(pinsrb, 1, KEEP, "pinsrb xmm4,byte ptr [rsi],5; pextrb byte ptr [rdi],xmm4,5", "xmm4")                           \
    X(pinsrb_general, 1, KEEP, "mov al,[rsi]; pinsrb xmm4,eax,15; pextrb ecx,xmm4,15; mov [rdi],cl", "rax", "rcx",     \
      "xmm4")                                                                                                          \
    X(pinsrw, 2, KEEP, "pinsrw xmm4,word ptr [rsi],3; pextrw word ptr [rdi],xmm4,3", "xmm4")                           \
    X(pinsrw_general, 2, KEEP, "mov ax,[rsi]; pinsrw xmm4,eax,6; pextrw ecx,xmm4,6; mov [rdi],cx", "rax", "rcx",       \
      "xmm4")                                                                                                          \
    X(pinsrd, 4, KEEP, "pinsrd xmm4,dword ptr [rsi],2; pextrd dword ptr [rdi],xmm4,2", "xmm4")                         \
    X(pinsrd_general, 4, KEEP, "mov eax,[rsi]; pinsrd xmm4,eax,1; pextrd ecx,xmm4,1; mov [rdi],ecx", "rax", "rcx",     \
      "xmm4")                                                                                                          \
    X(pinsrq, 8, KEEP, "pinsrq xmm4,qword ptr [rsi],1; pextrq rax,xmm4,1; mov [rdi],rax", "rax", "xmm4")               \
    X(pinsrw_twice, 4, SPLIT_HALVES, "pinsrw xmm4,word ptr [rsi],0; pinsrw xmm4,word ptr [rsi+2],1; movd [rdi],xmm4",  \
      "xmm4")                                                                                                          \
    X(movnti, 8, KEEP, "mov rax,[rsi]; movnti [rdi],rax", "rax")                                                       \
    X(movnti_4, 4, KEEP, "mov eax,[rsi]; movnti [rdi],eax", "rax")                                                     \
    X(fxsave, 15, KEEP,                                                                                                \
      "movdqu xmm11,[rsi]; fxsave64 [rip+area]; pxor xmm11,xmm11; fxrstor64 [rip+area]; movdqu [rdi],xmm11", "xmm11")  \
    X(xsave, 15, KEEP,                                                                                                 \
      "movdqu xmm12,[rsi]; mov eax,3; xor edx,edx; xsave64 [rip+area]; pxor xmm12,xmm12; xrstor64 [rip+area]; "        \
      "movdqu [rdi],xmm12",                                                                                            \
      "rax", "rdx", "xmm12")                                                                                           \
    X(movsb, 1, KEEP, "movsb", "rax")                                                                                  \
    X(movsw, 2, KEEP, "movsw", "rax")                                                                                  \
    X(movsd_string, 4, KEEP, "std; movsd; cld", "rax")                                                                 \
    X(movsq, 8, KEEP, "movsq", "rax")                                                                                  \
    X(lods_stos_1, 1, KEEP, "lodsb; stosb", "rax")                                                                     \
    X(lods_stos_2, 2, KEEP, "std; lodsw; stosw; cld", "rax")                                                           \
    X(lods_stos_4, 4, KEEP, "lodsd; stosd", "rax")                                                                     \
    X(lods_stos_8, 8, KEEP, "lodsq; stosq", "rax")                                                                     \
    X(rep_lods, 8, KEEP, "mov r8,rdi; mov ecx,3; sub rsi,16; rep lodsq; mov [r8],rax", "rax", "rcx", "r8")             \
    X(rep_of_none, 8, KEEP,                                                                                            \
      "mov rdx,[rsi]; mov [rdi],rdx; xor ecx,ecx; rep stosb; rep movsq; mov eax,1; rep stosq", "rax", "rcx", "rdx")    \
    X(bytes_upward, 15, SPLIT,                                                                                         \
      "xor ecx,ecx; .Lx%=: mov al,[rsi+rcx]; mov [rdi+rcx],al; inc ecx; cmp ecx,dword ptr [rip+width]; jb .Lx%=",      \
      "rax", "rcx")                                                                                                    \
    X(bytes_downward, 15, SPLIT,                                                                                       \
      "mov ecx,dword ptr [rip+width]; .Lx%=: mov al,[rsi+rcx-1]; mov [rdi+rcx-1],al; dec ecx; jnz .Lx%=", "rax",       \
      "rcx")                                                                                                           \
    X(two_halves, 8, SPLIT_HALVES, "mov eax,[rsi]; mov ecx,[rsi+4]; mov [rdi+4],ecx; mov [rdi],eax", "rax", "rcx")     \
    X(two_halves_4, 4, SPLIT_HALVES, "mov ax,[rsi]; mov cx,[rsi+2]; mov [rdi+2],cx; mov [rdi],ax", "rax", "rcx")       \
    X(parts_of_register, 2, SPLIT, "mov al,[rsi]; mov ah,[rsi+1]; mov [rdi],ax", "rax")                                \
    X(pattern, 15, PATTERN,                                                                                            \
      "mov al,[rsi]; mov [rdi-1],al; lea rsi,[rdi-1]; mov ecx,dword ptr [rip+width]; rep movsb", "rax", "rcx")         \
    X(rep_stosb, 1, REPEAT, "mov al,[rsi]; mov ecx,40; rep stosb", "rax", "rcx")                                       \
    X(rep_stosw, 2, REPEAT, "mov ax,[rsi]; mov ecx,9; rep stosw", "rax", "rcx")                                        \
    X(rep_stosd, 4, REPEAT, "mov eax,[rsi]; mov ecx,5; rep stosd", "rax", "rcx")                                       \
    X(rep_stosq, 8, KEEP, "mov rax,[rsi]; mov ecx,5; rep stosq", "rax", "rcx")                                         \
    X(add_nothing, 8, AGAIN, "mov rax,[rsi]; " HERE "add rax,0" WHERE "mov [rdi],rax", "rax", "r11")                   \
    X(xadd_nothing, 8, AGAIN, "mov rax,[rsi]; mov [rdi],rax; xor ecx,ecx; " HERE "lock xadd [rdi],rcx" WHERE, "rax",   \
      "rcx", "r11")                                                                                                    \
    X(signal_rbx, 8, MAY, "mov rbx,[rsi]; " RAISE "mov [rdi],rbx", "rbx", SYSTEM)                                      \
    X(signal_r10d, 4, MAY, "mov r10d,[rsi]; " RAISE "mov [rdi],r10d", "r10", SYSTEM)                                   \
    X(signal_r15, 8, MAY, "mov r15,[rsi]; " RAISE "mov [rdi],r15", "r15", SYSTEM)                                      \
    X(signal_rbp, 8, MAY, "push rbp; mov rbp,[rsi]; " RAISE "mov [rdi],rbp; pop rbp", SYSTEM)                          \
    X(signal_bl, 1, MAY, "mov bl,[rsi]; " RAISE "mov [rdi],bl", "rbx", SYSTEM)                                         \
    X(signal_xmm9, 15, MAY, "movdqu xmm9,[rsi]; " RAISE "movdqu [rdi],xmm9", "xmm9", SYSTEM)                           \
    X(fault_rcx, 8, MAY, "mov rcx,[rsi]; ud2; mov [rdi],rcx", "rcx")                                                   \
    X(fault_r11d, 4, MAY, "mov r11d,[rsi]; ud2; mov [rdi],r11d", "r11")                                                \
    X(fault_xmm2, 8, MAY, "movq xmm2,[rsi]; ud2; movq [rdi],xmm2", "xmm2")                                             \
    X(yield_r12, 8, MAY, "mov r12,[rsi]; " YIELD "mov [rdi],r12", "r12", SYSTEM)                                       \
    X(yield_r8w, 2, MAY, "mov r8w,[rsi]; " YIELD "mov [rdi],r8w", "r8", SYSTEM)                                        \
    X(switch_rbx, 8, MAY, "mov rbx,[rsi]; " SWITCH "mov [rdi],rbx", "rbx", SYSTEM)                                     \
    X(switch_r9, 8, MAY, "mov r9,[rsi]; " SWITCH "mov [rdi],r9", "r9", SYSTEM)                                         \
    X(switch_r13d, 4, MAY, "mov r13d,[rsi]; " SWITCH "mov [rdi],r13d", "r13", SYSTEM)                                  \
    X(switch_rbp, 8, MAY, "push rbp; mov rbp,[rsi]; " SWITCH "mov [rdi],rbp; pop rbp", SYSTEM)                         \
    X(switch_xmm6, 15, MAY, "movdqu xmm6,[rsi]; " SWITCH "movdqu [rdi],xmm6", "xmm6", SYSTEM)                          \
    X(switch_xmm14, 8, MAY, "movhps xmm14,[rsi]; " SWITCH "movhps [rdi],xmm14", "xmm14", SYSTEM)                       \
    X(alarm_r8, 8, MAY, "mov r8,[rsi]; " ALARM "mov [rdi],r8", "r8", SYSTEM)                                           \
    X(alarm_xmm0, 8, MAY, "movq xmm0,[rsi]; " ALARM "movq [rdi],xmm0", "xmm0", SYSTEM)

#define FUNCTION(name, widths, effect, code, ...)                                                                      \
    static u8 *hop_##name(u8 *to, u8 *from) {                                                                          \
        u8 *place = to;                                                                                                \
        __asm__ volatile(code : "+S"(from), "+D"(place)::"memory", "cc", __VA_ARGS__);                                 \
        return to;                                                                                                     \
    }
MOVES(FUNCTION)

#define ROW(name, widths, effect, ...) {#name, hop_##name, widths, effect},
const struct hop moves[] = {MOVES(ROW)};
const unsigned move_count = sizeof moves / sizeof *moves;
