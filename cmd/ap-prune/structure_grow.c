/*
 * Growing isomorphic regions from corresponding anchors.
 *
 * Problem: k nodes are equivalent; find a large region around each, so that all k are
 * isomorphic and disjoint.
 *
 * Idea: walk in lock-step. A position is a tuple of k nodes, one an instance; a step goes
 * from a position along the same edge in every instance, and takes the nodes that it
 * reaches if they are k distinct free nodes of one signature. Operands have an order;
 * users are paired when their colour, at some radius, is theirs alone in every instance.
 * Nodes that would make instances collide (a step counter that all share) or differ (the
 * nodes before the first layer) stay outside. Steps are taken in an order of preference,
 * so that nodes that belong to a layer by its forward operators are not first reached
 * from the next layer: within the forward phase, from there to gradients, then within
 * gradients and updates, against the flow before along it. In a chain, instances end
 * where the caller says: an end is not entered from its readers and, while anything else
 * is left, not left towards them (then only as far as no instance runs into the next).
 * prune_reconcile then drops the positions whose operands are inside in one instance and
 * outside in another.
 *
 * Cost: O(nodes and edges of the regions), times the number of radii where users are
 * ambiguous.
 */
#include "structure.h"

#include <stdlib.h>
#include <string.h>

enum level {
    FORWARD,       /* operands and users in the forward phase */
    FORWARD_USERS, /* from there to later phases */
    OPERANDS,      /* of later phases */
    USERS,         /* of later phases */
    END_USERS,     /* readers of an instance's last nodes in later phases */
    PAST_ENDS,     /* and in the forward phase, where no other instance begins */
    N_LEVELS
};

struct user {
    int node;
    uint64_t place; /* hash of the operand positions that it reads the node at */
    uint64_t key;
};

struct grow {
    struct structure *s;
    struct region *r;
    int home;
    int *tuple;         /* [k] */
    struct user *users; /* [k * STRUCTURE_USERS] */
    int *n_users;       /* [k] */
};

static int *region_node(const struct region *r, int i, int p)
{
    return &r->nodes[(size_t)i * (size_t)r->cap + (size_t)p];
}

static void region_reserve(struct region *r)
{
    if (r->n < r->cap)
        return;
    int cap = r->cap ? 2 * r->cap : 64;
    int *nodes = ap_xrealloc(NULL, (size_t)r->k * (size_t)cap * sizeof(*nodes));
    for (int i = 0; i < r->k && r->n; i++)
        memcpy(nodes + (size_t)i * (size_t)cap, region_node(r, i, 0),
               (size_t)r->n * sizeof(*nodes));
    free(r->nodes);
    r->nodes = nodes;
    r->cap = cap;
}

static bool is_free(const struct grow *g, int v)
{
    return g->s->home[v] == g->home && !g->s->owner[v];
}

/* Makes a position of the tuple if its nodes are free, distinct and equivalent. */
static bool claim(struct grow *g)
{
    struct structure *s = g->s;
    int i = 0;

    for (; i < g->r->k; i++) {
        int v = g->tuple[i];
        if (!is_free(g, v) || s->color[0][v] != s->color[0][g->tuple[0]])
            break;
        s->owner[v] = i + 1;
    }
    if (i < g->r->k) {
        while (i-- > 0)
            s->owner[g->tuple[i]] = 0;
        return false;
    }
    region_reserve(g->r);
    for (i = 0; i < g->r->k; i++)
        *region_node(g->r, i, g->r->n) = g->tuple[i];
    g->r->n++;
    return true;
}

static void step_operands(struct grow *g, int p)
{
    const struct ap_graph *graph = g->s->g;

    for (int j = 0; j < graph->nodes[*region_node(g->r, 0, p)].n_in; j++) {
        bool end = false;
        for (int i = 0; i < g->r->k; i++) {
            g->tuple[i] = graph->nodes[*region_node(g->r, i, p)].in[j];
            end |= g->s->is_end[g->tuple[i]];
        }
        if (!end)
            claim(g);
    }
}

/* The free users of node v in (or not in) the forward phase; -1: too many. */
static int list_users(struct grow *g, int v, bool forward, struct user *list)
{
    const struct ap_graph *graph = g->s->g;
    int n = 0;

    if (graph->user_start[v + 1] - graph->user_start[v] > STRUCTURE_USERS)
        return -1;
    for (int u = graph->user_start[v]; u < graph->user_start[v + 1]; u++) {
        int user = graph->users[u];
        const struct ap_node *node = &graph->nodes[user];
        if ((u > graph->user_start[v] && graph->users[u - 1] == user) ||
            !is_free(g, user) || (node->phase == AP_FORWARD) != forward)
            continue;
        uint64_t place = 0;
        for (int j = 0; j < node->n_in; j++)
            if (node->in[j] == v)
                place = ap_hash(&j, sizeof(j), place);
        list[n++] = (struct user){.node = user, .place = place};
    }
    return n;
}

/* The one user of the list with this key, NULL when there is none or are several. */
static const struct user *only_user(const struct user *list, int n, uint64_t key)
{
    const struct user *found = NULL;

    for (int i = 0; i < n; i++) {
        if (list[i].key != key)
            continue;
        if (found)
            return NULL;
        found = &list[i];
    }
    return found;
}

/* Pairs users by their colours at one radius, and claims the pairs. */
static void pair_users(struct grow *g, int radius)
{
    const uint64_t *color = g->s->color[radius];

    for (int i = 0; i < g->r->k; i++)
        for (int u = 0; u < g->n_users[i]; u++) {
            struct user *user = &g->users[i * STRUCTURE_USERS + u];
            user->key = user->place ^ color[user->node];
        }
    for (int u = 0; u < g->n_users[0]; u++) {
        uint64_t key = g->users[u].key;
        int i = 0;
        for (; i < g->r->k; i++) {
            const struct user *user =
                only_user(&g->users[i * STRUCTURE_USERS], g->n_users[i], key);
            if (!user)
                break;
            g->tuple[i] = user->node;
        }
        if (i == g->r->k)
            claim(g);
    }
}

/* Drops the users that were claimed from the lists; false when some list is empty. */
static bool free_users(struct grow *g)
{
    bool some = true;

    for (int i = 0; i < g->r->k; i++) {
        struct user *list = &g->users[i * STRUCTURE_USERS];
        int n = 0;
        for (int u = 0; u < g->n_users[i]; u++)
            if (is_free(g, list[u].node))
                list[n++] = list[u];
        g->n_users[i] = n;
        some = some && n > 0;
    }
    return some;
}

static void step_users(struct grow *g, int p, bool forward)
{
    for (int i = 0; i < g->r->k; i++) {
        g->n_users[i] = list_users(g, *region_node(g->r, i, p), forward,
                                   &g->users[i * STRUCTURE_USERS]);
        if (g->n_users[i] <= 0)
            return;
    }
    pair_users(g, 0);
    for (int radius = STRUCTURE_COLORS - 1; radius > 0 && free_users(g); radius--)
        pair_users(g, radius);
}

static void step(struct grow *g, int p, enum level level)
{
    const struct structure *s = g->s;
    bool forward = s->g->nodes[*region_node(g->r, 0, p)].phase == AP_FORWARD;
    bool end = false;

    for (int i = 0; i < g->r->k; i++)
        end |= s->is_end[*region_node(g->r, i, p)];
    switch (level) {
    case FORWARD:
        if (!forward)
            return;
        step_operands(g, p);
        if (!end)
            step_users(g, p, true);
        return;
    case FORWARD_USERS:
        if (forward && !end)
            step_users(g, p, false);
        return;
    case OPERANDS:
        if (!forward)
            step_operands(g, p);
        return;
    case USERS:
        if (!forward) {
            step_users(g, p, false);
            step_users(g, p, true);
        }
        return;
    case END_USERS:
        if (end)
            step_users(g, p, false);
        return;
    case PAST_ENDS:
        if (end)
            step_users(g, p, true);
        return;
    case N_LEVELS:
        return;
    }
}

/* Takes steps, the most preferred ones first, until none leads further. */
static void grow_all(struct grow *g)
{
    int next[N_LEVELS] = {0};

    for (int level = 0; level < N_LEVELS;) {
        if (next[level] == g->r->n) {
            level++;
            continue;
        }
        int n = g->r->n;
        step(g, next[level]++, (enum level)level);
        if (g->r->n > n)
            level = 0;
    }
}

void structure_grow(struct structure *s, int home, int k, const int *anchors,
                    struct region *r)
{
    size_t n_users = (size_t)k * STRUCTURE_USERS;
    struct grow g = {.s = s,
                     .r = r,
                     .home = home,
                     .tuple = ap_xrealloc(NULL, (size_t)k * sizeof(int)),
                     .users = ap_xrealloc(NULL, n_users * sizeof(struct user)),
                     .n_users = ap_xrealloc(NULL, (size_t)k * sizeof(int))};

    *r = (struct region){.k = k};
    memcpy(g.tuple, anchors, (size_t)k * sizeof(int));
    if (claim(&g))
        grow_all(&g);
    for (int i = 0; i < k; i++) {
        for (int p = 0; p < r->n; p++)
            s->owner[*region_node(r, i, p)] = 0;
        if (r->n)
            memmove(r->nodes + (size_t)i * (size_t)r->n, region_node(r, i, 0),
                    (size_t)r->n * sizeof(int));
    }
    r->cap = r->n = prune_reconcile(s->space, k, r->n, r->nodes);
    free(g.tuple);
    free(g.users);
    free(g.n_users);
}
