#include "mb1.h"

const char kernel_name[] = "mb1";

void main(uint32_t magic, const uint32_t *info)
{
    check_multiboot1(magic, info);
    check_rsdp_by_scan();
}
