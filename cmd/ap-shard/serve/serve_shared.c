/*
 * Problem: several servers of one document start from the same named plans, and make them
 * at the same time. Idea: a cache in memory that all of them share, mapped before they
 * are forked, at one address. A server that begins a named plan says so, and the others
 * begin with another one; a finished plan is read by all. Nobody waits: a server with
 * nothing else to do makes a plan that another one has begun, too. Cost: the pages that
 * are written to.
 */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>

#include "serve/serve.h"

#define MOST_ITEMS  256       /* named plans; address space is reserved for all of them */
#define QUERY_BYTES (1 << 16) /* of a named plan, about */

enum { FREE, BEGUN, DONE };

struct item {
    atomic_int state;
    int row, n_axes;
    const struct serve_named_plan *written; /* DONE: in the room */
};

struct serve_shared {
    size_t bytes; /* of all of it */
    atomic_size_t used;
    atomic_int n; /* items; may be more than there are */
    struct item item[MOST_ITEMS];
};

struct serve_shared *serve_shared_new(int n_groups, int n_nodes)
{
    size_t plan = (size_t)n_groups * sizeof(struct ap_choice_vec) + 2 * (size_t)n_nodes +
                  QUERY_BYTES,
           bytes = sizeof(struct serve_shared) + MOST_ITEMS * plan;
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
        return NULL;
    struct serve_shared *shared = at; /* zeroed */
    shared->bytes = bytes;
    atomic_init(&shared->used, sizeof *shared);
    return shared;
}

void serve_shared_free(struct serve_shared *shared)
{
    if (shared)
        munmap(shared, shared->bytes);
}

static int n_items(struct serve_shared *shared)
{
    int n = shared ? atomic_load(&shared->n) : 0;
    return n < MOST_ITEMS ? n : MOST_ITEMS;
}

const struct serve_named_plan *serve_shared_find(struct serve_shared *shared, int row,
                                                 const struct ap_mesh *mesh, bool *begun)
{
    *begun = false;
    for (int i = 0; i < n_items(shared); i++) {
        const struct item *item = &shared->item[i];
        int state = atomic_load_explicit(&item->state, memory_order_acquire);
        if (state == FREE || item->row != row || item->n_axes != mesh->n_axes)
            continue;
        if (state == DONE &&
            ap_mesh_queries_agree(&item->written->queries, &item->written->mesh, mesh))
            return item->written;
        *begun |= state == BEGUN;
    }
    return NULL;
}

int serve_shared_begin(struct serve_shared *shared, int row, const struct ap_mesh *mesh)
{
    int i = n_items(shared) < MOST_ITEMS && shared ? atomic_fetch_add(&shared->n, 1)
                                                   : MOST_ITEMS;
    if (i >= MOST_ITEMS)
        return -1;
    shared->item[i].row = row;
    shared->item[i].n_axes = mesh->n_axes;
    atomic_store_explicit(&shared->item[i].state, BEGUN, memory_order_release);
    return i;
}

void *serve_shared_room(struct serve_shared *shared, size_t bytes)
{
    const size_t align = _Alignof(max_align_t);
    size_t size = (bytes + align - 1) / align * align,
           at = atomic_fetch_add(&shared->used, size);
    return at <= shared->bytes && size <= shared->bytes - at ? (char *)shared + at : NULL;
}

void serve_shared_end(struct serve_shared *shared, int i,
                      const struct serve_named_plan *w)
{
    shared->item[i].written = w;
    atomic_store_explicit(&shared->item[i].state, DONE, memory_order_release);
}
