// Four threads that race: for a counter without a lock, for a lock that spins without PAUSE, for a mutex with a
// condition, and for a pipe. How many counts get lost depends on every turn of the processors.
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

enum { THREADS = 4, ROUNDS = 3000 };

static volatile long unlocked, guarded, passed;
static atomic_int spinning;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int pipes[2];

static void *race(void *argument) {
    long own = (long)argument;
    for (int round = 0; round < ROUNDS; round++) {
        // Another thread may count between the load and the store.
        long seen = unlocked;
        if (round % 8 == own)
            sched_yield();
        unlocked = seen + 1;
        while (atomic_exchange(&spinning, 1))
            ;
        guarded++;
        atomic_store(&spinning, 0);
        if (round % 16 == 0) {
            // Each thread waits for the one before.
            pthread_mutex_lock(&mutex);
            while (passed % THREADS != own)
                pthread_cond_wait(&changed, &mutex);
            passed++;
            pthread_cond_broadcast(&changed);
            pthread_mutex_unlock(&mutex);
        }
        if (round % 64 == own) {
            char byte = 'x';
            if (write(pipes[1], &byte, 1) != 1 || read(pipes[0], &byte, 1) != 1)
                return NULL;
        }
    }
    return NULL;
}

int main(void) {
    if (pipe(pipes) != 0)
        return 1;
    for (int round = 0; round < 10; round++) {
        pthread_t threads[THREADS];
        unlocked = guarded = passed = 0;
        for (long own = 0; own < THREADS; own++)
            pthread_create(&threads[own], NULL, race, (void *)own);
        for (int own = 0; own < THREADS; own++)
            pthread_join(threads[own], NULL);
        printf("%ld of %d counts without a lock, %ld with one\n", unlocked, THREADS * ROUNDS, guarded);
        fflush(stdout);
    }
    return 0;
}
