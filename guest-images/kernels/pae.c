/* PAE paging (Intel SDM volume 3, 4.4). This kernel makes page tables, and then checks all their visible effects. */
#include "mb1.h"

const char kernel_name[] = "pae";

enum { PRESENT = 1, WRITABLE = 2, ACCESSED = 0x20, DIRTY = 0x40, LARGE = 0x80 };

typedef uint64_t table[512] __attribute__((aligned(4096)));

static uint64_t pointers[4] __attribute__((aligned(32)));
static table directories[4], small_pages;
static uint8_t frame[4096] __attribute__((aligned(4096))), other_frame[4096] __attribute__((aligned(4096)));

/* Set by the page-fault handler, which continues after the faulting access. */
volatile uint32_t fault_count, fault_error, fault_address;
extern void page_fault_entry(void);
extern uint32_t try_read(volatile uint32_t *at);
extern void try_write(volatile uint32_t *at, uint32_t value);

__asm__(".text\n"
        "page_fault_entry:\n"
        "  push %eax\n"
        "  mov 4(%esp), %eax\n"
        "  mov %eax, fault_error\n"
        "  mov %cr2, %eax\n"
        "  mov %eax, fault_address\n"
        "  incl fault_count\n"
        "  pop %eax\n"
        "  add $4, %esp\n"
        "  addl $2, (%esp)\n" /* Both accesses below are two bytes long. */
        "  iret\n"
        ".global try_read\n"
        "try_read:  mov 4(%esp), %ecx\n"
        "  mov $0xDEAD, %eax\n"
        "  .byte 0x8B, 0x01\n" /* mov (%ecx), %eax */
        "  ret\n"
        ".global try_write\n"
        "try_write: mov 4(%esp), %ecx\n"
        "  mov 8(%esp), %eax\n"
        "  .byte 0x89, 0x01\n" /* mov %eax, (%ecx) */
        "  ret\n");

#define WINDOW 0xC0000000u

static uint64_t idt[32] __attribute__((aligned(8)));

static void set_up_fault_handler(void)
{
    uint32_t handler = (uint32_t)page_fault_entry, cs;
    __asm__("mov %%cs, %0" : "=r"(cs));
    idt[14] = (uint64_t)(handler >> 16) << 48 | 0x8E0000000000 | (uint64_t)(cs & 0xFFFF) << 16 | (handler & 0xFFFF);
    struct __attribute__((packed)) {
        uint16_t limit;
        uint32_t base;
    } idtr = {sizeof idt - 1, (uint32_t)idt};
    __asm__ volatile("lidt %0" ::"m"(idtr));
}

static void turn_paging_on(void)
{
    for (uint32_t i = 0; i < 4; i++) {
        pointers[i] = (uint32_t)directories[i] | PRESENT;
        for (uint32_t j = 0; j < 512; j++)
            directories[i][j] = (uint64_t)(i * 512 + j) << 21 | PRESENT | WRITABLE | LARGE;
    }
    directories[3][0] = (uint32_t)small_pages | PRESENT | WRITABLE;
    uint32_t register_value;
    __asm__ volatile("mov %%cr4, %0; or $0x20, %0; mov %0, %%cr4" : "=r"(register_value));
    __asm__ volatile("mov %0, %%cr3" ::"r"(pointers) : "memory");
    __asm__ volatile("mov %%cr0, %0; or $0x80010000, %0; mov %0, %%cr0; jmp 1f; 1:" : "=r"(register_value)::"memory");
}

static void invalidate(uint32_t address) { __asm__ volatile("invlpg (%0)" ::"r"(address) : "memory"); }

static void check_small_pages(void)
{
    volatile uint32_t *window = (uint32_t *)WINDOW;
    small_pages[0] = (uint32_t)frame | PRESENT | WRITABLE;
    *(volatile uint32_t *)frame = 0x11111111;
    check_equal(*window, 0x11111111, "a 4 KiB page does not show its frame");
    check_equal(small_pages[0] & (ACCESSED | DIRTY), ACCESSED, "a read does not set A alone");
    *window = 0x22222222;
    check_equal(*(volatile uint32_t *)frame, 0x22222222, "a write does not reach the frame");
    check_equal(small_pages[0] & (ACCESSED | DIRTY), ACCESSED | DIRTY, "a write does not set D");
    check_equal(directories[3][0] & ACCESSED, ACCESSED, "a walk does not set A in the directory");
    *(volatile uint32_t *)other_frame = 0x33333333;
    small_pages[0] = (uint32_t)other_frame | PRESENT | WRITABLE;
    invalidate(WINDOW);
    check_equal(*window, 0x33333333, "INVLPG does not drop a translation");
    check_equal(fault_count, 0, "a good access faulted");
}

static void check_fault(uint32_t count, uint32_t error, uint32_t address, const char *why)
{
    if (fault_count != count || fault_error != error || fault_address != address) {
        fail_value(why, (uint64_t)fault_count << 32 | fault_error);
        fault_count = count;
    }
}

static void check_faults(void)
{
    try_read((uint32_t *)(WINDOW + 0x5008));
    check_fault(1, 0, WINDOW + 0x5008, "reading an absent page does not fault rightly");
    try_write((uint32_t *)(WINDOW + 0x5008), 1);
    check_fault(2, 2, WINDOW + 0x5008, "writing an absent page does not fault rightly");
    small_pages[6] = (uint32_t)frame | PRESENT;
    *(volatile uint32_t *)frame = 0x44444444;
    check_equal(try_read((uint32_t *)(WINDOW + 0x6000)), 0x44444444, "a read-only page cannot be read");
    try_write((uint32_t *)(WINDOW + 0x6000), 1);
    check_fault(3, 3, WINDOW + 0x6000, "writing a read-only page with CR0.WP does not fault rightly");
    check_equal(*(volatile uint32_t *)frame, 0x44444444, "a faulting write changed memory");
    small_pages[7] = (uint32_t)frame | PRESENT | WRITABLE;
    try_write((uint32_t *)(WINDOW + 0x7FFE), 0x55555555);
    check_fault(4, 2, WINDOW + 0x8000, "a write across pages does not fault at the second");
    check_equal(*(volatile uint16_t *)(frame + 0xFFE), 0, "a write across pages was half done");
}

/* The reason for PAE: physical addresses with more than 32 bits. */
static void check_high_memory(void)
{
    if (!high_ram_length)
        return;
    uint64_t last = high_ram_start + high_ram_length - 4096;
    small_pages[16] = high_ram_start | PRESENT | WRITABLE;
    small_pages[17] = last | PRESENT | WRITABLE;
    small_pages[18] = high_ram_start | PRESENT | WRITABLE;
    volatile uint32_t *first_window = (uint32_t *)(WINDOW + 16 * 4096);
    *first_window = 0x66666666;
    *(volatile uint32_t *)(WINDOW + 17 * 4096) = 0x77777777;
    check_equal(*(volatile uint32_t *)(WINDOW + 18 * 4096), 0x66666666, "RAM above 4 GiB does not keep a value");
    check_equal(*(volatile uint32_t *)(WINDOW + 17 * 4096), 0x77777777, "the last page of RAM does not keep a value");
    print("pae: used RAM above 4 GiB\n");
}

void main(uint32_t magic, const uint32_t *info)
{
    check_multiboot1(magic, info);
    set_up_fault_handler();
    turn_paging_on();
    check_small_pages();
    check_faults();
    check_high_memory();
    uint32_t cr0;
    __asm__ volatile("mov %%cr0, %0; and $0x7FFFFFFF, %0; mov %0, %%cr0; jmp 1f; 1:" : "=r"(cr0)::"memory");
    *(volatile uint32_t *)WINDOW;
    check_equal(fault_count, 4, "an access with paging off faulted");
}
