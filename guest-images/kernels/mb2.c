#include "common.h"

const char kernel_name[] = "mb2";

static unsigned modules, seen;

static void check_map(const uint32_t *tag)
{
    uint32_t size = tag[2];
    check(size >= 24 && !(size & 7), "the memory map's entries have a wrong size");
    const uint8_t *end = (const uint8_t *)tag + tag[1];
    for (const uint8_t *at = (const uint8_t *)(tag + 4); at < end && size; at += size) {
        const uint64_t *entry = (const uint64_t *)at;
        check_memory_range((struct range){entry[0], entry[1], entry[2]});
    }
    check_memory_map_end();
}

/* Checks that the section headers lead to a section of names that is in memory and has the name .text. */
static void check_sections(const uint32_t *tag)
{
    uint32_t count = tag[2], size = tag[3], names = tag[4];
    check(count > 1 && names < count && size >= 40, "the ELF section tag makes no sense");
    const uint32_t *header = (const uint32_t *)((const uint8_t *)(tag + 5) + names * size);
    const char *text = (const char *)(uintptr_t)(size >= 64 ? header[4] : header[3]);
    check(text && !text[0] && text[1] == '.', "the section names are not in memory");
}

static void check_tag(const uint32_t *tag)
{
    seen |= 1u << (tag[0] & 31);
    switch (tag[0]) {
    case 1: /* Checked before all others. */
        break;
    case 2:
        check(*(const char *)(tag + 2), "the loader's name is empty");
        break;
    case 3:
        modules++;
        check_module(tag[2], tag[3] - tag[2]);
        break;
    case 4:
        check(tag[2] >= 512 && tag[2] <= 640 && tag[3], "the basic memory information is not that of a PC");
        break;
    case 6:
        check_map(tag);
        break;
    case 9:
        check_sections(tag);
        break;
    case 14:
    case 15:
        check_rsdp((const uint8_t *)(tag + 2));
        break;
    }
}

static const uint32_t *next(const uint32_t *tag) { return tag + ((tag[1] + 7) / 8) * 2; }

void main(uint32_t magic, const uint32_t *info)
{
    check_equal(magic, 0x36D76289, "EAX lacks the Multiboot2 magic");
    check_protected32();
    check_equal((uintptr_t)info & 7, 0, "the information is not 8-aligned");
    const uint32_t *end = info + info[0] / 4, *tag;
    for (tag = info + 2; tag < end && tag[0]; tag = next(tag))
        if (tag[0] == 1)
            check_command_line((const char *)(tag + 2));
    for (tag = info + 2; tag < end && tag[0]; tag = next(tag))
        check_tag(tag);
    check(tag + 2 == end, "the end tag is not at the end");
    check_module_count(modules);
    check_equal(seen & 0xC256, 0xC256 & (seen | ~0x4000u), "a requested tag is missing");
}
