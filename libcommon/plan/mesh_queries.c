/*
 * Problem: a rule's plans for dozens of meshes are mostly the same, and each takes passes
 * over the whole graph. Idea: what a plan's making asks of the sizes of the mesh is kept,
 * each question once; another mesh that answers all of them alike has the same choices.
 * Cost: a look-up in a small table for each question.
 */
#include "plan/named_plan_impl.h"

#include <stdlib.h>

static int64_t devices_of(const struct ap_mesh *mesh, unsigned axes)
{
    int64_t n = 1;
    for (int a = 0; a < mesh->n_axes; a++)
        if (axes >> a & 1)
            n *= mesh->size[a];
    return n;
}

static uint64_t hash_look(const struct ap_mesh_query *look)
{
    return ap_hash(&look->size, sizeof look->size, look->axes * 4ULL + look->what);
}

static struct ap_mesh_query *slot_of(const struct ap_mesh_queries *looks,
                                     const struct ap_mesh_query *look)
{
    size_t i = hash_look(look) & looks->mask;
    while (looks->slot[i].axes &&
           (looks->slot[i].size != look->size || looks->slot[i].axes != look->axes ||
            looks->slot[i].what != look->what))
        i = (i + 1) & looks->mask;
    return &looks->slot[i];
}

static void grow(struct ap_mesh_queries *looks)
{
    const struct ap_mesh_queries old = *looks;

    looks->mask = old.slot ? 2 * old.mask + 1 : 63;
    looks->slot = AP_NEW_N(looks->arena, looks->mask + 1, struct ap_mesh_query);
    for (size_t i = 0; old.slot && i <= old.mask; i++)
        if (old.slot[i].axes)
            *slot_of(looks, &old.slot[i]) = old.slot[i];
}

void ap_mesh_query(struct ap_mesh_queries *looks, int64_t size, unsigned axes,
                   enum ap_mesh_question what)
{
    const struct ap_mesh_query look = {size, (uint8_t)axes, (uint8_t)what};
    if (axes == 0)
        return;
    if (looks->last.size == size && looks->last.axes == axes && looks->last.what == what)
        return;
    looks->last = look;
    if (2 * (size_t)looks->n >= looks->mask)
        grow(looks);
    struct ap_mesh_query *slot = slot_of(looks, &look);
    looks->n += slot->axes == 0;
    *slot = look;
}

static bool answers(const struct ap_mesh *mesh, const struct ap_mesh_query *look)
{
    int64_t devices = devices_of(mesh, look->axes);
    return look->what == AP_MESH_DIVIDES ? look->size % devices == 0
                                         : look->size >= devices;
}

bool ap_mesh_queries_agree(const struct ap_mesh_queries *looks,
                           const struct ap_mesh *made, const struct ap_mesh *mesh)
{
    bool alike = made->n_axes == mesh->n_axes && !made->time && !mesh->time;
    for (int a = 0; a < made->n_axes && alike; a++)
        alike = (made->size[a] == 1) == (mesh->size[a] == 1);
    for (size_t i = 0; looks->slot && i <= looks->mask && alike; i++)
        if (looks->slot[i].axes)
            alike = answers(made, &looks->slot[i]) == answers(mesh, &looks->slot[i]);
    return alike;
}
