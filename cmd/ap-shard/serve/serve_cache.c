/*
 * Problem: several servers of one document start from the same rules' plans, and write
 * them down at the same time. Idea: one place that is in the memory of all of them, made
 * before they are forked, at one address. Whoever begins a rule says so, and others begin
 * with another one; what is written down is read by all. Nobody waits: who has nothing
 * else to do makes a rule again. Cost: pages that are written to.
 */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>

#include "serve/serve.h"

#define MOST_ITEMS 256
#define MOST_PLANS 48 /* that there is room for */
#define LOOK_BYTES (1 << 16)

enum { FREE, BEGUN, DONE };

struct item {
    atomic_int state;
    int row, n_axes;
    const struct serve_written *written; /* DONE: in the room */
};

struct serve_cache {
    size_t bytes; /* of all of it */
    atomic_size_t used;
    atomic_int n; /* items; may be more than there are */
    struct item item[MOST_ITEMS];
};

struct serve_cache *serve_cache_new(int n_groups, int n_nodes)
{
    size_t plan = (size_t)n_groups * sizeof(struct ap_choice_vec) + 2 * (size_t)n_nodes +
                  LOOK_BYTES,
           bytes = sizeof(struct serve_cache) + MOST_PLANS * plan;
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
        return NULL;
    struct serve_cache *shelf = at; /* zeroed */
    shelf->bytes = bytes;
    atomic_init(&shelf->used, sizeof *shelf);
    return shelf;
}

void serve_cache_free(struct serve_cache *shelf)
{
    if (shelf)
        munmap(shelf, shelf->bytes);
}

static int n_items(struct serve_cache *shelf)
{
    int n = shelf ? atomic_load(&shelf->n) : 0;
    return n < MOST_ITEMS ? n : MOST_ITEMS;
}

const struct serve_written *serve_cache_find(struct serve_cache *shelf, int row,
                                             const struct ap_mesh *mesh, bool *begun)
{
    *begun = false;
    for (int i = 0; i < n_items(shelf); i++) {
        const struct item *item = &shelf->item[i];
        int state = atomic_load_explicit(&item->state, memory_order_acquire);
        if (state == FREE || item->row != row || item->n_axes != mesh->n_axes)
            continue;
        if (state == DONE &&
            ap_mesh_queries_agree(&item->written->looks, &item->written->mesh, mesh))
            return item->written;
        *begun |= state == BEGUN;
    }
    return NULL;
}

int serve_cache_begin(struct serve_cache *shelf, int row, const struct ap_mesh *mesh)
{
    int i = n_items(shelf) < MOST_ITEMS && shelf ? atomic_fetch_add(&shelf->n, 1)
                                                 : MOST_ITEMS;
    if (i >= MOST_ITEMS)
        return -1;
    shelf->item[i].row = row;
    shelf->item[i].n_axes = mesh->n_axes;
    atomic_store_explicit(&shelf->item[i].state, BEGUN, memory_order_release);
    return i;
}

void *serve_cache_room(struct serve_cache *shelf, size_t bytes)
{
    const size_t align = _Alignof(max_align_t);
    size_t size = (bytes + align - 1) / align * align,
           at = atomic_fetch_add(&shelf->used, size);
    return at <= shelf->bytes && size <= shelf->bytes - at ? (char *)shelf + at : NULL;
}

void serve_cache_end(struct serve_cache *shelf, int i, const struct serve_written *w)
{
    shelf->item[i].written = w;
    atomic_store_explicit(&shelf->item[i].state, DONE, memory_order_release);
}
