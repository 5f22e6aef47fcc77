/*
 * Families by structure alone: no name, scope or parameter number is looked at.
 *
 * Problem: find the repeated parts of a train step whose names are missing or wrong.
 *
 * Idea: nodes whose neighbourhoods have one colour (structure_color.c) probably stand for
 * each other; weights and heavy operators of the forward phase, grouped by colour at some
 * radius, are tried as anchors of regions that grow in lock-step (structure_grow.c) and
 * are isomorphic by construction. The number of nodes that a group of anchors covers is
 * estimated with its first and last two instances, since only ends of chains differ; the
 * group that covers most nodes becomes a family, then the next one of the remaining
 * nodes. Where anchors follow each other in a chain of equal layers, the phase of the
 * period is free: instances end at the cut (one live tensor) that covers most, the last
 * of those in the period. Repeated parts of an accepted region are found in its first
 * instance in the same way, and repeated in the others.
 *
 * Cost: colours are linear; a group is estimated at the cost of four of its instances
 * and cuts, and groups that would grow into a region that was seen are not tried.
 *
 * Source: the folding of shared subgraphs is taken from Shi et al., "TAP" (3.2), which
 * goes by names; colours are the refinement of Weisfeiler and Leman (1968).
 */
#include "structure.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/index_map.h"

enum {
    /* Limits, which keep large graphs near linear; no model of the tests reaches them. */
    MAX_CUTS = 12,       /* cuts tried between two anchors, the last ones */
    MAX_REACH = 1 << 14, /* nodes between two anchors among which cuts are looked for */
    REPEAT_WORK = 8,     /* nodes grown for groups that were seen in a region: so many for
                            each node searched, ... */
    LEAST_WORK = 1 << 17, /* ... and so many in any case */
    /* A border does not count values smaller than this part of its largest, such as the
       loss of each layer: ap-prune --algorithm structure on testdata's scan_mlp, 308
       nodes in families instead of 285. */
    SMALL_SHARE = 64
};
enum { INSIDE = 1, INPUT }; /* in structure.reached */

/* What makes a region worth a family; all 0 if nothing does. */
struct worth {
    int k, n;      /* instances, nodes of one */
    int n_weights; /* of one */
    int border;    /* >= 1, see region_border */
    int start;     /* the first node of the first instance that is no weight's own */
};

/* Anchors that may start a family, ascending. */
struct group {
    int k;
    int *anchors;
    struct worth worth;
    int like, from_end; /* the cut where its instances end, -1: none; see like_cut */
};

struct search {
    struct structure s;
    struct ap_arena *arena; /* of drafts */
    struct ap_arena scratch;
    const struct prune_params *params;
    int n_drafts, cap_drafts;
    struct prune_draft *drafts;
    struct ap_index seen;   /* groups that were tried, and that were seen in a region */
    int64_t work, max_work; /* nodes grown for estimates that may be repetitions */
};

/* ---- anchors ---- */

/* Adds a group's hash to those seen; false when it was there. */
static bool see(struct search *f, uint64_t hash)
{
    struct ap_index_walk walk;

    for (int i = ap_index_first(&f->seen, hash, &walk); i >= 0;
         i = ap_index_next(&f->seen, &walk))
        if (f->seen.hash[i] == hash)
            return false;
    ap_index_put(&f->seen, hash, f->seen.n);
    return true;
}

/* Which of k instances an estimate grows: the ends, in order. */
static int sample(int k, int *which)
{
    int n = k < STRUCTURE_SAMPLE ? k : STRUCTURE_SAMPLE;

    for (int i = 0; i < n; i++)
        which[i] = i < n / 2 ? i : k - n + i;
    return n;
}

/* What tells a group from others: its size and the anchors of its sample. */
static uint64_t group_hash(int k, const int *anchors, int n, bool grown)
{
    return ap_hash(anchors, (size_t)n * sizeof(*anchors), 2 * (uint64_t)k + grown);
}

static bool is_anchor(const struct structure *s, int v)
{
    const struct ap_node *node = &s->g->nodes[v];

    return node->phase == AP_FORWARD &&
           (node->role == AP_ROLE_WEIGHT || ap_ops[node->op].class == AP_CLASS_HEAVY);
}

/* ---- ends ---- */

/* A data node before lo from which its period is reached: up the first operands. */
static int period_before(const struct structure *s, int lo, int hi)
{
    const struct ap_graph *g = s->g;
    int v = lo;

    for (bool up = true; up && v > 2 * lo - hi;) {
        up = false;
        for (int j = 0; !up && j < g->nodes[v].n_in; j++) {
            int x = g->nodes[v].in[j];
            up = s->data[x];
            v = up ? x : v;
        }
    }
    return v;
}

/* Cuts between anchors i and i + 1. */
static int gap_cuts(struct structure *s, const struct group *group, int i, int *cut)
{
    int lo = structure_data_of(s, group->anchors[i]);
    int hi = structure_data_of(s, group->anchors[i + 1]);

    if (lo < 0 || hi <= lo || hi - lo > MAX_REACH)
        return 0;
    int before =
        i ? structure_data_of(s, group->anchors[i - 1]) : period_before(s, lo, hi);
    if (before < 0 || before > lo || lo - before > MAX_REACH)
        before = lo;
    int n = structure_cuts(s, before, lo, hi, MAX_CUTS, cut);
    return n || before == lo ? n : structure_cuts(s, lo, lo, hi, MAX_CUTS, cut);
}

/* The cut of a gap that looks most like `like`, the from_end-th if many; -1 for none. */
static int like_cut(const struct structure *s, int like, int from_end, int n,
                    const int *cut)
{
    for (int r = STRUCTURE_COLORS - 1; r >= 0; r--) {
        int last = -1;
        for (int c = 0; c < n; c++)
            if (s->color[r][cut[c]] == s->color[r][like]) {
                last = cut[c];
                if (n - c == from_end)
                    break;
            }
        if (last >= 0)
            return last;
    }
    return -1;
}

/*
 * Marks the ends of instances in the gaps next to the instances `which` (ascending) like
 * the group's cut; ends gets them, two an instance at most. False: one gap has none.
 */
static bool mark_ends(struct structure *s, const struct group *group, int n_which,
                      const int *which, int *ends, int *n_ends)
{
    int cut[MAX_CUTS], done = -1;

    *n_ends = 0;
    for (int w = 0; w < n_which; w++)
        for (int gap = which[w] - 1; gap <= which[w]; gap++) {
            if (gap <= done || gap + 1 >= group->k)
                continue;
            int n = gap_cuts(s, group, gap, cut);
            int end = like_cut(s, group->like, group->from_end, n, cut);
            if (end < 0)
                return false;
            ends[(*n_ends)++] = end;
            s->is_end[end] = 1;
            done = gap;
        }
    return true;
}

static void unmark_ends(struct structure *s, const int *ends, int n_ends)
{
    for (int i = 0; i < n_ends; i++)
        s->is_end[ends[i]] = 0;
}

/* ---- one group ---- */

/* Grows the instances `which` of a group, ended like its cut (-1: not ended). */
static bool grow(struct search *f, int home, const struct group *group, int n_which,
                 const int *which, struct region *r)
{
    struct ap_mark mark = ap_arena_mark(&f->scratch);
    int *ends = AP_NEW_N(&f->scratch, 2 * n_which, int), n_ends = 0;
    int *anchors = AP_NEW_N(&f->scratch, n_which, int);
    bool ended =
        group->like < 0 || mark_ends(&f->s, group, n_which, which, ends, &n_ends);

    for (int i = 0; i < n_which; i++)
        anchors[i] = group->anchors[which[i]];
    *r = (struct region){.k = n_which};
    if (ended)
        structure_grow(&f->s, home, n_which, anchors, r);
    unmark_ends(&f->s, ends, n_ends);
    ap_arena_rewind(&f->scratch, mark);
    return r->n > 0;
}

/* Anchors in a region of all or a sample of k instances would grow the same region. */
static void see_region(struct search *f, const struct region *r, int k)
{
    int tuple[STRUCTURE_SAMPLE];

    for (int p = 0; p < r->n; p++) {
        if (!is_anchor(&f->s, r->nodes[p]))
            continue;
        bool ascend = true;
        for (int i = 0; i < r->k; i++) {
            tuple[i] = r->nodes[(size_t)i * (size_t)r->n + (size_t)p];
            ascend = ascend && (!i || tuple[i] > tuple[i - 1]);
        }
        if (ascend)
            see(f, group_hash(k, tuple, r->k, true));
    }
}

/* A bias and what adds it is no part of a model; what contracts, sums or looks up is. */
static bool computes(const struct structure *s, int v)
{
    enum ap_op_class class = ap_ops[s->g->nodes[v].op].class;

    return s->g->nodes[v].phase == AP_FORWARD &&
           (class == AP_CLASS_HEAVY || class == AP_CLASS_REDUCE ||
            class == AP_CLASS_INDEX);
}

/* Where a region's first instance begins, -1: it is no part of a model. */
static int region_start(const struct structure *s, const struct region *r)
{
    int start = -1;
    bool counts = false;

    for (int p = 0; p < r->n; p++) {
        int v = r->nodes[p];
        counts = counts || computes(s, v);
        if ((computes(s, v) || s->data[v]) && (start < 0 || v < start))
            start = v;
    }
    return counts ? start : -1;
}

/* Elements of a data node that others than the instance around it read, 0: they do not.
 */
static int64_t read_outside(const struct structure *s, int v)
{
    const struct ap_graph *g = s->g;

    for (int u = g->user_start[v]; s->data[v] && u < g->user_start[v + 1]; u++)
        if (s->data[g->users[u]] && s->reached[g->users[u]] != INSIDE)
            return ap_shape_elems(&g->nodes[v].shape);
    return 0;
}

/* Counts what crosses the border, see region_border; nodes of fewer elements do not. */
static int64_t cross_border(struct structure *s, const struct region *r,
                            int64_t min_elems, int *n_in, int *n_out)
{
    const struct ap_graph *g = s->g;
    const int *first = r->nodes, *last = r->nodes + (size_t)(r->k - 1) * (size_t)r->n;
    int64_t most = 0;

    for (int p = 0; p < r->n; p++)
        s->reached[first[p]] = INSIDE;
    for (int p = 0; p < r->n; p++) {
        int v = first[p];
        int64_t elems = read_outside(s, v);
        most = elems > most ? elems : most;
        *n_out += elems > 0 && elems >= min_elems;
        for (int j = 0; s->data[v] && j < g->nodes[v].n_in; j++) {
            int x = g->nodes[v].in[j];
            if (!s->data[x] || s->reached[x] || g->nodes[last[p]].in[j] == x)
                continue;
            s->reached[x] = INPUT;
            elems = ap_shape_elems(&g->nodes[x].shape);
            most = elems > most ? elems : most;
            *n_in += elems >= min_elems;
        }
    }
    for (int p = 0; p < r->n; p++) {
        s->reached[first[p]] = 0;
        for (int j = 0; j < g->nodes[first[p]].n_in; j++)
            s->reached[g->nodes[first[p]].in[j]] = 0;
    }
    return most;
}

/*
 * Values that cross a region's border: data nodes that the first instance reads from
 * outside and the last one does not, and those of its own that others read. A layer reads
 * one and makes one, which counts as one; small ones (a loss of each layer) do not count.
 */
static int region_border(struct structure *s, const struct region *r)
{
    int n_in = 0, n_out = 0, ignore = 0;
    int64_t most = cross_border(s, r, 0, &ignore, &ignore);

    cross_border(s, r, most / SMALL_SHARE, &n_in, &n_out);
    n_in += n_out > 1 ? n_out - 1 : 0;
    return n_in > 1 ? n_in : 1;
}

/*
 * Whether a weight of a region is only added to, or multiplied with, data of outside: a
 * bias without what it is added to.
 */
static bool is_loose(const struct structure *s, int weight)
{
    const struct ap_graph *g = s->g;
    int d = structure_data_of(s, weight);

    if (d < 0 || !s->reached[d] || ap_ops[g->nodes[d].op].class != AP_CLASS_ELEMENTWISE)
        return false;
    for (int j = 0; j < g->nodes[d].n_in; j++)
        if (s->data[g->nodes[d].in[j]] && s->reached[g->nodes[d].in[j]])
            return false;
    return true;
}

/*
 * Weights of an instance; -1 if some is there without anything that it is for, or none
 * has it all.
 */
static int region_weights(struct structure *s, const struct region *r)
{
    const struct ap_graph *g = s->g;
    int n = 0, n_loose = 0;

    for (int p = 0; p < r->n; p++)
        s->reached[r->nodes[p]] = 1;
    for (int p = 0; p < r->n && n >= 0; p++) {
        int v = r->nodes[p];
        bool used = g->nodes[v].role != AP_ROLE_WEIGHT;
        n += !used;
        n_loose += !used && is_loose(s, v);
        for (int u = g->user_start[v]; !used && u < g->user_start[v + 1]; u++)
            used = s->reached[g->users[u]] && g->nodes[g->users[u]].phase == AP_FORWARD;
        n = used ? n : -1;
    }
    for (int p = 0; p < r->n; p++)
        s->reached[r->nodes[p]] = 0;
    return n > 0 && n_loose == n ? -1 : n;
}

static struct worth region_worth(struct structure *s, const struct region *r, int k)
{
    struct worth w = {.k = k, .start = region_start(s, r)};

    if (w.start < 0)
        return w;
    w.n = r->n;
    w.border = region_border(s, r);
    w.n_weights = region_weights(s, r);
    return w.n_weights < 0 ? (struct worth){0} : w;
}

static double worth_size(const struct worth *w)
{
    return w->n ? (double)w->n / w->border : 0;
}

/*
 * Large instances count for more than many: what they hold several times is found inside
 * them, but the parts of a layer that were made families do not make a layer. Weights
 * make them count for more, a wide border for less.
 */
static double worth_unit(const struct worth *w)
{
    double size = worth_size(w);
    return (double)(w->k - 1) * size * size * (w->n_weights + 2);
}

static double worth_cover(const struct worth *w)
{
    return (double)w->k * worth_size(w) * (w->n_weights + 2);
}

/* Better as a unit; or, among equals, what starts later: a layer begins after a cut. */
static bool is_better(const struct worth *a, const struct worth *b)
{
    double x = worth_unit(a), y = worth_unit(b);

    return x > y || (x > 0 && x == y && a->start > b->start);
}

/* Better of two of about one size: another instance weighs more than a few nodes. */
static bool covers_more(const struct worth *a, const struct worth *b)
{
    double x = worth_cover(a), y = worth_cover(b);

    return x > y || (x == y && a->start > b->start);
}

/*
 * The cut that is best to end a group's instances at, and what the group is worth. Groups
 * that may grow the same region are seen from now on. Returns the nodes grown.
 */
static int64_t estimate(struct search *f, int home, struct group *group)
{
    int which[STRUCTURE_SAMPLE], n_which = sample(group->k, which);
    int cut[MAX_CUTS + 1];
    int n = gap_cuts(&f->s, group, group->k > 2, cut);
    struct region best = {0};
    int64_t work = 0;

    cut[n] = -1;
    group->worth = (struct worth){0};
    for (int c = 0; c < n + !group->worth.n; c++) {
        struct region r;
        struct worth worth = {0};
        struct group trial = *group;
        trial.like = cut[c];
        trial.from_end = n - c;
        if (grow(f, home, &trial, n_which, which, &r)) {
            worth = region_worth(&f->s, &r, group->k);
            work += (int64_t)r.n * r.k;
        }
        if (!best.nodes || is_better(&worth, &group->worth)) {
            free(best.nodes);
            best = r;
            trial.worth = worth;
            *group = trial;
        } else {
            free(r.nodes);
        }
    }
    see_region(f, &best, group->k);
    free(best.nodes);
    return work;
}

/* ---- families ---- */

/* The family of a region with all instances; its nodes leave `home`. */
static void add_draft(struct search *f, int home, const struct region *r)
{
    size_t n = (size_t)r->k * (size_t)r->n;
    int id = f->n_drafts++;

    AP_ROOM(f->drafts, id, f->cap_drafts);
    for (size_t at = 0; at < n; at++)
        f->s.home[r->nodes[at]] = at < (size_t)r->n ? id + 1 : -1;
    f->drafts[id] =
        (struct prune_draft){.n_instances = r->k,
                             .n_nodes = r->n,
                             .nodes = ap_arena_dup(f->arena, r->nodes, n * sizeof(int)),
                             .parent = home - 1};
    if (home)
        prune_repeat(f->s.space, &f->drafts[home - 1], home - 1, &f->drafts[id]);
}

/* Grows all of a group; true if it is about as good as its estimate, and a family now. */
static bool accept(struct search *f, int home, const struct group *group)
{
    struct ap_mark mark = ap_arena_mark(&f->scratch);
    int *which = AP_NEW_N(&f->scratch, group->k, int);
    struct region r;

    for (int i = 0; i < group->k; i++)
        which[i] = i;
    grow(f, home, group, group->k, which, &r);
    ap_arena_rewind(&f->scratch, mark);
    struct worth worth = region_worth(&f->s, &r, r.k);
    bool enough = r.n >= f->params->min_nodes && worth.n &&
                  2 * worth_size(&worth) >= worth_size(&group->worth);
    if (enough)
        add_draft(f, home, &r);
    free(r.nodes);
    return enough;
}

/* Drops anchors that are in a family by now; true when some were. */
static bool drop_taken(const struct structure *s, int home, struct group *group)
{
    int k = 0;

    for (int i = 0; i < group->k; i++)
        if (s->home[group->anchors[i]] == home)
            group->anchors[k++] = group->anchors[i];
    bool dropped = k < group->k;
    group->k = k;
    return dropped;
}

static int compare_group(const void *x, const void *y)
{
    const struct group *a = x, *b = y;

    return a->anchors[0] - b->anchors[0];
}

/*
 * Groups of anchors among the members of a home, by colour at every radius; those of one
 * radius in the order of their first anchors.
 */
static int find_groups(struct search *f, int home, const int *members, int n_members,
                       struct group **groups)
{
    struct prune_ranked *list = AP_NEW_N(&f->scratch, n_members, struct prune_ranked);
    int n_list = 0, n = 0, cap = 0;

    *groups = NULL;
    for (int i = 0; i < n_members; i++)
        if (f->s.home[members[i]] == home && is_anchor(&f->s, members[i]))
            list[n_list++].at = members[i];
    for (int r = STRUCTURE_GROUPINGS - 1; r >= 0; r--) {
        int n_before = n;
        for (int i = 0; i < n_list; i++)
            list[i].hash = f->s.color[r][list[i].at];
        prune_rank(list, n_list);
        for (int i = 0, end; i < n_list; i = end) {
            end = prune_run_end(list, n_list, i);
            if (end - i < 2)
                continue;
            AP_ROOM(*groups, n, cap);
            struct group *group = &(*groups)[n++];
            *group = (struct group){.k = end - i,
                                    .anchors = AP_NEW_N(&f->scratch, end - i, int)};
            for (int j = i; j < end; j++)
                group->anchors[j - i] = list[j].at;
        }
        if (n > n_before)
            qsort(*groups + n_before, (size_t)(n - n_before), sizeof(**groups),
                  compare_group);
    }
    return n;
}

/* Estimates a group; false when its like was tried, or it is worth nothing. */
static bool try_group(struct search *f, int home, struct group *group)
{
    int which[STRUCTURE_SAMPLE], anchors[STRUCTURE_SAMPLE];
    int64_t times = home ? f->drafts[home - 1].n_instances : 1;

    if (group->k < 2 || group->k * times < f->params->min_duplicate)
        return false;
    int n = sample(group->k, which);
    for (int i = 0; i < n; i++)
        anchors[i] = group->anchors[which[i]];
    if (!see(f, group_hash(group->k, anchors, n, false)))
        return false;
    bool grown = !see(f, group_hash(group->k, anchors, n, true));
    if (grown && f->work > f->max_work)
        return false;
    int64_t work = estimate(f, home, group);
    f->work += grown ? work : 0;
    return group->worth.n > 0;
}

/* Those of the groups that are worth something, in the same order. */
static int try_groups(struct search *f, int home, struct group *groups, int n, bool all)
{
    int kept = 0;

    ap_index_clear(&f->seen);
    for (int i = 0; i < n; i++)
        if (!(drop_taken(&f->s, home, &groups[i]) || all) ||
            try_group(f, home, &groups[i]))
            groups[kept++] = groups[i];
    return kept;
}

/* The group to make a family of. */
static int best_group(const struct group *groups, int n)
{
    int best = 0;

    for (int i = 1; i < n; i++)
        if (is_better(&groups[i].worth, &groups[best].worth))
            best = i;
    int unit = best;
    for (int i = 0; i < n; i++)
        if (8 * worth_size(&groups[i].worth) >= 7 * worth_size(&groups[unit].worth) &&
            covers_more(&groups[i].worth, &groups[best].worth))
            best = i;
    return best;
}

/* The families among the members of a home. */
static void find_families(struct search *f, int home, const int *members, int n_members)
{
    struct ap_mark mark = ap_arena_mark(&f->scratch);
    struct group *groups;

    f->work = 0;
    f->max_work = REPEAT_WORK * (int64_t)n_members + LEAST_WORK;
    int n = find_groups(f, home, members, n_members, &groups);
    n = try_groups(f, home, groups, n, true);
    while (n > 0) {
        int i = best_group(groups, n);
        struct group group = groups[i];
        estimate(f, home, &groups[i]); /* nodes may be gone since */
        if (groups[i].worth.n && is_better(&group.worth, &groups[i].worth))
            continue;
        group = groups[i];
        memmove(groups + i, groups + i + 1, (size_t)(--n - i) * sizeof(*groups));
        if (group.worth.n && accept(f, home, &group))
            n = try_groups(f, home, groups, n, false);
    }
    free(groups);
    ap_arena_rewind(&f->scratch, mark);
}

int prune_structure(struct ap_arena *arena, const struct ap_graph *g,
                    const struct prune_params *params, struct ap_families *families,
                    struct ap_err *err)
{
    struct search f = {.arena = arena, .params = params};
    int *all = AP_NEW_N(&f.scratch, g->n_nodes, int);

    (void)err;
    for (int v = 0; v < g->n_nodes; v++)
        all[v] = v;
    structure_init(&f.s, &f.scratch, prune_space_new(arena, g));
    find_families(&f, 0, all, g->n_nodes);
    for (int d = 0; d < f.n_drafts; d++) {
        struct ap_mark mark = ap_arena_mark(&f.scratch);
        int n = f.drafts[d].n_nodes;
        find_families(
            &f, d + 1,
            ap_arena_dup(&f.scratch, f.drafts[d].nodes, (size_t)n * sizeof(int)), n);
        ap_arena_rewind(&f.scratch, mark);
    }
    prune_finish(arena, g, f.drafts, f.n_drafts, families);
    free(f.drafts);
    ap_index_free(&f.seen);
    ap_arena_free(&f.scratch);
    return 0;
}
