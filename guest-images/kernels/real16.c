/* Real mode, as far as firmware calls, boot loaders and processor start-up code need real mode. */
#include "mb1.h"

const char kernel_name[] = "real16";

struct __attribute__((packed)) results {
    uint16_t protected_cs, real_cs, machine_status, alias, interrupt_ax;
    uint8_t interrupt_carry, padding;
    uint32_t rotated;
    uint16_t loop_sum, pushed_sp;
};

extern const volatile struct results *trip(void);

void main(uint32_t magic, const uint32_t *info)
{
    check_multiboot1(magic, info);
    const volatile struct results *found = trip();
    check_equal(found->protected_cs, 0x08, "16-bit protected mode has a wrong CS");
    check_equal(found->real_cs, 0x7000, "real mode has a wrong CS");
    check_equal(found->machine_status & 1, 0, "CR0.PE is set in real mode");
    check_equal(found->alias, 0xBEEF, "segment arithmetic is wrong");
    check_equal(found->interrupt_ax, 0x3412, "INT 0x60 did not run its handler");
    check_equal(found->interrupt_carry, 0, "IRET did not restore the changed flags");
    check_equal(found->rotated, 0x34567812, "a 32-bit operand in real mode is wrong");
    check_equal(found->loop_sum, 15, "LOOP counts wrongly");
    check_equal(found->pushed_sp, 0x7FFE, "PUSH moves SP wrongly");
    uint32_t cr0;
    __asm__("mov %%cr0, %0" : "=r"(cr0));
    check_equal(cr0 & 1, 1, "the way back did not set CR0.PE");
    check_equal(*(const volatile uint16_t *)0x70110, 0xBEEF, "the copy is not at 0x70000");
}
