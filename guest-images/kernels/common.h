/* The common parts of the test kernels: output, the verdict, and checks that do not depend on the boot protocol. */
#pragma once
#include <stddef.h>
#include <stdint.h>

extern const char kernel_name[];
/* Set by the entry code before anything else runs. */
extern char image_start[], image_end[];

static inline void outb(uint16_t port, uint8_t value) { __asm__ volatile("outb %0, %1" ::"a"(value), "Nd"(port)); }

static inline uint8_t inb(uint16_t port)
{
    uint8_t value;
    __asm__ volatile("inb %1, %0" : "=a"(value) : "Nd"(port));
    return value;
}

/* A kernel clears this flag if its output must appear only once, on the serial port. */
extern int use_debug_console;
void print(const char *text);
void print_hex(uint64_t value);
/* Counts a failure and prints the reason. The kernel goes on, so one run shows every failure. */
void fail(const char *why);
void fail_value(const char *why, uint64_t value);
/* Prints the verdict and ends the run. */
void finish(void) __attribute__((noreturn));

#define check(condition, why) \
    do { \
        if (!(condition)) \
            fail(why); \
    } while (0)
#define check_equal(actual, expected, why) \
    do { \
        uint64_t actual_ = (actual); \
        if (actual_ != (uint64_t)(expected)) \
            fail_value(why, actual_); \
    } while (0)

struct range {
    uint64_t start, length;
    uint32_t kind;
};

/* Checks one entry of the memory map. A kernel calls it for each entry in order, and then check_memory_map_end. */
void check_memory_range(struct range range);
void check_memory_map_end(void);
extern uint64_t high_ram_start, high_ram_length;

void check_command_line(const char *line);
/* The number after `key` on the command line; `absent` if the command line lacks `key`. */
uint64_t expected(const char *key, uint64_t absent);
void check_module(uint64_t start, uint64_t length);
void check_module_count(uint64_t count);
void check_rsdp(const uint8_t *rsdp);
/* For protocols that do not pass the RSDP: looks for the RSDP in the memory where firmware puts it. */
void check_rsdp_by_scan(void);
/* Checks the segments, flags and control registers of a 32-bit entry. */
void check_protected32(void);
