/*
 * Families: their check and their sums. The check walks every instance together with the
 * representative once, with arrays over the graph's nodes for the place of a node and the
 * counterpart of an operand from outside: linear in nodes and edges.
 */
#include "graph/families.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "graph/identity.h"

/* ---- the check ---- */

struct check {
    const struct ap_graph *g;
    const struct ap_families *f;
    struct ap_err *err;
    int *family, *instance; /* [node]: innermost family so far, -1 for none */
    int *position;          /* [node]: in that instance */
    int *mate[2];           /* [node]: what stands for an operand from outside ... */
    int *round[2];          /* ... in this round (one a family and instance) */
    int n_rounds;
};

static int check_fail(struct check *c, int family, int instance, int j, const char *what)
{
    return ap_err_set(c->err, "/families/%d/nodes/%d/%d: %s", family, instance, j, what);
}

/* Puts the nodes of a family into their places. */
static int check_places(struct check *c, int id)
{
    const struct ap_family *f = &c->f->family[id];
    int parent_instance = -1;

    for (int64_t at = 0; at < (int64_t)f->n_instances * f->n_nodes; at++) {
        int i = (int)(at / f->n_nodes), j = (int)(at % f->n_nodes), v = f->nodes[at];
        if (v < 0 || v >= c->g->n_nodes)
            return check_fail(c, id, i, j, "no node of the graph");
        if (!i && j && v <= f->nodes[at - 1])
            return check_fail(c, id, i, j, "ids of the first instance must ascend");
        if (i && !j && v <= f->nodes[at - f->n_nodes])
            return check_fail(c, id, i, j,
                              "instances must be in the order of their first nodes");
        if (c->family[v] == id)
            return check_fail(c, id, i, j, "stands in the family already");
        if (c->family[v] != f->parent)
            return check_fail(c, id, i, j,
                              c->family[v] < f->parent ? "lies outside the parent family"
                                                       : "belongs to another family");
        if (!j)
            parent_instance = c->instance[v];
        if (f->parent >= 0 && c->instance[v] != parent_instance)
            return check_fail(c, id, i, j, "lies in another instance of the parent");
        c->family[v] = id;
        c->position[v] = j;
    }
    return 0;
}

/* Every instance of the parent holds equally many of family id. */
static int check_shares(struct check *c, int id)
{
    const struct ap_family *f = &c->f->family[id];

    if (f->parent < 0)
        return 0;
    int n = c->f->family[f->parent].n_instances;
    int *count = ap_xrealloc(NULL, (size_t)n * sizeof(*count)), rc = 0;
    memset(count, 0, (size_t)n * sizeof(*count));
    for (int i = 0; i < f->n_instances; i++)
        count[c->instance[f->nodes[(int64_t)i * f->n_nodes]]]++;
    for (int i = 1; !rc && i < n; i++)
        if (count[i] != count[0])
            rc = ap_err_set(c->err,
                            "/families/%d: instance %d of the parent holds %d of its "
                            "instances, instance 0 holds %d",
                            id, i, count[i], count[0]);
    free(count);
    return rc;
}

/* x and y stand for each other wherever this instance reads them. */
static bool check_mates(struct check *c, int x, int y)
{
    int round = c->n_rounds;

    if (c->round[0][x] != round && c->round[1][y] != round) {
        c->round[0][x] = c->round[1][y] = round;
        c->mate[0][x] = y;
        c->mate[1][y] = x;
        return true;
    }
    return c->round[0][x] == round && c->mate[0][x] == y && c->round[1][y] == round &&
           c->mate[1][y] == x;
}

/* What is wrong with operand k of nodes a and b, NULL if nothing. */
static const char *check_operand(struct check *c, int id, int instance, int x, int y)
{
    bool in_a = c->family[x] == id && c->instance[x] == 0;
    bool in_b = c->family[y] == id && c->instance[y] == instance;

    if (in_a != in_b)
        return "has an operand inside its instance, its counterpart one outside, or the "
               "reverse";
    if (in_a)
        return c->position[x] == c->position[y]
                   ? NULL
                   : "has an operand that does not correspond to its counterpart's";
    if (!ap_shape_equal(&c->g->nodes[x].shape, &c->g->nodes[y].shape))
        return "has an operand from outside of another shape than its counterpart's";
    return check_mates(c, x, y) ? NULL
                                : "has an operand from outside that stands for several "
                                  "of another instance";
}

static int check_instance(struct check *c, int id, int instance)
{
    const struct ap_family *f = &c->f->family[id];

    c->n_rounds++;
    for (int j = 0; j < f->n_nodes; j++) {
        int first = f->nodes[j], other = f->nodes[(int64_t)instance * f->n_nodes + j];
        const struct ap_node *a = &c->g->nodes[first], *b = &c->g->nodes[other];
        if (!ap_nodes_identical(c->g, first, other))
            return check_fail(
                c, id, instance, j,
                "operator, shape, attributes, role or phase differ from the first "
                "instance's");
        for (int k = 0; k < a->n_in; k++) {
            const char *what = check_operand(c, id, instance, a->in[k], b->in[k]);
            if (what)
                return check_fail(c, id, instance, j, what);
        }
    }
    return 0;
}

static int check_family(struct check *c, int id)
{
    const struct ap_family *f = &c->f->family[id];
    int64_t n = (int64_t)f->n_instances * f->n_nodes;

    if (f->parent < -1 || f->parent >= id)
        return ap_err_set(c->err, "/families/%d/parent: must be an earlier family", id);
    if (f->n_instances < 2 || f->n_nodes < 1)
        return ap_err_set(c->err, "/families/%d: expected at least 2 instances of 1 node",
                          id);
    if (check_places(c, id) || check_shares(c, id))
        return -1;
    for (int64_t at = 0; at < n; at++)
        c->instance[f->nodes[at]] = (int)(at / f->n_nodes);
    for (int i = 1; i < f->n_instances; i++)
        if (check_instance(c, id, i))
            return -1;
    return 0;
}

static int check_trimmed(struct check *c)
{
    for (int i = 0; i < c->f->n_trimmed; i++) {
        int v = c->f->trimmed[i];
        if (v < 0 || v >= c->g->n_nodes || (i && v <= c->f->trimmed[i - 1]))
            return ap_err_set(c->err, "/trimmed/%d: expected ascending node ids", i);
        if (c->family[v] >= 0)
            return ap_err_set(c->err, "/trimmed/%d: node %d belongs to a family", i, v);
    }
    return 0;
}

int ap_families_check(struct ap_arena *arena, const struct ap_graph *g,
                      const struct ap_families *f, struct ap_err *err)
{
    struct ap_mark mark = ap_arena_mark(arena);
    struct check c = {.g = g, .f = f, .err = err};
    int rc = 0;

    c.family = AP_NEW_N(arena, g->n_nodes, int);
    c.instance = AP_NEW_N(arena, g->n_nodes, int);
    c.position = AP_NEW_N(arena, g->n_nodes, int);
    for (int side = 0; side < 2; side++) {
        c.mate[side] = AP_NEW_N(arena, g->n_nodes, int);
        c.round[side] = AP_NEW_N(arena, g->n_nodes, int);
    }
    for (int v = 0; v < g->n_nodes; v++)
        c.family[v] = c.instance[v] = -1;
    for (int id = 0; !rc && id < f->n; id++)
        rc = check_family(&c, id);
    if (!rc)
        rc = check_trimmed(&c);
    ap_arena_rewind(arena, mark);
    return rc;
}

/* ---- sums ---- */

/* Sorted set of scopes. */
struct paths {
    int n, cap;
    const char **path;
};

static int compare_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static void paths_add(struct paths *p, const char *path)
{
    AP_ROOM(p->path, p->n, p->cap);
    p->path[p->n++] = path;
}

static int paths_find(const struct paths *p, const char *path)
{
    const char **hit =
        !p->n ? NULL
              : bsearch(&path, p->path, (size_t)p->n, sizeof(*p->path), compare_text);
    return hit ? (int)(hit - p->path) : -1;
}

static void paths_sort(struct paths *p)
{
    int n = 0;

    if (p->n)
        qsort(p->path, (size_t)p->n, sizeof(*p->path), compare_text);
    for (int i = 0; i < p->n; i++)
        if (!n || strcmp(p->path[n - 1], p->path[i]) != 0)
            p->path[n++] = p->path[i];
    p->n = n;
}

/* Cuts the last part off; false if there was one only. */
static bool path_up(char *path)
{
    char *slash = strrchr(path, '/');

    if (slash)
        *slash = '\0';
    return slash != NULL;
}

/* All scopes with an instance of an outer family somewhere below. */
static void collect_homes(struct ap_arena *arena, const struct ap_families *f,
                          struct paths *homes)
{
    const char *last = "";

    for (int i = 0; i < f->n; i++)
        for (int k = 0; f->family[i].parent < 0 && k < f->family[i].n_instances; k++) {
            char *path = ap_arena_strdup(arena, f->family[i].labels[k]);
            if (!path_up(path) || !strcmp(path, last))
                continue;
            last = ap_arena_strdup(arena, path);
            do
                paths_add(homes, ap_arena_strdup(arena, path));
            while (path_up(path));
        }
    paths_sort(homes);
}

/*
 * Weights outside the families: what is left of the innermost scope that has families
 * below it is one block, whatever it consists of.
 */
static int count_rests(struct ap_arena *arena, const struct ap_graph *g,
                       const struct ap_families *f, const bool *inside)
{
    struct paths homes = {0};
    bool top = false;
    int n_rests = 0;

    collect_homes(arena, f, &homes);
    bool *used = AP_NEW_N(arena, homes.n + 1, bool);
    for (int v = 0; v < g->n_nodes; v++) {
        if (g->nodes[v].role != AP_ROLE_WEIGHT || inside[v])
            continue;
        char *path = ap_arena_strdup(arena, g->nodes[v].scope);
        int home = paths_find(&homes, path);
        while (home < 0 && path_up(path))
            home = paths_find(&homes, path);
        bool *mark = home < 0 ? &top : &used[home];
        n_rests += !*mark;
        *mark = true;
    }
    free(homes.path);
    return n_rests;
}

void ap_families_sum(struct ap_arena *arena, const struct ap_graph *g,
                     const struct ap_families *f, struct ap_families_summary *sum)
{
    struct ap_mark mark = ap_arena_mark(arena);
    bool *inside = AP_NEW_N(arena, g->n_nodes, bool);

    *sum = (struct ap_families_summary){0};
    for (int i = 0; i < f->n; i++) {
        const struct ap_family *family = &f->family[i];
        int64_t n = (int64_t)family->n_instances * family->n_nodes;
        if (family->parent >= 0)
            continue;
        sum->n_outer++;
        sum->n_instances += family->n_instances;
        sum->nodes += n;
        for (int64_t at = 0; at < n; at++)
            inside[family->nodes[at]] = true;
    }
    for (int v = 0; v < g->n_nodes; v++)
        if (g->nodes[v].role == AP_ROLE_WEIGHT) {
            sum->all_weights++;
            sum->weights += inside[v];
        }
    sum->n_distinct = sum->n_outer + count_rests(arena, g, f, inside);
    ap_arena_rewind(arena, mark);
}
