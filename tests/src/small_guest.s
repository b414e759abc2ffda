# A Multiboot kernel of a few instructions. The kernel stirs a megabyte of memory and echoes typed text. Each tick of
# the timer mixes the address of the interrupted instruction into the memory. So a tick at another instruction changes
# all later results.
.set STIRRED, 0x200000
.set STIRRED_BYTES, 0x100000
.set STACK, 0x400000
.set ROUNDS, 2000000
.set TICK, 1193 # cycles of the PIT: a millisecond
.set MAGIC, 0x1BADB002
.set HAS_ADDRESSES, 0x10000

.code32
.text
header:
    .long MAGIC, HAS_ADDRESSES, -(MAGIC + HAS_ADDRESSES), header, header, end, end, _start

.globl _start
_start:
    lgdt gdt_pointer
    ljmp $8, $1f
1:  mov $16, %eax
    mov %eax, %ds
    mov %eax, %es
    mov %eax, %ss
    mov $STACK, %esp

    # Interrupt 32 is the timer's.
    mov $tick, %eax
    mov %ax, idt + 32 * 8
    movw $8, idt + 32 * 8 + 2
    movw $0x8E00, idt + 32 * 8 + 4
    shr $16, %eax
    mov %ax, idt + 32 * 8 + 6
    lidt idt_pointer
    mov $0x11, %al
    out %al, $0x20
    mov $32, %al
    out %al, $0x21
    mov $4, %al
    out %al, $0x21
    mov $1, %al
    out %al, $0x21
    mov $0xFE, %al
    out %al, $0x21
    mov $0x34, %al
    out %al, $0x43
    mov $(TICK & 0xFF), %al
    out %al, $0x40
    mov $(TICK >> 8), %al
    out %al, $0x40

    # The serial port listens.
    mov $0x3F9, %dx
    mov $1, %al
    out %al, %dx
    xor %ebx, %ebx
    mov $ROUNDS, %esi
    sti

round:
    imul $1664525, %ebx, %ebx
    add $1013904223, %ebx
    mov %ebx, %eax
    shr $10, %eax
    and $(STIRRED_BYTES - 4), %eax
    add STIRRED(%eax), %ebx
    mov %ebx, STIRRED(%eax)
    test $0xFF, %esi
    jnz quiet
    add interrupted, %ebx
    mov $0x3FD, %dx
    in %dx, %al
    test $1, %al
    jz quiet
    mov $0x3F8, %dx
    in %dx, %al
    out %al, %dx
    movzx %al, %eax
    add %eax, %ebx
quiet:
    dec %esi
    jnz round

    # Ends the run.
    mov $0x501, %dx
    xor %eax, %eax
    out %eax, %dx
1:  jmp 1b

tick:
    push %eax
    mov 4(%esp), %eax
    add %eax, interrupted
    mov $0x20, %al
    out %al, $0x20
    pop %eax
    iret

.balign 8
gdt:
    # Marked as accessed: emulators differ in whether a far jump marks them.
    .quad 0, 0x00CF9B000000FFFF, 0x00CF93000000FFFF
gdt_pointer:
    .word 23
    .long gdt
idt_pointer:
    .word 33 * 8 - 1
    .long idt
interrupted:
    .long 0
.balign 8
idt:
    .fill 33, 8, 0
end:
