#include "common.h"

const char kernel_name[] = "elf64";

static uint64_t read(const uint8_t *at, int size)
{
    uint64_t value = 0;
    while (size--)
        value = value << 8 | at[size];
    return value;
}

static void check_cpu(uint64_t cs, uint64_t flags, uint64_t ss)
{
    uint64_t cr0, cr4;
    uint32_t efer, high;
    __asm__("mov %%cr0, %0" : "=r"(cr0));
    __asm__("mov %%cr4, %0" : "=r"(cr4));
    __asm__ volatile("rdmsr" : "=a"(efer), "=d"(high) : "c"(0xC0000080));
    check_equal(cs, 0x10, "CS is not __BOOT_CS");
    check_equal(ss, 0x18, "SS is not __BOOT_DS");
    check_equal(flags & 0x200, 0, "interrupts are enabled");
    check_equal(cr0 & 0x80000001, 0x80000001, "CR0 lacks PE or PG");
    check_equal(cr4 & 0x20, 0x20, "CR4 lacks PAE");
    check_equal(efer & 0x500, 0x500, "EFER lacks LME or LMA");
    /* The selectors must also be in the descriptor table, because kernels reload them. */
    __asm__ volatile("mov %0, %%ds; mov %0, %%es; mov %0, %%ss" ::"r"(0x18));
    __asm__ volatile("push $0x10; lea 1f(%%rip), %%rax; push %%rax; lretq; 1:" ::: "rax", "memory");
}

/* Walks the tables for one address in each 2 MiB of the first 4 GiB. */
static void check_identity_map(void)
{
    uint64_t cr3;
    __asm__("mov %%cr3, %0" : "=r"(cr3));
    for (uint64_t address = 0; address < 0x100000000; address += 0x200000) {
        uint64_t entry = cr3;
        int shift = 39;
        for (; shift >= 12; shift -= 9) {
            entry = ((uint64_t *)(entry & 0xFFFFFFFFFF000))[address >> shift & 511];
            if (!(entry & 1) || !(entry & 2)) {
                fail_value("an address is not mapped writable", address);
                return;
            }
            if (shift <= 30 && entry & 0x80)
                break;
        }
        uint64_t offset_mask = (1ull << (shift < 12 ? 12 : shift)) - 1;
        uint64_t mapped = (entry & 0xFFFFFFFFFF000 & ~offset_mask) | (address & offset_mask);
        if (mapped != address) {
            fail_value("an address is not mapped to itself", address);
            return;
        }
    }
}

static void check_setup_data(uint64_t node)
{
    int seeds = 0;
    while (node) {
        const uint8_t *at = (const uint8_t *)node;
        if (read(at + 8, 4) == 9)
            seeds += read(at + 12, 4) >= 16;
        node = read(at, 8);
    }
    check_equal(seeds, expected("seed", 1) == 0, "wrong number of random seeds in setup_data");
}

void main(const uint8_t *params, uint64_t cs, uint64_t flags, uint64_t ss)
{
    check_cpu(cs, flags, ss);
    check_identity_map();
    check_equal(read(params + 0x202, 4), 0x53726448, "boot_params has no HdrS");
    check_equal(read(params + 0x1FE, 2), 0xAA55, "boot_params has no boot flag");
    check_equal(params[0x1EF], 0, "the sentinel of boot_params is set");
    check(params[0x210] != 0, "the loader has no type");
    check_command_line((const char *)read(params + 0x228, 4));
    for (int i = 0; i < params[0x1E8]; i++) {
        const uint8_t *entry = params + 0x2D0 + i * 20;
        check_memory_range((struct range){read(entry, 8), read(entry + 8, 8), read(entry + 16, 4)});
    }
    check_memory_map_end();
    uint64_t initrd = read(params + 0x218, 4), size = read(params + 0x21C, 4);
    check_module_count(initrd != 0);
    if (initrd)
        check_module(initrd, size);
    check_setup_data(read(params + 0x250, 8));
    check_rsdp((const uint8_t *)read(params + 0x70, 8));
}
