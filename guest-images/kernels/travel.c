/* A guest to travel in: timer interrupts, a function called now and then, a variable written in every round, string
 * instructions that interrupts hit in the middle, and typing at the serial port. Says where those things are. */
#include "common.h"

const char kernel_name[] = "travel";

enum { PIT_HZ = 1193182, TIMER_HZ = 20000 };

volatile uint32_t counter, hook_count, ticks;
static uint8_t copies[2][512];
extern void timer_entry(void);

__asm__(".text\n"
        "timer_entry:\n"
        "  push %eax\n"
        "  incl ticks\n"
        "  mov $0x20, %al\n"
        "  out %al, $0x20\n"
        "  pop %eax\n"
        "  iret\n");

static uint64_t idt[33] __attribute__((aligned(8)));

static void start_timer(void)
{
    uint32_t handler = (uint32_t)timer_entry, cs;
    __asm__("mov %%cs, %0" : "=r"(cs));
    idt[32] = (uint64_t)(handler >> 16) << 48 | 0x8E0000000000 | (uint64_t)(cs & 0xFFFF) << 16 | (handler & 0xFFFF);
    struct __attribute__((packed)) {
        uint16_t limit;
        uint32_t base;
    } idtr = {sizeof idt - 1, (uint32_t)idt};
    __asm__ volatile("lidt %0" ::"m"(idtr));
    static const uint8_t init[][2] = {{0x20, 0x11}, {0x21, 32}, {0x21, 4}, {0x21, 1}, {0x21, 0xFE}, {0xA1, 0xFF}};
    for (unsigned i = 0; i < sizeof init / 2; i++)
        outb(init[i][0], init[i][1]);
    outb(0x43, 0x34);
    outb(0x40, (PIT_HZ / TIMER_HZ) & 0xFF);
    outb(0x40, (PIT_HZ / TIMER_HZ) >> 8);
    __asm__ volatile("sti");
}

__attribute__((noinline)) void hook(uint32_t round)
{
    hook_count += round & 1;
    __asm__ volatile("" ::: "memory");
}

static void copy(void)
{
    void *to = copies[1], *from = copies[0];
    uint32_t count = sizeof copies[0];
    __asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(count)::"memory");
}

static void say_where(const char *name, uint32_t address)
{
    print(name);
    print("=");
    print_hex(address);
    print("\n");
}

/* Obeys one key: q ends the run, h halts until the next timer tick, and any other key is printed. */
static int obey_key(void)
{
    static const char *const texts[] = {"halted\n", "key\n"};
    if (!(inb(0x3FD) & 1))
        return 1;
    char key = inb(0x3F8);
    if (key == 'h')
        __asm__ volatile("hlt");
    print(texts[key != 'h']);
    copies[0][key & 127]++;
    return key != 'q';
}

void main(uint32_t magic)
{
    check_equal(magic, 0x2BADB002, "EAX lacks the Multiboot magic");
    use_debug_console = 0;
    say_where("counter", (uint32_t)&counter);
    say_where("hook", (uint32_t)hook);
    say_where("ticks", (uint32_t)&ticks);
    start_timer();
    /* The serial port takes keys from now on; its interrupt stays masked. */
    outb(0x3F9, 1);
    print("ready\n");
    for (uint32_t round = 0; obey_key(); round++) {
        counter = counter * 1664525 + 1013904223;
        if ((round & 15) == 3)
            hook(round);
        if ((counter >> 28) == 5)
            copy();
        copies[0][round & 511] ^= counter >> 24;
    }
    __asm__ volatile("cli");
    check(ticks > 0, "the timer never ticked");
}
