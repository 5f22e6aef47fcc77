/*
 * Problem: a canonical form of layouts, exact for sizes that do not divide.
 *
 * Let a factor of size f be split by axes of sizes n1, n2, ...: B0 = f, Bj = ceil(Bj-1 /
 * nj) are its blocks. An axis with Bj-1 = 1 is dead. A live one moves elements by weight
 * Bj * stride, so weights and the gaps in a device's block give the order of the axes and
 * the stride of every boundary between factors. A boundary between two axes can be put in
 * (or taken out) exactly if no weight changes: a factor [f | A, C] is [f / B | A] [B | C]
 * with B the block after A, if B divides f and ceil(f / P) = ceil(f / B / P) * B for the
 * products P of the sizes of A's first axes. Boundaries do not hinder each other, so that
 * putting in all of them gives the finest nested split, and it is unique. The canonical
 * layout is then made by taking out boundaries from major to minor where mesh order
 * allows it.
 *
 * Cost: linear in the axes of the dimension, a few divisions each.
 */
#include "layout/nested_split.h"

#include <string.h>

/* ceil(f * u / P) = ceil(f / P) * u for the products P of the first n axes' sizes? */
static bool scales(const struct ap_mesh *mesh, int64_t f, int64_t u, const uint8_t *axis,
                   int n)
{
    int64_t whole = f * u;
    for (int i = 0; i < n; i++) {
        whole = ap_ceil_div(whole, mesh->size[axis[i]]);
        f = ap_ceil_div(f, mesh->size[axis[i]]);
        if (whole != f * u)
            return false;
    }
    return true;
}

int64_t ap_nested_split_local(const struct ap_mesh *mesh, const struct ap_split_factor *f)
{
    int64_t x = f->size;
    for (int i = 0; i < f->n; i++)
        x = ap_ceil_div(x, mesh->size[f->axis[i]]);
    return x;
}

int ap_nested_split_raw(const struct ap_mesh *mesh, const struct ap_shape *shape,
                        const struct ap_layout *l, int d, struct ap_nested_split *nested)
{
    int64_t size = shape->dims[d], stride[AP_MAX_AXES + 2];
    int n = 0;

    for (int a = 0; a < mesh->n_axes; a++) {
        const struct ap_placement *p = &l->axis[a];
        if (p->kind != AP_SPLIT || p->dim != d)
            continue;
        int64_t s = ap_stride(p, size);
        int i = 0;
        while (i < n && stride[i] > s)
            i++;
        if (i == n || stride[i] != s) {
            for (int k = n++; k > i; k--) {
                stride[k] = stride[k - 1];
                nested->factor[k] = nested->factor[k - 1];
            }
            stride[i] = s;
            nested->factor[i].n = 0;
        }
        nested->factor[i].axis[nested->factor[i].n++] = (uint8_t)a;
    }
    nested->dead = 0;
    if (n == 0 || stride[0] != size) { /* an unsplit factor in front */
        for (int k = n++; k > 0; k--) {
            stride[k] = stride[k - 1];
            nested->factor[k] = nested->factor[k - 1];
        }
        stride[0] = size;
        nested->factor[0].n = 0;
    }
    stride[n] = 1;
    for (int i = 0; i < n; i++) {
        if (i + 1 < n && (stride[i + 1] <= 0 || stride[i] % stride[i + 1] != 0))
            return -1;
        nested->factor[i].size = i + 1 < n ? stride[i] / stride[i + 1] : stride[i];
    }
    nested->n = n;
    return 0;
}

/* Takes axes that have nothing to split out of the factor. */
static void drop_dead(const struct ap_mesh *mesh, struct ap_split_factor *f,
                      unsigned *dead)
{
    int64_t x = f->size;
    int n = 0;
    for (int i = 0; i < f->n; i++) {
        if (x == 1)
            *dead |= 1u << f->axis[i];
        else
            f->axis[n++] = f->axis[i];
        x = ap_ceil_div(x, mesh->size[f->axis[i]]);
    }
    f->n = n;
}

/* Appends factor f to out, cut wherever it can be cut. */
static void put_cut(const struct ap_mesh *mesh, const struct ap_split_factor *f,
                    struct ap_nested_split *out)
{
    struct ap_split_factor rest = *f;
    int64_t block = rest.size;

    for (int k = 0, i = 0; i + 1 < f->n; i++) {
        block = ap_ceil_div(block, mesh->size[f->axis[i]]);
        k++;
        if (block == 0 || rest.size % block != 0 ||
            !scales(mesh, rest.size / block, block, rest.axis, k))
            continue;
        struct ap_split_factor *major = &out->factor[out->n++];
        major->size = rest.size / block;
        major->n = k;
        rest.size = block;
        rest.n -= k;
        for (int j = 0; j < k; j++)
            major->axis[j] = rest.axis[j];
        for (int j = 0; j < rest.n; j++)
            rest.axis[j] = rest.axis[j + k];
        k = 0;
    }
    out->factor[out->n++] = rest;
}

int ap_nested_split_refine(const struct ap_mesh *mesh, struct ap_nested_split *nested)
{
    struct ap_nested_split out; /* in the inner loop: only what is used is copied */
    int n = 0;

    out.n = 0;
    out.dead = nested->dead;
    for (int i = 0; i < nested->n; i++) {
        struct ap_split_factor f = nested->factor[i];
        drop_dead(mesh, &f, &out.dead);
        if (f.n == 0 && f.size == 1)
            continue;
        if (f.n == 0 && n > 0) { /* belongs to the block of the factor before */
            struct ap_split_factor *up = &nested->factor[n - 1];
            if (!scales(mesh, up->size, f.size, up->axis, up->n))
                return -1;
            up->size *= f.size;
            continue;
        }
        nested->factor[n++] = f;
    }
    for (int i = 0; i < n; i++)
        put_cut(mesh, &nested->factor[i], &out);
    nested->n = out.n;
    nested->dead = out.dead;
    memcpy(nested->factor, out.factor, (size_t)out.n * sizeof *out.factor);
    return 0;
}

int ap_nested_split_get(const struct ap_mesh *mesh, const struct ap_shape *shape,
                        const struct ap_layout *l, int d, struct ap_nested_split *nested)
{
    if (ap_nested_split_raw(mesh, shape, l, d, nested))
        return -1;
    return ap_nested_split_refine(mesh, nested);
}

/* Joins factor b to a, which is major to it, if that moves nothing. */
static bool join(const struct ap_mesh *mesh, struct ap_split_factor *a,
                 const struct ap_split_factor *b)
{
    if (a->n == 0 || a->axis[a->n - 1] > b->axis[0] ||
        ap_nested_split_local(mesh, a) != 1 ||
        !scales(mesh, a->size, b->size, a->axis, a->n))
        return false;
    a->size *= b->size;
    for (int i = 0; i < b->n; i++)
        a->axis[a->n++] = b->axis[i];
    return true;
}

int ap_nested_split_put(const struct ap_mesh *mesh, const struct ap_shape *shape,
                        const struct ap_nested_split *nested, int d, struct ap_layout *l)
{
    struct ap_split_factor f[AP_MAX_AXES + 2];
    int64_t size = shape->dims[d], stride = size;
    int n = 0;

    for (int i = 0; i < nested->n; i++) {
        for (int k = 1; k < nested->factor[i].n; k++)
            if (nested->factor[i].axis[k - 1] > nested->factor[i].axis[k])
                return -1;
        if (n == 0 || !join(mesh, &f[n - 1], &nested->factor[i]))
            f[n++] = nested->factor[i];
    }
    int64_t last = 1; /* stride of the dead axes */
    for (int i = 0; i < n; i++) {
        for (int k = 0; k < f[i].n; k++)
            l->axis[f[i].axis[k]] =
                (struct ap_placement){.kind = AP_SPLIT,
                                      .dim = (uint8_t)d,
                                      .stride = stride == size ? 0 : stride};
        if (i == n - 1 && f[i].n > 0 && ap_nested_split_local(mesh, &f[i]) == 1 &&
            nested->dead && f[i].axis[f[i].n - 1] < __builtin_ctz(nested->dead))
            last = stride;
        stride /= f[i].size;
    }
    for (int a = 0; a < mesh->n_axes; a++)
        if (nested->dead >> a & 1)
            l->axis[a] = (struct ap_placement){
                .kind = AP_SPLIT, .dim = (uint8_t)d, .stride = last == size ? 0 : last};
    return 0;
}

int64_t ap_nested_split_stride(const struct ap_nested_split *nested, int a)
{
    int64_t minor = 1;
    for (int i = nested->n - 1; i >= 0; i--) {
        minor *= nested->factor[i].size;
        for (int k = 0; k < nested->factor[i].n; k++)
            if (nested->factor[i].axis[k] == a)
                return minor;
    }
    return 1; /* dead */
}
