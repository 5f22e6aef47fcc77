/*
 * Families: their check, their sums and their section. The check walks every instance
 * beside the representative once, with arrays over the graph's nodes that say where a
 * node stands and what stands for an operand from outside: linear in nodes and edges.
 */
#include "doc/families.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "doc/attr_json.h"

/* ---- nodes alike ---- */

static void put_node(const struct ap_graph *g, const struct ap_node *node,
                     struct ap_buf *out);

/* Reducers are one if they compute the same: ids and names say nothing. */
static void put_reducer(const struct ap_graph *g, int id, struct ap_buf *out)
{
    if (id < 0)
        return;
    const struct ap_reducer *r = &g->reducers[id];
    ap_buf_puts(out, ap_red_names[r->red]);
    for (int i = 0; r->red == AP_RED_NONE && i < r->n_nodes; i++) {
        put_node(g, &r->nodes[i], out);
        ap_put_ids(out, "in", r->nodes[i].in, r->nodes[i].n_in);
        ap_put_int(out, "param", r->nodes[i].param);
    }
    if (r->red == AP_RED_NONE)
        ap_put_ids(out, "results", r->results, r->n_results);
}

/* All that nodes alike have in common, as text; equal text if and only if alike. */
static void put_node(const struct ap_graph *g, const struct ap_node *node,
                     struct ap_buf *out)
{
    const int head[5] = {(int)node->op, (int)node->phase, (int)node->role, node->n_in,
                         (int)node->shape.dtype};

    ap_buf_put(out, head, sizeof(head));
    if (node->shape.dtype == AP_TUPLE)
        ap_shape_print(&node->shape, out);
    else
        ap_buf_put(out, node->shape.dims,
                   (size_t)node->shape.rank * sizeof(*node->shape.dims));
    const struct ap_attrs *attrs = node->attrs;
    if (attrs->to_apply < 0 && attrs->select < 0 && attrs->scatter < 0) {
        ap_attrs_to_json(node, out);
        return;
    }
    struct ap_attrs plain = *attrs;
    struct ap_node copy = *node;
    plain.to_apply = plain.select = plain.scatter = -1;
    copy.attrs = &plain;
    ap_attrs_to_json(&copy, out);
    put_reducer(g, attrs->to_apply, out);
    ap_buf_putc(out, ';');
    put_reducer(g, attrs->select, out);
    ap_buf_putc(out, ';');
    put_reducer(g, attrs->scatter, out);
}

/* Alike, without a look at their attributes. */
static bool plainly_alike(const struct ap_node *a, const struct ap_node *b)
{
    return a->op == b->op && a->phase == b->phase && a->role == b->role &&
           a->n_in == b->n_in && a->attrs == b->attrs &&
           ap_shape_equal(&a->shape, &b->shape);
}

#define LATEST 1024

/* Equal for nodes that are plainly alike. */
static uint64_t glance(const struct ap_node *node)
{
    uint64_t h = (uint64_t)(uintptr_t)node->attrs >> 4;
    h = h * 31 + (uint64_t)node->op;
    h = h * 31 + (uint64_t)node->phase;
    h = h * 31 + (uint64_t)node->role;
    for (int d = 0; node->shape.dtype != AP_TUPLE && d < node->shape.rank; d++)
        h = h * 31 + (uint64_t)node->shape.dims[d];
    return h ^ h >> 20;
}

static bool same_bytes(const struct ap_buf *a, const struct ap_buf *b)
{
    return a->len == b->len && !memcmp(a->data, b->data, a->len);
}

bool ap_nodes_alike(const struct ap_graph *g, int a, int b)
{
    struct ap_buf ta = {0}, tb = {0};

    if (plainly_alike(&g->nodes[a], &g->nodes[b]))
        return true;
    put_node(g, &g->nodes[a], &ta);
    put_node(g, &g->nodes[b], &tb);
    bool alike = same_bytes(&ta, &tb);
    ap_buf_free(&ta);
    ap_buf_free(&tb);
    return alike;
}

void ap_node_signatures(const struct ap_graph *g, uint64_t *sig)
{
    struct ap_buf text = {0};
    int latest[LATEST]; /* nodes whose signature is known, by what is quick to look at */

    for (int i = 0; i < LATEST; i++)
        latest[i] = -1;
    for (int v = 0; v < g->n_nodes; v++) {
        int *like = &latest[glance(&g->nodes[v]) % LATEST];
        if (*like >= 0 && plainly_alike(&g->nodes[*like], &g->nodes[v])) {
            sig[v] = sig[*like];
            continue;
        }
        text.len = 0;
        put_node(g, &g->nodes[v], &text);
        sig[v] = ap_hash(text.data, text.len, 0);
        *like = v;
    }
    ap_buf_free(&text);
}

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
    struct ap_buf first, text; /* nodes as put_node has them: of instance 0, at hand */
    size_t *start;             /* [position, and one more]: in first */
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

static void put_first(struct check *c, const struct ap_family *f)
{
    c->first.len = 0;
    for (int j = 0; j < f->n_nodes; j++) {
        c->start[j] = c->first.len;
        put_node(c->g, &c->g->nodes[f->nodes[j]], &c->first);
    }
    c->start[f->n_nodes] = c->first.len;
}

/* b stands for a, which is at position j of the first instance. */
static bool check_alike(struct check *c, const struct ap_node *a, const struct ap_node *b,
                        int j)
{
    if (plainly_alike(a, b))
        return true;
    c->text.len = 0;
    put_node(c->g, b, &c->text);
    return c->text.len == c->start[j + 1] - c->start[j] &&
           memcmp(c->text.data, c->first.data + c->start[j], c->text.len) == 0;
}

static int check_instance(struct check *c, int id, int instance)
{
    const struct ap_family *f = &c->f->family[id];

    c->n_rounds++;
    for (int j = 0; j < f->n_nodes; j++) {
        const struct ap_node *a = &c->g->nodes[f->nodes[j]];
        const struct ap_node *b =
            &c->g->nodes[f->nodes[(int64_t)instance * f->n_nodes + j]];
        if (!check_alike(c, a, b, j))
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
    put_first(c, f);
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
    c.start = AP_NEW_N(arena, g->n_nodes + 1, size_t);
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
    ap_buf_free(&c.first);
    ap_buf_free(&c.text);
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
    if (p->n == p->cap) {
        p->cap = p->cap ? 2 * p->cap : 64;
        p->path = ap_xrealloc(p->path, (size_t)p->cap * sizeof(*p->path));
    }
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

/* ---- the section ---- */

static void put_family(const struct ap_graph *g, const struct ap_family *f,
                       struct ap_buf *out)
{
    int n_weights = 0;

    for (int j = 0; j < f->n_nodes; j++)
        n_weights += g->nodes[f->nodes[j]].role == AP_ROLE_WEIGHT;
    ap_buf_puts(out, "{\"name\":");
    ap_json_str(out, f->name);
    if (f->parent >= 0)
        ap_put_int(out, "parent", f->parent);
    ap_put_int(out, "weights", n_weights);
    ap_put_key(out, "labels");
    for (int i = 0; i < f->n_instances; i++) {
        ap_buf_putc(out, i ? ',' : '[');
        ap_json_str(out, f->labels[i]);
    }
    ap_buf_puts(out, "],\n\"nodes\":[");
    for (int i = 0; i < f->n_instances; i++) {
        const int *row = f->nodes + (int64_t)i * f->n_nodes;
        ap_buf_puts(out, i ? ",\n" : "");
        for (int j = 0; j < f->n_nodes; j++) {
            ap_buf_putc(out, j ? ',' : '[');
            ap_buf_int(out, row[j]);
        }
        ap_buf_putc(out, ']');
    }
    ap_buf_puts(out, "]}");
}

void ap_families_to_json(struct ap_arena *arena, const struct ap_graph *g,
                         const struct ap_families *f, struct ap_buf *out)
{
    struct ap_families_summary sum;

    ap_families_sum(arena, g, f, &sum);
    ap_buf_puts(out, "{\"algorithm\":");
    ap_json_str(out, f->algorithm);
    ap_put_int(out, "distinct", sum.n_distinct);
    ap_put_int(out, "instances", sum.n_instances);
    ap_put_int(out, "nodes_inside", sum.nodes);
    ap_put_int(out, "weights_inside", sum.weights);
    ap_buf_puts(out, ",\n\"families\":[");
    for (int i = 0; i < f->n; i++) {
        ap_buf_puts(out, i ? ",\n" : "\n");
        put_family(g, &f->family[i], out);
    }
    ap_buf_puts(out, "]");
    ap_put_ids(out, "trimmed", f->trimmed, f->n_trimmed);
    ap_buf_putc(out, '}');
}

static int read_row(const json_t *row, const struct ap_at *at, int n, int *out,
                    struct ap_err *err)
{
    if (!json_is_array(row) || json_array_size(row) != (size_t)n)
        return ap_at_err(at, err, "expected an array of %d node ids", n);
    for (int j = 0; j < n; j++) {
        struct ap_at here = {at, NULL, j};
        const json_t *id = json_array_get(row, (size_t)j);
        if (!json_is_integer(id) || json_integer_value(id) < 0 ||
            json_integer_value(id) > INT_MAX)
            return ap_at_err(&here, err, "expected a node id");
        out[j] = (int)json_integer_value(id);
    }
    return 0;
}

static int read_labels(struct ap_arena *arena, const json_t *o, const struct ap_at *at,
                       struct ap_family *f, struct ap_err *err)
{
    struct ap_at list = {at, "labels", 0};
    json_t *labels;

    if (ap_get_arr(o, at, "labels", &labels, err))
        return -1;
    if (json_array_size(labels) != (size_t)f->n_instances)
        return ap_at_err(&list, err, "expected %d, one for each instance",
                         f->n_instances);
    const char **text = AP_NEW_N(arena, f->n_instances, const char *);
    for (int i = 0; i < f->n_instances; i++) {
        struct ap_at here = {&list, NULL, i};
        const char *s = json_string_value(json_array_get(labels, (size_t)i));
        if (!s)
            return ap_at_err(&here, err, "expected a string");
        text[i] = ap_arena_strdup(arena, s);
    }
    f->labels = text;
    return 0;
}

static int read_family(struct ap_arena *arena, const json_t *o, const struct ap_at *at,
                       int n_graph, struct ap_family *f, struct ap_err *err)
{
    struct ap_at list = {at, "nodes", 0};
    const char *name;
    json_t *rows;

    f->parent = -1;
    if (!json_is_object(o))
        return ap_at_err(at, err, "expected an object");
    if (ap_get_str(o, at, "name", &name, err) ||
        ap_opt_int(o, at, "parent", 0, &f->parent, err) ||
        ap_get_arr(o, at, "nodes", &rows, err))
        return -1;
    size_t n = json_array_size(rows), size = json_array_size(json_array_get(rows, 0));
    if (n > (size_t)n_graph || size > (size_t)n_graph)
        return ap_at_err(&list, err, "more ids than the graph has nodes");
    f->name = ap_arena_strdup(arena, name);
    f->n_instances = (int)n;
    f->n_nodes = (int)size;
    if ((int64_t)f->n_instances * f->n_nodes > n_graph)
        return ap_at_err(&list, err, "more ids than the graph has nodes");
    int *nodes = AP_NEW_N(arena, n * size + 1, int);
    for (int i = 0; i < f->n_instances; i++) {
        struct ap_at here = {&list, NULL, i};
        if (read_row(json_array_get(rows, (size_t)i), &here, f->n_nodes,
                     nodes + (size_t)i * size, err))
            return -1;
    }
    f->nodes = nodes;
    return read_labels(arena, o, at, f, err);
}

int ap_families_from_json(struct ap_arena *arena, const json_t *o, const struct ap_at *at,
                          const struct ap_graph *g, struct ap_families *f,
                          struct ap_err *err)
{
    struct ap_at list = {at, "families", 0}, trimmed_at = {at, "trimmed", 0};
    struct ap_err found = {0};
    const char *algorithm;
    json_t *families, *trimmed;

    *f = (struct ap_families){0};
    if (!json_is_object(o))
        return ap_at_err(at, err, "expected an object");
    if (ap_get_str(o, at, "algorithm", &algorithm, err) ||
        ap_get_arr(o, at, "families", &families, err) ||
        ap_get_arr(o, at, "trimmed", &trimmed, err))
        return -1;
    size_t n = json_array_size(families), n_trimmed = json_array_size(trimmed);
    if (n > (size_t)g->n_nodes)
        return ap_at_err(&list, err, "more families than nodes");
    if (n_trimmed > (size_t)g->n_nodes)
        return ap_at_err(&trimmed_at, err, "more ids than nodes");
    struct ap_family *family = AP_NEW_N(arena, n + 1, struct ap_family);
    int *ids = AP_NEW_N(arena, n_trimmed + 1, int);
    for (size_t i = 0; i < n; i++) {
        struct ap_at here = {&list, NULL, (long)i};
        if (read_family(arena, json_array_get(families, i), &here, g->n_nodes, &family[i],
                        err))
            return -1;
    }
    if (read_row(trimmed, &trimmed_at, (int)n_trimmed, ids, err))
        return -1;
    *f = (struct ap_families){ap_arena_strdup(arena, algorithm), (int)n, family,
                              (int)n_trimmed, ids};
    if (!ap_families_check(arena, g, f, &found))
        return 0;
    struct ap_buf where = {0};
    ap_buf_puts(&where, "");
    ap_at_print(at, &where);
    ap_err_set(err, "%s%s", where.data, found.msg);
    ap_buf_free(&where);
    return -1;
}

int ap_doc_families(struct ap_arena *arena, const struct ap_doc *doc,
                    const struct ap_graph *g, struct ap_families *f, struct ap_err *err)
{
    const struct ap_section *section = ap_doc_find(doc, "families");
    const struct ap_at at = {.key = "families"};
    struct ap_err why = {0};

    if (!section)
        return 1;
    json_t *o = ap_doc_load(doc, section, &why);
    int rc = o ? ap_families_from_json(arena, o, &at, g, f, &why) : -1;
    json_decref(o);
    return rc ? ap_err_set(err, "%s: %s", doc->file, why.msg) : 0;
}
