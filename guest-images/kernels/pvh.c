#include "common.h"

const char kernel_name[] = "pvh";

struct start_info {
    uint32_t magic, version, flags, module_count;
    uint64_t modules, command_line, rsdp, map;
    uint32_t map_count, reserved;
};

void main(uint32_t eax, const struct start_info *info)
{
    (void)eax;
    check_equal(info->magic, 0x336EC578, "EBX does not lead to the start information");
    check_protected32();
    check(info->version >= 1, "the start information has no memory map");
    check_command_line((const char *)(uintptr_t)info->command_line);
    const uint64_t *map = (const uint64_t *)(uintptr_t)info->map;
    for (uint32_t i = 0; i < info->map_count; i++)
        check_memory_range((struct range){map[i * 3], map[i * 3 + 1], map[i * 3 + 2]});
    check_memory_map_end();
    check_module_count(info->module_count);
    const uint64_t *modules = (const uint64_t *)(uintptr_t)info->modules;
    for (uint32_t i = 0; i < info->module_count; i++)
        check_module(modules[i * 4], modules[i * 4 + 1]);
    check_rsdp((const uint8_t *)(uintptr_t)info->rsdp);
}
