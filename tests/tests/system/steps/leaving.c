/* A program that leaves functions in other ways than by a return: longjmp, signals, fork, exec, the end of a thread.
   Each part begins with a write to `part`. */
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

volatile int part, x, handled;
static jmp_buf near_by, far_out;
static sigjmp_buf out_of_handler;

static __attribute__((noinline)) void leave(jmp_buf to)
{
	x++;
	longjmp(to, 1);
}

static __attribute__((noinline)) int deeper(jmp_buf to)
{
	leave(to);
	return 1; /* deeper never returns */
}

static __attribute__((noinline)) int lands(void)
{
	x = 10;
	if (setjmp(near_by) == 0)
		x = deeper(near_by); /* jumps near */
	x = 12; /* landed near */
	return x;
}

static __attribute__((noinline)) int passes(void)
{
	x = 20;
	x = deeper(far_out); /* jumps far */
	return x;
}

static __attribute__((noinline)) int lands_far(void)
{
	if (setjmp(far_out) == 0)
		x = passes(); /* calls passes */
	x = 22; /* landed far */
	return x;
}

static void on_signal(int number)
{
	handled += number; /* in the handler */
}

static void jump_away(int number)
{
	handled += number;
	siglongjmp(out_of_handler, 1);
}

static __attribute__((noinline)) int spin(int rounds)
{
	for (volatile int i = 0; i < rounds; i++)
		;
	return rounds;
}

static __attribute__((noinline)) void is_interrupted(void)
{
	int before = handled;
	struct itimerval soon = { .it_value.tv_usec = 30000 };
	signal(SIGALRM, on_signal);
	setitimer(ITIMER_REAL, &soon, NULL);
	while (handled == before) /* waits */
		x++; /* counts */
	x = 30; /* was interrupted */
	before = handled;
	soon.it_value.tv_usec = 1000;
	setitimer(ITIMER_REAL, &soon, NULL);
	x = spin(2000000); /* is long */
	x = 31; /* was long */
	signal(SIGALRM, jump_away);
	setitimer(ITIMER_REAL, &soon, NULL);
	if (sigsetjmp(out_of_handler, 1) == 0)
		x = spin(100000000); /* is left by a handler */
	x = 32; /* left by a handler */
}

static void *ends(void *nothing)
{
	x = 40;
	if (nothing)
		return nothing;
	pthread_exit(NULL); /* the thread ends */
}

int main(int count, char **words)
{
	if (count > 1) {
		part = 7; /* executed anew */
		x = 70;
		fflush(stdout);
		_exit(0); /* ends */
	}
	part = 1;
	x = lands(); /* calls lands */
	part = 2;
	x = lands_far(); /* calls lands_far */
	part = 3;
	is_interrupted(); /* is interrupted */
	part = 4;
	pthread_t thread;
	pthread_create(&thread, NULL, ends, NULL); /* makes a thread */
	pthread_join(thread, NULL); /* waits for the thread */
	part = 5;
	pid_t child = fork(); /* forks */
	if (child == 0) {
		x = 50;
		part = 6;
		execl("/proc/self/exe", words[0], "anew", (char *)NULL); /* executes */
	}
	x = 51; /* has forked */
	waitpid(child, NULL, 0); /* waits */
	part = 8;
	puts("all have ended");
	return 0;
}
