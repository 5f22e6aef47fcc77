/*
 * Prepares a program and runs it. Nodes become calls (a fused pass, or one operator).
 * Values get their places: the program's memory, or, where the buffer plan has none for
 * them (elements of a tuple that nobody reads, values between two passes of one group),
 * temporary memory that is reused from group to group. Where the buffer plan lets a
 * kernel write over its operand and the kernel cannot, it writes to temporary memory and
 * a copy follows. Linear in nodes and operands.
 */
#include "step/backend.h"
#include "step/guard.h"
#include "step/noise.h"
#include "step/overlap.h"
#include "step/trace.h"

#include "base/array.h"
#include "base/place.h"

#include <assert.h>
#include <string.h>

struct planner {
    struct exec *x;
    const struct ap_graph *g;
    int *order; /* the nodes of all calls, call by call */
    int n_order;
    int64_t *temp;          /* per node: offset in temps, -1 for none */
    int64_t **element_temp; /* per tuple node and element */
    /* temps of the group at hand: alive from call to call, and where their offsets go */
    int n_pieces;
    struct ap_pack_piece *piece;
    int64_t **piece_at;
    int cap_pieces, cap_at;
    bool *aside; /* the call writes to temps, then copies */
};

void exec_need_scratch(struct exec *x, int64_t bytes)
{
    if (bytes > x->scratch_bytes)
        x->scratch_bytes = bytes;
}

int exec_unsupported(struct exec *x, const struct ap_node *node, struct ap_err *err,
                     const char *what)
{
    x->exit_code = 2;
    return ap_err_set(err, "%s: %s %s: not supported yet", node->name,
                      ap_ops[node->op].name, what);
}

struct placement exec_placement(const struct ap_node *param)
{
    struct placement p = {param->shape, ap_layout_replicated()};
    if (param->attrs->global) {
        p.global = *param->attrs->global;
        p.layout = param->attrs->layout;
    }
    return p;
}

struct shard exec_shard(struct ap_arena *arena, const struct ap_mesh *mesh,
                        const struct placement *place, const int64_t *coords)
{
    struct shard s = {.local =
                          ap_layout_local(arena, mesh, &place->global, &place->layout)};
    for (int d = 0; d < s.local.rank; d++) {
        s.map[d] = AP_NEW_N(arena, s.local.dims[d] + 1, int64_t);
        ap_layout_index_map(mesh, &place->global, &place->layout, d, coords, s.map[d]);
    }
    return s;
}

const int64_t *exec_index_map(struct exec *x, const struct ap_attrs *attrs,
                              const struct ap_shape *local, int d)
{
    if (!attrs->global)
        return NULL;
    const struct ap_mesh *mesh = &x->prog->mesh;
    bool split = false;
    for (int a = 0; a < mesh->n_axes; a++)
        split |= attrs->layout.axis[a].kind == AP_SPLIT && attrs->layout.axis[a].dim == d;
    if (!split)
        return NULL;
    int64_t *map = AP_NEW_N(x->arena, local->dims[d] + 1, int64_t);
    ap_layout_index_map(mesh, attrs->global, &attrs->layout, d, x->coords, map);
    return map;
}

/* ---- calls ---- */

static bool is_scalar_constant(const struct ap_node *v)
{
    return v->op == AP_OP_CONSTANT && v->shape.rank == 0;
}

/* Whether the node shares its operand's memory. */
static bool is_view(const struct exec *x, int node)
{
    const struct ap_node *v = &x->prog->local.nodes[node];
    const struct ap_buffer *b = &x->prog->buffer[node];
    if (v->op == AP_OP_SLICE) {
        const int64_t at = ap_program_view_offset(&x->prog->local, node);
        return at >= 0 && b->alias >= 0 &&
               b->offset == x->prog->buffer[v->in[0]].offset + at;
    }
    if (v->op != AP_OP_RESHAPE && v->op != AP_OP_OPT_BARRIER)
        return false;
    return b->offset >= 0 && b->offset == x->prog->buffer[v->in[0]].offset;
}

/* Whether the node is a broadcast of a value of the pass at other positions. */
static bool reads_across(const struct planner *p, const struct call *call, int node)
{
    const struct ap_node *v = &p->g->nodes[node];
    if (v->op != AP_OP_BROADCAST || call->n_nodes == 0)
        return false;
    const struct ap_node *u = &p->g->nodes[v->in[0]];
    if (p->x->call_of[v->in[0]] != p->x->n_calls || is_scalar_constant(u))
        return false;
    for (int d = 0; d < u->shape.rank; d++)
        if (v->attrs->dimensions.v[d] != d)
            return true;
    return !ap_shape_same_dims(&u->shape, &v->shape);
}

/* An attention from node i on as one call, where the backend has a kernel for it; how
 * many nodes. */
static int take_attention(struct planner *p, int i, struct call *call)
{
    struct exec *x = p->x;
    void *state;
    int n = 0;
    if (x->backend->attention && p->g->nodes[i].attrs->attention == AP_ATTENTION_FIRST)
        n = x->backend->attention(x, i, &state);
    if (n == 0)
        return 0;
    *call = (struct call){.nodes = p->order + p->n_order, .n_nodes = n};
    call->attention = true;
    call->state = state;
    for (int v = i; v < i + n; v++) {
        p->order[p->n_order++] = v;
        x->call_of[v] = x->n_calls;
    }
    return n;
}

/* How many nodes from i on are a group that the backend runs as one kernel; 0: none. */
static int whole_from(const struct planner *p, int i)
{
    const struct ap_node *nodes = p->g->nodes;
    int n = 0;

    if (!p->x->backend->runs_whole || nodes[i].group < 0 || nodes[i].attrs->kernel <= 0 ||
        (i > 0 && nodes[i - 1].group == nodes[i].group))
        return 0;
    for (; i + n < p->g->n_nodes && nodes[i + n].group == nodes[i].group; n++)
        p->order[p->n_order + n] = i + n;
    return n > 1 && p->x->backend->runs_whole(p->x, p->order + p->n_order, n) ? n : 0;
}

/* Splits the nodes into calls; a group of fusible nodes is one call unless dims differ,
 * and so is a group that the backend runs whole. */
static void make_calls(struct planner *p)
{
    struct exec *x = p->x;
    const struct ap_graph *g = p->g;
    struct call *call = &x->calls[0];
    int lead = -1, group = -1; /* of the current call: a node with its dims; its group */
    *call = (struct call){.nodes = p->order};
    for (int i = 0; i < g->n_nodes; i++) {
        const struct ap_node *v = &g->nodes[i];
        x->call_of[i] = -1;
        if (v->op == AP_OP_PARAMETER || v->op == AP_OP_GET_TUPLE_ELEMENT || is_view(x, i))
            continue;
        const int n_whole = whole_from(p, i);
        if (n_whole > 0) {
            if (call->n_nodes)
                call = &x->calls[++x->n_calls];
            *call = (struct call){.nodes = p->order + p->n_order,
                                  .n_nodes = n_whole,
                                  .fused = true,
                                  .whole = true};
            for (int k = 0; k < n_whole; k++)
                x->call_of[i + k] = x->n_calls;
            p->n_order += n_whole;
            i += n_whole - 1;
            group = -1;
            continue;
        }
        const bool fusible = x->backend->fusible(v);
        const bool joins = call->n_nodes && call->fused && fusible && v->group >= 0 &&
                           v->group == group &&
                           (is_scalar_constant(v) || lead < 0 ||
                            ap_shape_same_dims(&v->shape, &g->nodes[lead].shape)) &&
                           !reads_across(p, call, i);
        if (!joins) {
            if (call->n_nodes)
                call = &x->calls[++x->n_calls];
            const int n = take_attention(p, i, call);
            if (n) {
                i += n - 1;
                continue;
            }
            *call = (struct call){.nodes = p->order + p->n_order, .fused = fusible};
            lead = -1;
            group = v->group;
        }
        if (!is_scalar_constant(v))
            lead = i;
        p->order[p->n_order++] = i;
        call->n_nodes++;
        x->call_of[i] = x->n_calls;
    }
    if (call->n_nodes)
        x->n_calls++;
}

/* ---- places ---- */

/* Whether somebody outside the node's own call reads it. */
static bool is_read_outside(const struct planner *p, int node)
{
    const struct ap_graph *g = p->g;
    for (int u = g->user_start[node]; u < g->user_start[node + 1]; u++)
        if (p->x->call_of[g->users[u]] != p->x->call_of[node])
            return true;
    const struct call *call = &p->x->calls[p->x->call_of[node]];
    return !call->fused && !call->attention;
}

/* Asks for memory from one call to another, both of the group at hand. */
static void need_temp(struct planner *p, int64_t bytes, int birth, int death, int64_t *at)
{
    const int64_t size = exec_room(bytes > 0 ? bytes : 1);

    AP_ROOM_IN(p->x->arena, p->piece, p->n_pieces, p->cap_pieces);
    AP_ROOM_IN(p->x->arena, p->piece_at, p->n_pieces, p->cap_at);
    p->piece[p->n_pieces] = (struct ap_pack_piece){birth, death, size, 0};
    p->piece_at[p->n_pieces++] = at;
}

/* The group's temporary values get their places; they begin anew with each group. */
static void place_group(struct planner *p)
{
    struct exec *x = p->x;
    const int first = p->n_pieces > 0 ? p->piece[0].birth : 0;
    struct ap_mark mark = ap_arena_mark(x->arena);
    int last = first;
    int64_t alive;

    for (int i = 0; i < p->n_pieces; i++) {
        last = p->piece[i].death > last ? p->piece[i].death : last;
        p->piece[i].birth -= first;
        p->piece[i].death -= first;
    }
    if (p->n_pieces == 0)
        return;
    const int64_t bytes =
        ap_place(x->arena, p->piece, p->n_pieces, last - first + 1, 0, &alive);
    for (int i = 0; i < p->n_pieces; i++)
        *p->piece_at[i] = p->piece[i].offset;
    ap_arena_rewind(x->arena, mark);
    x->temps_bytes = bytes > x->temps_bytes ? bytes : x->temps_bytes;
    p->n_pieces = 0;
}

/* The last call that reads a node's value (of a tuple: an element), of its own group. */
static int last_call(const struct planner *p, int node)
{
    const struct ap_graph *g = p->g;
    int last = p->x->call_of[node];

    for (int u = g->user_start[node]; u < g->user_start[node + 1]; u++) {
        const int user = g->users[u];
        const int at = g->nodes[user].op == AP_OP_GET_TUPLE_ELEMENT ? last_call(p, user)
                                                                    : p->x->call_of[user];
        last = at > last ? at : last;
    }
    return last;
}

static void place_elements(struct planner *p, int node)
{
    struct exec *x = p->x;
    const struct ap_graph *g = p->g;
    const struct ap_shape *s = &g->nodes[node].shape;
    x->element[node] = AP_NEW_N(x->arena, s->n_parts + 1, void *);
    p->element_temp[node] = AP_NEW_N(x->arena, s->n_parts + 1, int64_t);
    for (int u = g->user_start[node]; u < g->user_start[node + 1]; u++) {
        const int e = g->users[u];
        const int64_t k = g->nodes[e].attrs->index;
        if (g->nodes[e].op == AP_OP_GET_TUPLE_ELEMENT && x->value[e] &&
            !x->element[node][k])
            x->element[node][k] = x->value[e];
    }
    for (int k = 0; k < s->n_parts; k++)
        if (!x->element[node][k])
            need_temp(p, ap_shape_bytes(&s->parts[k]), x->call_of[node],
                      last_call(p, node), &p->element_temp[node][k]);
}

static bool overlap(const char *a, int64_t n, const char *b, int64_t m)
{
    return a && b && a < b + m && b < a + n;
}

/* Whether node's kernel would overwrite operand elements that it still needs. */
static bool clashes(const struct planner *p, int node)
{
    const struct exec *x = p->x;
    const struct call *call = &x->calls[x->call_of[node]];
    const char *out = x->value[node];
    const int64_t bytes = ap_shape_bytes(&p->g->nodes[node].shape);
    for (int m = 0; m < call->n_nodes; m++) {
        const struct ap_node *v = &p->g->nodes[call->nodes[m]];
        for (int k = 0; k < v->n_in; k++) {
            const struct ap_node *u = &p->g->nodes[v->in[k]];
            if (x->call_of[v->in[k]] == x->call_of[node])
                continue;
            const char *in = x->value[v->in[k]];
            if (!overlap(out, bytes, in, ap_shape_bytes(&u->shape)))
                continue;
            if (call->whole) /* it may read an element several times */
                return true;
            const bool same =
                in == out && ap_shape_equal(&u->shape, &p->g->nodes[node].shape);
            if (call->fused ? !same || v->op == AP_OP_BROADCAST
                            : !same || call->attention || !x->backend->in_place(v, k))
                return true;
        }
    }
    return false;
}

static char *address(const struct exec *x, int node)
{
    return x->memory + ap_slot_offset(&x->place.slot, &x->prog->buffer[node]);
}

static int place_values(struct planner *p, struct ap_err *err)
{
    struct exec *x = p->x;
    const struct ap_graph *g = p->g;
    for (int i = 0; i < g->n_nodes; i++) {
        const struct ap_buffer *b = &x->prog->buffer[i];
        p->temp[i] = -1;
        if (b->offset >= 0 && g->nodes[i].shape.dtype != AP_TUPLE)
            x->value[i] = address(x, i);
    }
    for (int i = 0; i < g->n_nodes; i++) {
        const struct ap_node *v = &g->nodes[i];
        if (i == 0 || v->group < 0 || v->group != g->nodes[i - 1].group)
            place_group(p);
        if (v->shape.dtype == AP_TUPLE) {
            place_elements(p, i);
        } else if (x->call_of[i] >= 0 && !x->value[i] && is_read_outside(p, i)) {
            for (int u = g->user_start[i]; u < g->user_start[i + 1]; u++)
                if (g->nodes[g->users[u]].group != v->group || v->group < 0)
                    return ap_err_set(err, "%s: the program gives it no buffer", v->name);
            need_temp(p, ap_shape_bytes(&v->shape), x->call_of[i], last_call(p, i),
                      &p->temp[i]);
        } else if (x->call_of[i] >= 0 && x->value[i] && clashes(p, i)) {
            p->aside[i] = true;
            need_temp(p, ap_shape_bytes(&v->shape), x->call_of[i], x->call_of[i],
                      &p->temp[i]);
        }
    }
    place_group(p);
    return 0;
}

/* Temporary values get their pointers; get-tuple-element reads the tuple's element. */
static void place_temps(struct planner *p)
{
    struct exec *x = p->x;
    for (int i = 0; i < p->g->n_nodes; i++) {
        const struct ap_node *v = &p->g->nodes[i];
        if (p->temp[i] >= 0 && !p->aside[i])
            x->value[i] = x->temps + p->temp[i];
        for (int k = 0; v->shape.dtype == AP_TUPLE && k < v->shape.n_parts; k++)
            if (!x->element[i][k])
                x->element[i][k] = x->temps + p->element_temp[i][k];
        if (v->op == AP_OP_GET_TUPLE_ELEMENT && !x->value[i])
            x->value[i] = x->element[v->in[0]][v->attrs->index];
    }
}

/* ---- kernels ---- */

static void copy_run(struct exec *x, void *state)
{
    const struct exec_copy *c = state;
    x->backend->copy(c->dst, c->src, c->bytes);
}

static void add_copy(struct exec *x, struct call *call, void *dst, const void *src,
                     int64_t bytes)
{
    struct exec_copy *c = AP_NEW(x->arena, struct exec_copy);
    *c = (struct exec_copy){dst, src, bytes};
    *call = (struct call){.run = copy_run, .state = c};
    overlap_note_copy(x, call, c);
}

/* An element that two nodes take out of a tuple is copied to the second's buffer. */
static int copy_elements(struct planner *p, int node, struct call *out)
{
    struct exec *x = p->x;
    const struct ap_graph *g = p->g;
    int n = 0;
    if (g->nodes[node].shape.dtype != AP_TUPLE)
        return 0;
    for (int u = g->user_start[node]; u < g->user_start[node + 1]; u++) {
        const int e = g->users[u];
        void *value = x->element[node][g->nodes[e].attrs->index];
        if (x->value[e] != value)
            add_copy(x, &out[n++], x->value[e], value,
                     ap_shape_bytes(&g->nodes[e].shape));
    }
    return n;
}

/* Whether a call differs from microbatch to microbatch. */
static bool depends_on_microbatch(const struct exec *x, const struct call *call)
{
    const struct ap_mesh *mesh = &x->prog->mesh;
    for (int m = 0; m < call->n_nodes; m++) {
        const struct ap_node *v = &x->prog->local.nodes[call->nodes[m]];
        const bool on_axes = ap_ops[v->op].class == AP_CLASS_COLLECTIVE ||
                             ap_ops[v->op].class == AP_CLASS_LOCAL;
        if ((on_axes && (v->attrs->coll.axes & mesh->microbatch)) ||
            (v->attrs->global && ap_layout_per_microbatch(mesh, &v->attrs->layout)))
            return true;
    }
    return false;
}

static int prepare_call(struct exec *x, struct call *call, struct ap_err *err)
{
    const int64_t n = ap_mesh_microbatches(&x->prog->mesh);
    if (n == 1 || !depends_on_microbatch(x, call))
        return x->backend->prepare(x, call, err);
    call->each = AP_NEW_N(x->arena, n, void *);
    for (int64_t j = 0; j < n; j++) {
        x->coords[0] = j;
        if (x->backend->prepare(x, call, err))
            return -1;
        call->each[j] = call->state;
    }
    x->coords[0] = 0;
    return 0;
}

/* Prepares all calls and puts the copies between them. */
static int prepare_calls(struct planner *p, struct ap_err *err)
{
    struct exec *x = p->x;
    const int n = x->n_calls;
    struct call *old = x->calls;
    struct call *out = AP_NEW_N(x->arena, 2 * (int64_t)p->g->n_nodes + 1, struct call);
    int n_out = 0, n_groups = 0;
    x->first_call = AP_NEW_N(x->arena, p->g->n_groups + 2, int);
    for (int i = 0; i < n; i++) {
        struct call *call = &old[i];
        while (n_groups <= p->g->nodes[call->nodes[0]].group)
            x->first_call[n_groups++] = n_out;
        for (int m = 0; m < call->n_nodes; m++)
            if (p->aside[call->nodes[m]])
                x->value[call->nodes[m]] = x->temps + p->temp[call->nodes[m]];
        if (prepare_call(x, call, err))
            return -1;
        overlap_note(x, call);
        out[n_out++] = *call;
        for (int m = 0; m < call->n_nodes; m++) {
            const int node = call->nodes[m];
            if (p->aside[node]) {
                void *dst = address(x, node);
                add_copy(x, &out[n_out++], dst, x->value[node],
                         ap_shape_bytes(&p->g->nodes[node].shape));
                x->value[node] = dst;
            }
            n_out += copy_elements(p, node, &out[n_out]);
        }
    }
    while (n_groups <= p->g->n_groups)
        x->first_call[n_groups++] = n_out;
    x->calls = out;
    x->n_calls = n_out;
    overlap_plan(x);
    return 0;
}

/* New values that move into parameters at the end of a step; those that are parameters
 * themselves first move to the staging memory, because they may be overwritten. */
static int make_copies(struct planner *p, struct ap_err *err)
{
    struct exec *x = p->x;
    const struct ap_graph *g = p->g;
    int64_t staged = 0;
    x->copies = AP_NEW_N(x->arena, g->n_results + 1, struct exec_copy);
    x->staged = AP_NEW_N(x->arena, g->n_results + 1, struct exec_copy);
    for (int pass = 0; pass < 2; pass++)
        for (int r = 0; r < g->n_results; r++) {
            const struct ap_result *res = &g->results[r];
            if (res->alias < 0 || x->value[res->alias] == x->value[res->node])
                continue;
            if (!ap_shape_equal(&g->nodes[res->node].shape, &g->nodes[res->alias].shape))
                return ap_err_set(err, "result %d does not fit the parameter it becomes",
                                  r);
            const int64_t bytes = ap_shape_bytes(&g->nodes[res->alias].shape);
            int root = res->node;
            while (is_view(x, root))
                root = g->nodes[root].in[0];
            const bool is_param = g->nodes[root].op == AP_OP_PARAMETER;
            if (is_param != (pass == 0))
                continue;
            if (is_param)
                x->staged[x->n_staged++] =
                    (struct exec_copy){(void *)(intptr_t)exec_take(&staged, bytes),
                                       x->value[res->node], bytes};
            x->copies[x->n_copies++] =
                (struct exec_copy){x->value[res->alias], x->value[res->node], bytes};
        }
    x->stage_bytes = staged;
    x->stage = x->backend->alloc(staged);
    if (!x->stage)
        return ap_err_set(err, "out of memory");
    for (int i = 0; i < x->n_staged; i++) {
        x->staged[i].dst = x->stage + (intptr_t)x->staged[i].dst;
        x->copies[i].src = x->staged[i].dst;
    }
    return 0;
}

int exec_open(struct exec *x, struct ap_arena *arena, const struct ap_program *prog,
              const struct backend *backend, struct comm *comm, struct ap_err *err)
{
    return exec_open_at(x, arena, prog, backend, comm, &(struct exec_place){0}, err);
}

/* Working memory: its own, or what another place of the program has. */
static int open_working(struct exec *x, struct ap_err *err)
{
    const struct exec *first = x->place.first;

    if (first) {
        assert(x->scratch_bytes <= first->scratch_bytes);
        x->scratch = first->scratch;
        return 0;
    }
    x->scratch = x->backend->alloc(x->scratch_bytes);
    return x->scratch ? 0 : ap_err_set(err, "out of memory");
}

int exec_open_at(struct exec *x, struct ap_arena *arena, const struct ap_program *prog,
                 const struct backend *backend, struct comm *comm,
                 const struct exec_place *place, struct ap_err *err)
{
    const int n = prog->local.n_nodes;
    *x = (struct exec){.arena = arena,
                       .prog = prog,
                       .backend = backend,
                       .comm = comm,
                       .place = *place,
                       .exit_code = 1};
    struct planner p = {.x = x, .g = &prog->local};
    ap_mesh_coords(&prog->mesh, comm->rank, x->coords);
    x->value = AP_NEW_N(arena, n + 1, void *);
    x->element = AP_NEW_N(arena, n + 1, void **);
    x->call_of = AP_NEW_N(arena, n + 1, int);
    x->calls = AP_NEW_N(arena, n + 1, struct call);
    p.order = AP_NEW_N(arena, n + 1, int);
    p.temp = AP_NEW_N(arena, n + 1, int64_t);
    p.element_temp = AP_NEW_N(arena, n + 1, int64_t *);
    p.aside = AP_NEW_N(arena, n + 1, bool);
    x->memory = place->memory ? place->memory : backend->alloc(prog->peak_bytes);
    if (!x->memory)
        return ap_err_set(err, "no memory for the program's %lld bytes",
                          (long long)prog->peak_bytes);
    make_calls(&p);
    if (place_values(&p, err))
        return -1;
    x->temps = place->first ? place->first->temps : backend->alloc(x->temps_bytes);
    if (!x->temps)
        return ap_err_set(err, "out of memory");
    place_temps(&p);
    if (backend->place)
        backend->place(x, p.aside);
    if (prepare_calls(&p, err) || (!place->first && make_copies(&p, err)) ||
        open_working(x, err))
        return -1;
    return backend->ready ? backend->ready(x, err) : 0;
}

void exec_close(struct exec *x)
{
    for (struct exec *inner = x->inner; inner; inner = inner->next)
        exec_close(inner);
    if (x->backend->close)
        x->backend->close(x);
    for (int i = 0; i < x->n_calls; i++) {
        const struct call *call = &x->calls[i];
        const int64_t n = call->each ? ap_mesh_microbatches(&x->prog->mesh) : 1;
        for (int64_t j = 0; j < n && call->close; j++)
            call->close(call->each ? call->each[j] : call->state);
    }
    if (!x->place.memory)
        x->backend->release(x->memory);
    if (x->place.first)
        return;
    x->backend->release(x->temps);
    x->backend->release(x->scratch);
    x->backend->release(x->stage);
}

void exec_run(struct exec *x, int lo, int hi, int64_t j)
{
    const struct call *last = NULL;
    for (int i = x->first_call[lo]; i < x->first_call[hi]; i++) {
        struct call *call = &x->calls[i];
        if (x->noise && last && call->n_nodes > 0)
            noise_apply(x, last); /* behind the copies of its values */
        overlap_finish(x, i);
        guard_begin(x, call);
        struct timing_start start = {0};
        const double clock = trace_clock(x->trace);
        if (timing_is_on(x))
            start = timing_begin(x);
        overlap_run(x, i, call->each ? call->each[j] : call->state);
        if (timing_is_on(x) && x->timing->alone)
            overlap_finish(x, x->n_calls);
        if (timing_is_on(x))
            timing_note(x, i, &start);
        trace_call(x, i, j, clock);
        guard_end(x);
        x->comm->progress(x->comm);
        if (x->noise)
            overlap_finish(x, x->n_calls);
        call->n_runs++;
        last = call->n_nodes > 0 ? call : last;
    }
    overlap_finish(x, x->n_calls);
    if (x->noise && last)
        noise_apply(x, last);
}

/* As often as a step runs it. */
static void count_runs(struct exec *x)
{
    const struct ap_program *prog = x->prog;
    for (int i = 0; i < x->n_calls; i++) {
        const bool each =
            i >= x->first_call[prog->each_lo] && i < x->first_call[prog->each_hi];
        x->calls[i].n_runs += each ? ap_mesh_microbatches(&prog->mesh) : 1;
    }
}

bool exec_replays(struct exec *x)
{
    if (!x->backend->step_begin || timing_is_on(x) || !x->backend->step_begin(x))
        return false;
    count_runs(x);
    return true;
}

void exec_recorded(struct exec *x)
{
    if (x->backend->step_end && !timing_is_on(x))
        x->backend->step_end(x);
}

void exec_step(struct exec *x)
{
    const int64_t n = ap_mesh_microbatches(&x->prog->mesh);
    if (exec_replays(x))
        return;
    exec_run(x, 0, x->prog->each_lo, 0);
    for (int64_t j = 0; j < n; j++)
        exec_run(x, x->prog->each_lo, x->prog->each_hi, j);
    exec_run(x, x->prog->each_hi, x->prog->local.n_groups, 0);
    exec_recorded(x);
}

void exec_advance(struct exec *x)
{
    for (int i = 0; i < x->n_staged; i++)
        x->backend->copy(x->staged[i].dst, x->staged[i].src, x->staged[i].bytes);
    for (int i = 0; i < x->n_copies; i++)
        x->backend->copy(x->copies[i].dst, x->copies[i].src, x->copies[i].bytes);
}
