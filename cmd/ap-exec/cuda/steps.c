/* A call's steps: kernels with their arguments, copies, and other steps. */
#include "cuda.h"
#include "base/array.h"
#include "tool/tool.h"

#include <string.h>

static void call_run(struct exec *x, void *state)
{
    const struct cuda_call *c = state;
    for (int i = 0; i < c->n; i++)
        c->step[i].run(x, c->step[i].state);
}

static void call_close(void *state)
{
    const struct cuda_call *c = state;
    for (int i = 0; i < c->n; i++)
        if (c->step[i].close)
            c->step[i].close(NULL, c->step[i].state);
}

struct cuda_call *cuda_call_new(struct exec *x, struct call *call)
{
    struct cuda_call *c = AP_NEW(x->arena, struct cuda_call);
    call->run = call_run;
    call->close = call_close;
    call->state = c;
    return c;
}

void cuda_add(struct exec *x, struct cuda_call *c, cuda_run *run, void *state,
              cuda_run *close)
{
    AP_ROOM_IN(x->arena, c->step, c->n, c->cap);
    c->step[c->n++] = (struct cuda_step){run, state, close};
}

/* ---- tables on the device ---- */

static void nothing_run(struct exec *x, void *state)
{
    (void)x, (void)state;
}

static void upload_close(struct exec *x, void *state)
{
    (void)x;
    cuda_release(state);
}

void *cuda_upload(struct exec *x, struct cuda_call *c, const void *host, int64_t bytes)
{
    void *p = cuda_alloc(bytes);
    if (!p)
        ap_die(AP_BAD_INPUT, "rank %d: cuda: no memory for a table of %lld bytes",
               cuda_dev.rank, (long long)bytes);
    cuda_write(p, host, bytes);
    cuda_add(x, c, nothing_run, p, upload_close);
    return p;
}

/* ---- copies ---- */

struct copy {
    struct cuda_at dst, src;
    int64_t bytes;
};

static void copy_run(struct exec *x, void *state)
{
    const struct copy *s = state;
    cuda_copy(cuda_place(x, s->dst), cuda_place(x, s->src), s->bytes);
}

void cuda_add_copy(struct exec *x, struct cuda_call *c, struct cuda_at dst,
                   struct cuda_at src, int64_t bytes)
{
    struct copy *s = AP_NEW(x->arena, struct copy);
    *s = (struct copy){dst, src, bytes};
    cuda_add(x, c, copy_run, s, NULL);
}

static void zero_run(struct exec *x, void *state)
{
    const struct copy *s = state;
    cuda_check(
        cudaMemsetAsync(cuda_place(x, s->dst), 0, (size_t)s->bytes, cuda_dev.stream),
        "cudaMemsetAsync");
}

void cuda_add_zero(struct exec *x, struct cuda_call *c, struct cuda_at dst, int64_t bytes)
{
    struct copy *s = AP_NEW(x->arena, struct copy);
    *s = (struct copy){.dst = dst, .bytes = bytes};
    if (bytes > 0)
        cuda_add(x, c, zero_run, s, NULL);
}

/* ---- kernels ---- */

/* Of blocks, in a launch. */
#define MOST_ROWS 65535

struct launch {
    struct kernel *kernel;
    int64_t grid_x, grid_y;
    int n_args;
    struct cuda_at *arg;
    void **args;
};

static void launch_run(struct exec *x, void *state)
{
    const struct launch *l = state;
    for (int i = 0; i < l->n_args; i++)
        l->args[i] = cuda_place(x, l->arg[i]);
    kernel_launch(l->kernel, l->grid_x, l->grid_y, l->args);
}

void cuda_add_kernel(struct exec *x, struct cuda_call *c, struct ap_buf *text,
                     const struct cuda_launch *launch)
{
    if (launch->grid_x > INT32_MAX || launch->grid_y > MOST_ROWS)
        ap_die(AP_BAD_INPUT, "rank %d: cuda: a kernel of %lld x %lld blocks",
               cuda_dev.rank, (long long)launch->grid_x, (long long)launch->grid_y);
    if (launch->grid_x > 0 && launch->grid_y > 0) {
        struct launch *l = AP_NEW(x->arena, struct launch);
        *l = (struct launch){
            .grid_x = launch->grid_x, .grid_y = launch->grid_y, .n_args = launch->n_args};
        l->kernel = kernel_get(text->data, text->len, launch->n_args, launch->block);
        l->args = AP_NEW_N(x->arena, launch->n_args + 1, void *);
        l->arg =
            ap_arena_dup(x->arena, launch->arg, sizeof *l->arg * (size_t)launch->n_args);
        cuda_add(x, c, launch_run, l, NULL);
    }
    ap_buf_free(text);
    *text = (struct ap_buf){0};
}
