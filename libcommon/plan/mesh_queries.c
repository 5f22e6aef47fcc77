/*
 * Problem: a named plan is wanted for dozens of meshes, the plans are mostly the same,
 * and each takes passes over the whole graph. Idea: what the making of a plan asks of the
 * sizes of its mesh is kept, each query once; a mesh that answers all of them as the
 * first one did has the same choices. Cost: an expected constant number of steps per
 * query.
 */
#include "base/array.h"
#include "plan/named_plan_impl.h"

static bool same_query(const struct ap_mesh_query *a, const struct ap_mesh_query *b)
{
    return a->size == b->size && a->axes == b->axes && a->what == b->what;
}

void ap_mesh_query(struct ap_mesh_queries *queries, int64_t size, unsigned axes,
                   enum ap_mesh_question what)
{
    const struct ap_mesh_query query = {size, (uint8_t)axes, (uint8_t)what};
    struct ap_index_walk walk;

    if (axes == 0 || same_query(&queries->last, &query))
        return;
    queries->last = query;
    uint64_t hash = ap_hash_mix((uint64_t)size, (uint64_t)axes << 8 | (uint64_t)what);
    for (int i = ap_index_first(&queries->index, hash, &walk); i >= 0;
         i = ap_index_next(&queries->index, &walk))
        if (same_query(&queries->query[i], &query))
            return;
    ap_index_put(&queries->index, hash, queries->n);
    AP_ROOM_IN(queries->arena, queries->query, queries->n, queries->cap);
    queries->query[queries->n++] = query;
}

static bool answer(const struct ap_mesh *mesh, const struct ap_mesh_query *query)
{
    int64_t devices = ap_mesh_group(mesh, query->axes);
    return query->what == AP_MESH_DIVIDES ? query->size % devices == 0
                                          : query->size >= devices;
}

bool ap_mesh_queries_agree(const struct ap_mesh_queries *queries,
                           const struct ap_mesh *made, const struct ap_mesh *mesh)
{
    bool agree = made->n_axes == mesh->n_axes && !made->microbatch && !mesh->microbatch;
    for (int a = 0; a < made->n_axes && agree; a++)
        agree = (made->size[a] == 1) == (mesh->size[a] == 1) &&
                queries->use[a] == ap_mesh_axis_use(mesh, a);
    for (int i = 0; i < queries->n && agree; i++)
        agree = answer(made, &queries->query[i]) == answer(mesh, &queries->query[i]);
    return agree;
}
