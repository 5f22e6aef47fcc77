/*
 * From drafts to families. A draft that lies within one instance of another is repeated
 * in all its instances, by the correspondence of their nodes; families are ordered by
 * their parents, then as they were found; a name is what the labels of all instances have
 * in common. Linear in the nodes of all instances.
 */
#include "prune.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "owner.h"

/* ---- a child in every instance of its parent ---- */

/* Where the last part of a path begins. */
static size_t last_part(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash ? (size_t)(slash + 1 - path) : 0;
}

/* label of an instance inside the parent's first one, as seen from instance i. */
static const char *moved_label(struct ap_arena *arena, const struct prune_draft *parent,
                               int i, const char *label)
{
    const char *from = parent->labels ? parent->labels[0] : "";
    const char *to = parent->labels ? parent->labels[i] : "";
    size_t len = strlen(from);

    if (parent->labels && !strncmp(label, from, len))
        return ap_arena_printf(arena, "%s%s", to, label + len);
    /* of several scopes side by side, "a/h_0+h_1", the one that it is in */
    size_t dir = last_part(from), to_dir = last_part(to);
    const char *a = from + dir, *b = to + to_dir;
    bool inside = parent->labels && !strncmp(label, from, dir);
    for (; inside && *a && *b; a += *a == '+', b += *b == '+') {
        size_t n = strcspn(a, "+"), n_to = strcspn(b, "+");
        if (!strncmp(label + dir, a, n) && (!label[dir + n] || label[dir + n] == '/'))
            return ap_arena_printf(arena, "%.*s%.*s%s", (int)to_dir, to, (int)n_to, b,
                                   label + dir + n);
        a += n;
        b += n_to;
    }
    return ap_arena_printf(arena, "%s[%d]", label, i);
}

void prune_repeat(struct prune_space *s, const struct prune_draft *parent, int parent_id,
                  struct prune_draft *child)
{
    int n = child->n_instances, size = child->n_nodes, n_all = n * parent->n_instances;
    int *nodes = AP_NEW_N(s->arena, (int64_t)n_all * size, int), *column = s->at[0];
    const char **labels = NULL;

    for (int j = 0; j < parent->n_nodes; j++)
        column[parent->nodes[j]] = j;
    for (int i = 0; i < parent->n_instances; i++)
        for (int64_t at = 0; at < (int64_t)n * size; at++)
            nodes[(int64_t)i * n * size + at] =
                parent->nodes[(int64_t)i * parent->n_nodes + column[child->nodes[at]]];
    for (int j = 0; j < parent->n_nodes; j++)
        column[parent->nodes[j]] = -1;
    if (child->labels) {
        labels = AP_NEW_N(s->arena, n_all, const char *);
        for (int at = 0; at < n_all; at++)
            labels[at] = moved_label(s->arena, parent, at / n, child->labels[at % n]);
    }
    child->nodes = nodes;
    child->labels = labels;
    child->n_instances = n_all;
    child->parent = parent_id;
}

/* ---- names ---- */

/* What n texts of these lengths have in common at both ends, "*" between. */
static void put_common(struct ap_buf *out, const char *const *text, const size_t *len,
                       int n)
{
    size_t head = len[0], tail = len[0], shortest = len[0];

    for (int i = 1; i < n; i++) {
        size_t k = 0;
        shortest = len[i] < shortest ? len[i] : shortest;
        while (k < head && k < len[i] && text[i][k] == text[0][k])
            k++;
        head = k;
        for (k = 0; k < tail && k < len[i] &&
                    text[i][len[i] - 1 - k] == text[0][len[0] - 1 - k];)
            k++;
        tail = k;
    }
    if (head == len[0] && head == shortest && tail == head) {
        ap_buf_put(out, text[0], head);
        return;
    }
    while (head && isdigit((unsigned char)text[0][head - 1]))
        head--;
    tail = tail > shortest - head ? shortest - head : tail;
    while (tail && isdigit((unsigned char)text[0][len[0] - tail]))
        tail--;
    ap_buf_put(out, text[0], head);
    ap_buf_putc(out, '*');
    ap_buf_put(out, text[0] + len[0] - tail, tail);
}

/* Part by part of the path if all have equally many, else as one text. */
static const char *common_name(struct ap_arena *arena, const char *const *labels, int n)
{
    const char **part = AP_NEW_N(arena, n, const char *);
    size_t *len = AP_NEW_N(arena, n, size_t);
    struct ap_buf out = {0};
    bool even = true, more = true;

    memcpy(part, labels, (size_t)n * sizeof(*part));
    while (more && even) {
        for (int i = 0; i < n; i++) {
            len[i] = strcspn(part[i], "/");
            even &= (part[i][len[i]] == '/') == (part[0][len[0]] == '/');
        }
        put_common(&out, part, len, n);
        more = part[0][len[0]] == '/';
        for (int i = 0; even && more && i < n; i++)
            part[i] += len[i] + 1;
        if (more)
            ap_buf_putc(&out, '/');
    }
    if (!even) {
        out.len = 0;
        for (int i = 0; i < n; i++)
            len[i] = strlen(labels[i]);
        put_common(&out, labels, len, n);
    }
    const char *name = ap_arena_strndup(arena, out.data, out.len);
    ap_buf_free(&out);
    return name;
}

static void name_family(struct ap_arena *arena, int id, const struct prune_draft *draft,
                        const int *order, struct ap_family *f)
{
    const char **labels = AP_NEW_N(arena, f->n_instances, const char *);

    for (int i = 0; i < f->n_instances; i++)
        labels[i] = draft->labels ? draft->labels[order[i]]
                                  : ap_arena_printf(arena, "repeat_%d[%d]", id, i);
    f->labels = labels;
    if (draft->name)
        f->name = draft->name;
    else if (draft->labels)
        f->name = common_name(arena, labels, f->n_instances);
    else
        f->name = ap_arena_printf(arena, "repeat_%d", id);
}

/* ---- order ---- */

/* Of all instances the first is the one with the lowest id; its ids order the columns. */
static void finish_family(struct ap_arena *arena, int id, const struct prune_draft *draft,
                          struct ap_family *f)
{
    int n = draft->n_nodes, n_rows = draft->n_instances;
    int64_t first = 0;
    int *nodes = AP_NEW_N(arena, (int64_t)n * n_rows, int);
    int *order = AP_NEW_N(arena, n_rows, int);
    struct prune_ranked *rows = AP_NEW_N(arena, n_rows, struct prune_ranked);
    struct prune_ranked *columns = AP_NEW_N(arena, n, struct prune_ranked);

    for (int64_t at = 1; at < (int64_t)n * n_rows; at++)
        if (draft->nodes[at] < draft->nodes[first])
            first = at;
    for (int i = 0; i < n_rows; i++)
        rows[i] =
            (struct prune_ranked){(uint64_t)draft->nodes[(int64_t)i * n + first % n], i};
    prune_rank(rows, n_rows);
    for (int j = 0; j < n; j++)
        columns[j] =
            (struct prune_ranked){(uint64_t)draft->nodes[(int64_t)rows[0].at * n + j], j};
    prune_rank(columns, n);
    for (int i = 0; i < n_rows; i++) {
        order[i] = rows[i].at;
        for (int j = 0; j < n; j++)
            nodes[(int64_t)i * n + j] =
                draft->nodes[(int64_t)rows[i].at * n + columns[j].at];
    }
    *f = (struct ap_family){
        .parent = draft->parent, .n_instances = n_rows, .n_nodes = n, .nodes = nodes};
    name_family(arena, id, draft, order, f);
}

void prune_finish(struct ap_arena *arena, const struct ap_graph *g,
                  const struct prune_draft *drafts, int n, struct ap_families *f)
{
    struct ap_family *family = AP_NEW_N(arena, n, struct ap_family);
    bool *inside = AP_NEW_N(arena, g->n_nodes, bool);
    const bool *auxiliary = owners_constant(arena, g);
    int *trimmed = AP_NEW_N(arena, g->n_nodes, int), n_trimmed = 0;

    for (int i = 0; i < n; i++) {
        finish_family(arena, i, &drafts[i], &family[i]);
        for (int64_t at = 0; at < (int64_t)family[i].n_instances * family[i].n_nodes;
             at++)
            inside[family[i].nodes[at]] = true;
    }
    for (int v = 0; v < g->n_nodes; v++)
        if (auxiliary[v] && !inside[v])
            trimmed[n_trimmed++] = v;
    f->n = n;
    f->family = family;
    f->n_trimmed = n_trimmed;
    f->trimmed = trimmed;
}
