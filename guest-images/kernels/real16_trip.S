# 32-bit protected mode -> 16-bit protected mode -> real mode -> 32-bit protected mode.
#
# trip() copies the code between trip_start and trip_end to SEGMENT:0 and calls it there; the code leaves its findings in
# the words behind trip_results (read by C at the copy). Real mode starts with the limits of the 16-bit segments.
        .set SEGMENT, 0x7000
        .set BASE, SEGMENT * 16
        .section .note.GNU-stack, "", @progbits
        .text
        .code32
        .global trip
trip:
        push %ebx
        push %esi
        push %edi
        push %ebp
        mov $trip_start, %esi
        mov $BASE, %edi
        mov $(trip_end - trip_start), %ecx
        rep movsb
        sgdt saved_gdt
        sidt saved_idt
        mov %esp, saved_esp
        mov %cs, saved_cs
        mov %ds, saved_ds
        lgdt trip_gdt_register
        mov $0x08, %eax
        ljmp $0x08, $(trip_code32 - trip_start)

# Back in 32-bit mode on this kernel's own descriptors.
trip_back:
        mov $0x28, %eax
        mov %eax, %ds
        mov %eax, %es
        mov %eax, %ss
        mov saved_esp, %esp
        lidt saved_idt
        lgdt saved_gdt
        mov saved_ds, %ax
        mov %ax, %ds
        mov %ax, %es
        mov %ax, %fs
        mov %ax, %gs
        mov %ax, %ss
        movzwl saved_cs, %eax
        push %eax
        push $1f
        lret
1:
        pop %ebp
        pop %edi
        pop %esi
        pop %ebx
        mov $BASE + (trip_results - trip_start), %eax
        ret

        .data
        .balign 8
trip_gdt:
        .quad 0
        .quad 0x00009B070000FFFF        # 08: 16-bit code at BASE
        .quad 0x000093070000FFFF        # 10: 16-bit data at BASE
        .quad 0                         # 18
        .quad 0x00CF9B000000FFFF        # 20: flat 32-bit code
        .quad 0x00CF93000000FFFF        # 28: flat data
trip_gdt_register:
        .word trip_gdt_register - trip_gdt - 1
        .long trip_gdt
saved_gdt:      .skip 6
saved_idt:      .skip 6
saved_esp:      .long 0
saved_cs:       .word 0
saved_ds:       .word 0

        .section .rodata
        .code16
trip_start:
trip_code32:
        mov $0x10, %ax
        mov %ax, %ds
        mov %ax, %es
        mov %ax, %fs
        mov %ax, %gs
        mov %ax, %ss
        # 16-bit protected mode: the code segment's default size is 16 bits.
        mov %cs, trip_results - trip_start + 0
        mov %cr0, %eax
        and $0xFE, %al
        mov %eax, %cr0
        ljmp $SEGMENT, $(real - trip_start)
real:
        mov $SEGMENT, %ax
        mov %ax, %ds
        mov %ax, %ss
        mov $0x8000, %sp
        lidtl real_idt - trip_start
        mov %cs, trip_results - trip_start + 2
        smsw %ax
        mov %ax, trip_results - trip_start + 4
        # Another name of the same byte: segment 0x7010, offset less by 0x100.
        mov $(SEGMENT + 0x10), %ax
        mov %ax, %es
        mov %es:(trip_marker - trip_start - 0x100), %ax
        mov %ax, trip_results - trip_start + 6
        # A software interrupt through the vector table at 0.
        xor %ax, %ax
        mov %ax, %es
        mov %es:(0x60 * 4), %ebx
        movw $(handler - trip_start), %es:(0x60 * 4)
        movw $SEGMENT, %es:(0x60 * 4 + 2)
        mov $0x1234, %ax
        stc
        int $0x60
        mov %ax, trip_results - trip_start + 8
        setc trip_results - trip_start + 10
        mov %ebx, %es:(0x60 * 4)
        # 32-bit operands and addresses by prefix, and a loop that counts CX.
        mov $0x12345678, %esi
        rol $8, %esi
        mov %esi, trip_results - trip_start + 12
        mov $5, %cx
        xor %ax, %ax
2:      add %cx, %ax
        loop 2b
        mov %ax, trip_results - trip_start + 16
        # A pushed 16-bit word lies just below SP, and SP is 16 bits wide.
        push %cs
        mov %sp, trip_results - trip_start + 18
        pop %ax
        mov %cr0, %eax
        or $1, %al
        mov %eax, %cr0
        ljmpl $0x20, $trip_back

handler:
        xchg %ah, %al
        push %bp
        mov %sp, %bp
        andw $0xFFFE, 6(%bp)            # clear the carry flag that IRET restores
        pop %bp
        iret

        .balign 4
real_idt:
        .word 0x3FF
        .long 0
trip_results:
        .skip 32
        .skip 0x110 - (. - trip_start), 0
trip_marker:
        .word 0xBEEF
trip_end:
