/* The check of the Multiboot 1 boot information, for all kernels that boot by this protocol. */
#pragma once
#include "common.h"

static inline void check_multiboot1(uint32_t magic, const uint32_t *info)
{
    check_equal(magic, 0x2BADB002, "EAX lacks the Multiboot magic");
    check_protected32();
    uint32_t flags = info[0];
    check_equal(flags & 0x45, 0x45, "the information lacks memory, command line or map");
    check_command_line((const char *)info[4]);
    check(info[1] >= 512 && info[1] <= 640, "mem_lower is not that of a PC");
    const uint8_t *at = (const uint8_t *)info[12], *end = at + info[11];
    while (at < end) {
        const uint32_t *entry = (const uint32_t *)at;
        uint64_t start = entry[1] | (uint64_t)entry[2] << 32, length = entry[3] | (uint64_t)entry[4] << 32;
        check_memory_range((struct range){start, length, entry[5]});
        if (start == 0x100000 && entry[5] == 1)
            check_equal(info[2], length >> 10, "mem_upper differs from the map");
        at += entry[0] + 4;
    }
    check_memory_map_end();
    uint32_t count = flags & 8 ? info[5] : 0;
    check_module_count(count);
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t *module = (const uint32_t *)info[6] + i * 4;
        check_module(module[0], module[1] - module[0]);
    }
    check(!(flags & 0x200) || *(const char *)info[16], "the loader's name is empty");
}
