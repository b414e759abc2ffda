/* Calls a library, writes, and waits. Built twice: relocatable with a shared library, and static at fixed addresses. */
#include <unistd.h>

int twice(int number);
int sum = 41;

static void inner(int number)
{
    sum += twice(number);
    write(1, "it ran\n", 7);
}

int main(void)
{
    for (int number = 0; number < 3; number++)
        inner(number);
    pause();
    return 0;
}
