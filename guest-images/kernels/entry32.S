# The common 32-bit entry: saves the loader's values of the registers, makes a stack, and calls C with EAX and EBX.
        .section .note.GNU-stack, "", @progbits
        .text
        .global entry32
entry32:
        mov %eax, entry_eax
        mov %cr0, %eax
        mov %eax, entry_cr0
        mov %cs, entry_cs
        mov %ds, entry_segments
        mov %es, entry_segments + 2
        mov %fs, entry_segments + 4
        mov %gs, entry_segments + 6
        mov %ss, entry_segments + 8
        mov $stack_top, %esp
        pushf
        pop entry_flags
        cld
        push %ebx
        push entry_eax
        call main
        call finish

        .data
        .global entry_flags, entry_cr0, entry_cs, entry_segments
entry_eax:      .long 0
entry_flags:    .long 0
entry_cr0:      .long 0
entry_cs:       .word 0
entry_segments: .word 0, 0, 0, 0, 0

        .bss
        .balign 16
        .skip 16384
stack_top:
