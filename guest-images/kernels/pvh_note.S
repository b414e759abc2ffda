# The ELF note that makes this a PVH kernel.
        .section .note.GNU-stack, "", @progbits
        .section .note.Xen, "a", @note
        .balign 4
        .long 4, 4, 18
        .asciz "Xen"
        .long entry32
