# The 64-bit Linux entry. RSI has the address of boot_params. The C code checks everything else.
        .section .note.GNU-stack, "", @progbits
        .text
        .global entry64
entry64:
        mov $stack_top, %esp
        pushf
        pop %rdx
        cld
        mov %rsi, %rdi
        mov %cs, %esi
        mov %ss, %ecx
        call main
        call finish

        .bss
        .balign 16
        .skip 16384
stack_top:
