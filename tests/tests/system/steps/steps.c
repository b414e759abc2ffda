/* For tests that steps stay in their thread: a loop that timer ticks interrupt, and three processes of one program,
   which take the CPU from each other at the same addresses. */
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

volatile int x, me;

static __attribute__((noinline)) int spin(int rounds)
{
	for (volatile int i = 0; i < rounds; i++)
		;
	return me;
}

static __attribute__((noinline)) int work(void)
{
	int sum = 0;
	for (int k = 0; k < 8; k++) {
		sum += spin(300000);
		x++;
	}
	return sum;
}

int main(void)
{
	for (int k = 0; k < 300; k++) {
		for (volatile int i = 0; i < 9000; i++)
			;
		x++;
	}
	for (int child = 1; child < 4; child++)
		if (!fork()) {
			me = child;
			_exit(work() != 8 * child);
		}
	while (wait(NULL) > 0)
		;
	puts("all have ended");
	return 0;
}
