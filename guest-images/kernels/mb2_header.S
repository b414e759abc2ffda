# A Multiboot2 header: asks for all the information that the kernel then checks.
        .section .note.GNU-stack, "", @progbits
        .section .header, "a"
        .balign 8
header:
        .long 0xE85250D6, 0, header_end - header, -(0xE85250D6 + (header_end - header))
        .balign 8
        .word 1, 0
        .long request_end - . + 4
        .long 1, 2, 4, 6, 9
request_end:
        .balign 8
        .word 6, 0              # page-aligned modules
        .long 8
        .word 0, 0
        .long 8
header_end:
