#include "common.h"

static unsigned failures;
static const char *command_line = "";

int use_debug_console = 1;

static void put_char(char c)
{
    if (use_debug_console)
        outb(0xE9, c);
    for (int tries = 0; tries < 100000 && !(inb(0x3FD) & 0x20); tries++)
        ;
    outb(0x3F8, c);
}

void print(const char *text)
{
    while (*text)
        put_char(*text++);
}

void print_hex(uint64_t value)
{
    print("0x");
    int shift = 60;
    while (shift && !(value >> shift))
        shift -= 4;
    for (; shift >= 0; shift -= 4)
        put_char("0123456789abcdef"[value >> shift & 15]);
}

static void begin_failure(const char *why)
{
    failures++;
    print("FAIL ");
    print(kernel_name);
    print(": ");
    print(why);
}

void fail(const char *why)
{
    begin_failure(why);
    print("\n");
}

void fail_value(const char *why, uint64_t value)
{
    begin_failure(why);
    print(" (found ");
    print_hex(value);
    print(")\n");
}

void finish(void)
{
    if (!failures) {
        print("OK ");
        print(kernel_name);
        print("\n");
    }
    outb(0x501, failures ? 0x11 : 0x10);
    for (;;)
        __asm__ volatile("cli; hlt");
}

static int starts_with(const char *text, const char *prefix)
{
    while (*prefix)
        if (*text++ != *prefix++)
            return 0;
    return 1;
}

static const char *find(const char *text, const char *word)
{
    for (; *text; text++)
        if (starts_with(text, word))
            return text;
    return NULL;
}

void check_command_line(const char *line)
{
    command_line = line;
    check(find(line, "ttvm-test"), "the command line lacks ttvm-test");
}

uint64_t expected(const char *key, uint64_t absent)
{
    const char *at = find(command_line, key);
    if (!at)
        return absent;
    while (*key++)
        at++;
    uint64_t value = 0;
    for (; *at >= '0' && *at <= '9'; at++)
        value = value * 10 + (*at - '0');
    return value;
}

static struct range previous;
static uint64_t ram_bytes;
static int kernel_is_in_ram, legacy_hole_is_ram, starts_at_zero;
uint64_t high_ram_start, high_ram_length;

void check_memory_range(struct range range)
{
    uint64_t end = range.start + range.length;
    uint64_t own_start = (uintptr_t)image_start, own_end = (uintptr_t)image_end;
    check(range.length != 0 && end > range.start, "the memory map has an empty or wrapping entry");
    check(range.start >= previous.start + previous.length, "the memory map is unsorted or overlaps");
    if (range.kind == 1) {
        ram_bytes += range.length;
        starts_at_zero |= range.start == 0;
        kernel_is_in_ram |= range.start <= own_start && own_end <= end;
        legacy_hole_is_ram |= range.start < 0x100000 && end > 0xA0000;
        if (range.start >= 0x100000000) {
            high_ram_start = range.start;
            high_ram_length = range.length;
        } else if (range.start >= 0x100000) {
            volatile uint32_t *last = (uint32_t *)(uintptr_t)(end - 4);
            uint32_t before = *last;
            *last = 0x600DCAFE;
            check_equal(*last, 0x600DCAFE, "the last word of RAM does not keep a value");
            *last = before;
        }
    }
    previous = range;
}

void check_memory_map_end(void)
{
    check(starts_at_zero, "the memory map has no RAM at address 0");
    check(kernel_is_in_ram, "the memory map has no RAM where this kernel runs");
    check(!legacy_hole_is_ram, "the memory map calls the legacy hole RAM");
    uint64_t mib = expected("mib=", 0);
    if (mib)
        check(ram_bytes <= mib << 20 && ram_bytes >= (mib - 1) << 20, "the memory map has a wrong amount of RAM");
}

void check_module(uint64_t start, uint64_t length)
{
    check(start >= 0x100000, "a module lies below 1 MiB");
    check(start + length <= (uintptr_t)image_start || start >= (uintptr_t)image_end, "a module overlaps the kernel");
    check_equal(start & 4095, 0, "a module is not page-aligned");
    check(length >= 11 && starts_with((const char *)(uintptr_t)start, "ttvm-module"), "a module has wrong contents");
}

void check_module_count(uint64_t count) { check_equal(count, expected("modules=", 0), "wrong number of modules"); }

static uint8_t sum(const uint8_t *bytes, uint32_t length)
{
    uint8_t total = 0;
    while (length--)
        total += *bytes++;
    return total;
}

static uint64_t read(const uint8_t *at, int size)
{
    uint64_t value = 0;
    while (size--)
        value = value << 8 | at[size];
    return value;
}

static const uint8_t *table_at(uint64_t address, const char *signature)
{
    const uint8_t *table = (const uint8_t *)(uintptr_t)address;
    if (!starts_with((const char *)table, signature))
        return NULL;
    check_equal(sum(table, read(table + 4, 4)), 0, "an ACPI table has a wrong checksum");
    return table;
}

static void check_fadt(const uint8_t *fadt)
{
    uint64_t dsdt = read(fadt + 40, 4);
    check(table_at(dsdt, "DSDT"), "the FADT does not lead to the DSDT");
    check(starts_with((const char *)(uintptr_t)read(fadt + 36, 4), "FACS"), "the FADT does not lead to the FACS");
    check(read(fadt + 56, 4) && read(fadt + 64, 4) && read(fadt + 76, 4), "the FADT lacks a register block");
}

void check_rsdp(const uint8_t *rsdp)
{
    if (!starts_with((const char *)rsdp, "RSD PTR ")) {
        fail_value("there is no RSDP at", (uintptr_t)rsdp);
        return;
    }
    check_equal(sum(rsdp, 20), 0, "the RSDP's first checksum is wrong");
    int is_v2 = rsdp[15] >= 2;
    if (is_v2)
        check_equal(sum(rsdp, 36), 0, "the RSDP's second checksum is wrong");
    int entry_size = is_v2 ? 8 : 4;
    const uint8_t *root = table_at(read(rsdp + (is_v2 ? 24 : 16), entry_size), is_v2 ? "XSDT" : "RSDT");
    if (!root) {
        fail("the RSDP does not lead to a root table");
        return;
    }
    const uint8_t *end = root + read(root + 4, 4);
    int fadts = 0, madts = 0;
    for (const uint8_t *at = root + 36; at < end; at += entry_size) {
        const uint8_t *fadt = table_at(read(at, entry_size), "FACP");
        if (fadt)
            check_fadt(fadt);
        fadts += fadt != NULL;
        madts += table_at(read(at, entry_size), "APIC") != NULL;
    }
    check(fadts == 1 && madts == 1, "the root table lacks FADT or MADT");
}

void check_rsdp_by_scan(void)
{
    for (uintptr_t at = 0xE0000; at < 0x100000; at += 16)
        if (starts_with((const char *)at, "RSD PTR ")) {
            check_rsdp((const uint8_t *)at);
            return;
        }
    fail("no RSDP between 0xE0000 and 0x100000");
}

static uint32_t limit_of(uint32_t selector)
{
    uint32_t limit = 0;
    __asm__("lsl %1, %0" : "+r"(limit) : "r"(selector));
    return limit;
}

#ifdef __i386__
extern uint32_t entry_flags, entry_cr0;
extern uint16_t entry_cs, entry_segments[5];

void check_protected32(void)
{
    check_equal(entry_flags & 0x20200, 0, "the flags VM or IF are set");
    check_equal(entry_cr0 & 0x80000001, 1, "CR0 has PE clear or PG set");
    check_equal(limit_of(entry_cs), 0xFFFFFFFF, "CS is not flat");
    for (int i = 0; i < 5; i++)
        check_equal(limit_of(entry_segments[i]), 0xFFFFFFFF, "a data segment is not flat");
    uint32_t rights = 0;
    __asm__("lar %1, %0" : "+r"(rights) : "r"((uint32_t)entry_cs));
    check_equal(rights & 0x60F800, 0x409800, "CS is not a present 32-bit code segment of ring 0");
    volatile uint32_t *low = (uint32_t *)0x500, *high = (uint32_t *)0x100500;
    uint32_t low_before = *low, high_before = *high;
    *low = 1;
    *high = 2;
    check_equal(*low, 1, "address line A20 is off");
    *high = high_before;
    *low = low_before;
}
#else
void check_protected32(void) { (void)limit_of; }
#endif
