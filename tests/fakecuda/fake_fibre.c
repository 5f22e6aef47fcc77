/*
 * The threads of a block. A thread runs until it ends or waits at a barrier; then the
 * next one starts, on a stack of its own. Threads that never wait share one stack, so
 * that a kernel without barriers is a loop. After each barrier they go on in the other
 * direction: what a thread reads without a barrier is too old or too new to be right.
 */
#include "fake.h"

#include <setjmp.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>

#define STACK_BYTES (128 << 10)
#define MAX_THREADS 1024

struct fibre {
    ucontext_t start;
    jmp_buf at; /* where its thread waits */
    int thread;
    bool waits;
};

static struct {
    struct fibre *fibre; /* MAX_THREADS */
    int current;
    struct fake_block *block;
    jmp_buf scheduler;
} run;

static void enter(void)
{
    run.block->body(run.block);
    run.fibre[run.current].waits = false;
    _longjmp(run.scheduler, 1);
}

void fake_barrier(int thread)
{
    struct fibre *f = &run.fibre[run.current];
    f->thread = thread;
    f->waits = true;
    if (_setjmp(f->at) == 0)
        _longjmp(run.scheduler, 1);
    run.block->resume(run.block, f->thread);
}

/* Starts fibre i at its entry. */
static void start(int i)
{
    struct fibre *f = &run.fibre[i];
    if (!f->start.uc_stack.ss_sp) {
        void *stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (stack == MAP_FAILED)
            fake_fail("no memory for the stacks of a block");
        getcontext(&f->start);
        f->start.uc_stack.ss_sp = stack;
        f->start.uc_stack.ss_size = STACK_BYTES;
    }
    makecontext(&f->start, enter, 0);
    run.current = i;
    setcontext(&f->start);
}

static void go_on(int i)
{
    run.current = i;
    _longjmp(run.fibre[i].at, 1);
}

void fake_block_run(struct fake_block *b)
{
    /* volatile: they are changed between setjmp and longjmp */
    volatile int n_fibres = 0, n_waiting = 0, next = 0;
    if (!run.fibre)
        run.fibre = fake_alloc(sizeof *run.fibre * MAX_THREADS);
    run.block = b;
    b->started = 0;
    while (b->started < b->threads) { /* up to the first barrier, or to the end */
        if (_setjmp(run.scheduler) == 0)
            start(n_fibres);
        n_waiting += run.fibre[n_fibres].waits;
        n_fibres += run.fibre[n_fibres].waits;
    }
    for (volatile int turn = 1; n_waiting > 0; turn = !turn) {
        if (n_waiting != b->threads)
            fake_fail("%s: %d of %d threads of block %u,%u,%u are at a barrier, the "
                      "others have ended",
                      b->name, n_waiting, b->threads, b->at[0], b->at[1], b->at[2]);
        n_waiting = 0;
        for (next = 0; next < n_fibres; next++) {
            const volatile int i = turn ? n_fibres - 1 - next : next;
            if (_setjmp(run.scheduler) == 0)
                go_on(i);
            n_waiting += run.fibre[i].waits;
        }
    }
}
