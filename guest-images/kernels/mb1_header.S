# A Multiboot 1 header, which requests page-aligned modules and memory information.
        .section .note.GNU-stack, "", @progbits
        .section .header, "a"
        .balign 4
        .long 0x1BADB002, 3, -(0x1BADB002 + 3)
