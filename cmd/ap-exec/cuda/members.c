/*
 * Members of a kernel as text.
 *
 * A kernel runs over the elements of its widest members, by their linear index, which
 * reshapes keep. A value from memory is a load: sizes and strides that turn the index
 * into the operand's place; broadcasts, transposes and slices of values from outside
 * therefore cost only their reading. Loads of equal source and strides are one.
 */
#include "members.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Loads among which an equal one is looked for: keeps preparing linear. */
#define LOOK_BACK 64
/* Elements from which threads compute several: below, more threads are worth more. */
#define WIDE_ELEMS (1 << 15)

/* ---- loads ---- */

static bool is_once(const struct load *l)
{
    for (int d = 0; d < l->rank; d++)
        if (l->stride[d])
            return false;
    return l->rank >= 0;
}

static enum load_mode mode_of(const struct members *m, const struct load *l)
{
    const int last = l->rank - 1;
    if (is_once(l))
        return LOAD_ONCE;
    if (l->by_row)
        return LOAD_ROW;
    if (l->rank < 0)
        return LOAD_ELEMENT;
    if (m->row < m->n_elems && l->stride[last] == 0 && l->n[last] % m->row == 0)
        return LOAD_ROW;
    if (m->row == m->n_elems && l->stride[last] == 0 && l->n[last] % m->width == 0)
        return LOAD_ONCE;
    if (l->n[last] % m->width || l->stride[last] != 1 || l->base % m->width)
        return LOAD_ELEMENT;
    for (int d = 0; d < last; d++)
        if (l->stride[d] % m->width)
            return LOAD_ELEMENT; /* rows begin where a wide access may not */
    return LOAD_PACK;
}

static int add_load(struct members *m, struct load l)
{
    l.mode = mode_of(m, &l);
    for (int k = m->n_loads > LOOK_BACK ? m->n_loads - LOOK_BACK : 0; k < m->n_loads;
         k++) {
        const struct load *o = &m->load[k];
        if (o->src == l.src && o->dtype == l.dtype && o->rank == l.rank &&
            o->mapped == l.mapped && o->by_row == l.by_row && o->base == l.base &&
            !memcmp(o->n, l.n, sizeof l.n) &&
            !memcmp(o->stride, l.stride, sizeof l.stride))
            return ~k;
    }
    m->load[m->n_loads] = l;
    return ~m->n_loads++;
}

/* Sizes n with these strides as few as can be. */
static void collapse(struct load *l, const struct ap_shape *dims, const int64_t *step)
{
    for (int d = 0; d < dims->rank; d++) {
        const int64_t n = dims->dims[d];
        if (n == 1)
            continue;
        if (l->rank && l->stride[l->rank - 1] == step[d] * n) {
            l->n[l->rank - 1] *= n;
            l->stride[l->rank - 1] = step[d];
        } else {
            l->n[l->rank] = n;
            l->stride[l->rank++] = step[d];
        }
    }
}

/* Operand u of v, which reads it through what v is: a broadcast, a transpose, a slice. */
static int load_moved(struct members *m, const struct member *of, int node)
{
    const struct ap_node *v = of->node, *u = &m->x->prog->local.nodes[node];
    struct load l = {
        .src = m->x->value[node], .dtype = u->shape.dtype, .by_row = of->row};
    int64_t own[AP_MAX_RANK], step[AP_MAX_RANK] = {0};
    cpu_strides(&u->shape, own);
    for (int d = 0; d < v->shape.rank && v->op != AP_OP_BROADCAST; d++) {
        const int from = v->op == AP_OP_TRANSPOSE ? (int)v->attrs->dimensions.v[d] : d;
        step[d] = own[from];
        if (v->op == AP_OP_SLICE) {
            l.base += v->attrs->slice[d].start * own[d];
            step[d] *= v->attrs->slice[d].stride;
        }
    }
    for (int d = 0; d < u->shape.rank && v->op == AP_OP_BROADCAST; d++)
        if (u->shape.dims[d] != 1)
            step[v->attrs->dimensions.v[d]] = own[d];
    collapse(&l, &v->shape, step);
    return add_load(m, l);
}

/* An operand that is read element by element, or a scalar. */
static int load_plain(struct members *m, const struct member *of, int node)
{
    const struct ap_node *u = &m->x->prog->local.nodes[node];
    struct load l = {
        .src = m->x->value[node], .dtype = u->shape.dtype, .by_row = of->row};
    int64_t own[AP_MAX_RANK];
    cpu_strides(&u->shape, own);
    collapse(&l, &u->shape, own);
    return add_load(m, l);
}

static int load_iota(struct members *m, const struct member *of)
{
    const struct ap_node *v = of->node;
    const int d = (int)v->attrs->iota_dimension;
    const int64_t *map = exec_index_map(m->x, v->attrs, &v->shape, d);
    struct load l = {.dtype = v->shape.dtype, .rank = -1, .by_row = of->row};
    l.n[0] = v->shape.dims[d];
    l.n[1] = 1;
    for (int i = d + 1; i < v->shape.rank; i++)
        l.n[1] *= v->shape.dims[i];
    l.mapped = map != NULL;
    if (map)
        l.src = cuda_upload(m->x, m->out, map, l.n[0] * (int64_t)sizeof *map);
    return add_load(m, l);
}

static void put_iota(struct ap_buf *b, const struct members *m, int k, const char *indent,
                     const char *at)
{
    const struct load *l = &m->load[k];
    char index[160];
    snprintf(index, sizeof index, "(int64_t)(%s / %lld%s %% %lld%s)", at,
             (long long)l->n[1], m->index.suffix, (long long)l->n[0], m->index.suffix);
    ap_buf_printf(b, "%sconst int64_t g%d = ", indent, k);
    if (l->mapped)
        ap_buf_printf(b, "((const int64_t *)a.p[%d])[%s];\n", k, index);
    else
        ap_buf_printf(b, "%s;\n", index);
    ap_buf_printf(b, "%sconst %s l%d = %s(to_%s((int64_t)(g%d < 0 ? 0 : g%d)));\n",
                  indent, text_register(l->dtype), k, text_round(l->dtype),
                  cpu_is_plain(l->dtype) ? ap_dtype_name(l->dtype) : "f32", k, k);
}

void members_put_load(struct ap_buf *b, const struct members *m, int k,
                      const char *indent, const char *index)
{
    const struct load *l = &m->load[k];
    const char *storage = text_storage(l->dtype), *reg = text_register(l->dtype);
    if (l->rank < 0) {
        put_iota(b, m, k, indent, index);
        return;
    }
    if (l->mode != LOAD_PACK)
        ap_buf_printf(b, "%sconst %s l%d = load((const %s *)a.p[%d] + ", indent, reg, k,
                      storage, k);
    else if (m->held)
        ap_buf_printf(b, "%sload_pack(l%d[q], (const %s *)a.p[%d] + ", indent, k, storage,
                      k);
    else
        ap_buf_printf(b, "%s%s l%d[%d];\n%sload_pack(l%d, (const %s *)a.p[%d] + ", indent,
                      reg, k, m->width, indent, k, storage, k);
    if (l->base)
        ap_buf_printf(b, "%lld + ", (long long)l->base);
    text_offset(b, &m->index, index, l->rank, l->n, l->stride);
    ap_buf_puts(b, ");\n");
}

void members_put_loads(struct ap_buf *b, const struct members *m,
                       const struct members_need *need, enum load_mode mode,
                       const char *indent, const char *index)
{
    for (int k = 0; k < m->n_loads; k++)
        if (m->load[k].mode == mode && (!need || need->load[k]))
            members_put_load(b, m, k, indent,
                             mode == LOAD_ROW && m->load[k].by_row ? "r" : index);
}

/* ---- members ---- */

/* What a line calls member or ~load `at`. */
static struct text_operand operand(const struct members *m, int at)
{
    struct text_operand in;
    if (at >= 0)
        return m->of[at].value;
    const struct load *l = &m->load[~at];
    in.dtype = l->dtype;
    snprintf(in.name, sizeof in.name,
             l->mode != LOAD_PACK ? "l%d"
             : m->held            ? "l%d[q][k]"
                                  : "l%d[k]",
             ~at);
    return in;
}

/* The operand as a member, or as a load that v's own sizes read. */
static int input(struct members *m, const struct member *of, int k)
{
    const int node = of->node->in[k], at = call_member(m->call, node);
    return at >= 0 ? at : load_plain(m, of, node);
}

static void name_value(struct members *m, int i)
{
    struct member *of = &m->of[i];
    of->value.dtype = of->node->shape.dtype;
    snprintf(of->value.name, sizeof of->value.name, "%c%d",
             of->row || of->sum ? 'w' : 'v', i);
}

static int put_elementwise(struct members *m, int i, struct ap_err *err)
{
    struct member *of = &m->of[i];
    struct text_operand in[3] = {{of->node->shape.dtype, ""}};
    for (int k = 0; k < of->node->n_in; k++) {
        of->in[k] = input(m, of, k);
        in[k] = operand(m, of->in[k]);
    }
    of->n_in = of->node->n_in;
    name_value(m, i);
    ap_buf_printf(&of->line, "const %s %s = ", text_register(of->value.dtype),
                  of->value.name);
    if (text_node(m->x, &of->line, of->node, in, err))
        return -1;
    ap_buf_puts(&of->line, ";\n");
    return 0;
}

static void put_constant(struct members *m, int i)
{
    struct member *of = &m->of[i];
    name_value(m, i);
    ap_buf_printf(&of->line, "const %s %s = ", text_register(of->value.dtype),
                  of->value.name);
    text_constant(&of->line, of->value.dtype, of->node->attrs->literal.data);
    ap_buf_puts(&of->line, ";\n");
}

static int put_member(struct members *m, int i, struct ap_err *err)
{
    struct member *of = &m->of[i];
    const struct ap_node *v = of->node;
    if (!text_computes(v->shape.dtype))
        return exec_unsupported(m->x, v, err, ap_dtype_name(v->shape.dtype));
    switch ((int)v->op) {
    case AP_OP_CONSTANT:
        put_constant(m, i);
        return 0;
    case AP_OP_REDUCE:
        of->sum = true;
        of->in[0] = input(m, of, 0);
        of->in[1] = input(m, of, 1);
        of->n_in = 2;
        name_value(m, i);
        return 0;
    case AP_OP_IOTA:
        of->in[0] = load_iota(m, of);
        break;
    case AP_OP_BROADCAST:
    case AP_OP_TRANSPOSE:
    case AP_OP_SLICE: {
        const int at = call_member(m->call, v->in[0]);
        of->in[0] = at >= 0 ? at : load_moved(m, of, v->in[0]);
        break;
    }
    case AP_OP_RESHAPE:
        of->in[0] = input(m, of, 0);
        break;
    default:
        return put_elementwise(m, i, err);
    }
    of->n_in = 1;
    of->value = operand(m, of->in[0]);
    return 0;
}

static void set_after(struct members *m, int i)
{
    struct member *of = &m->of[i];
    for (int k = 0; k < of->n_in; k++) {
        const struct member *u = of->in[k] >= 0 ? &m->of[of->in[k]] : NULL;
        const int after = u ? u->after + u->sum : 0;
        of->after = after > of->after ? after : of->after;
    }
}

int members_width(const struct members *m, int64_t n)
{
    bool narrow = true;
    for (int i = 0; i < m->call->n_nodes; i++) {
        const struct ap_node *v = &m->x->prog->local.nodes[m->call->nodes[i]];
        narrow &= !m->x->value[m->call->nodes[i]] ||
                  ap_shape_elems(&v->shape) < m->n_elems ||
                  ap_dtype_size(v->shape.dtype) <= 2;
        for (int k = 0; k < v->n_in; k++) {
            const struct ap_shape *u = &call_in(m->x, v, k)->shape;
            narrow &= call_member(m->call, v->in[k]) >= 0 ||
                      ap_shape_elems(u) < m->n_elems || ap_dtype_size(u->dtype) <= 2;
        }
    }
    if (n < WIDE_ELEMS)
        return 1;
    return narrow && n % 8 == 0 ? 8 : n % 4 == 0 ? 4 : 1;
}

int members_set(struct members *m, struct ap_err *err)
{
    int most = 1;
    m->n = m->call->n_nodes;
    for (int i = 0; i < m->n; i++)
        most += 1 + m->x->prog->local.nodes[m->call->nodes[i]].n_in;
    m->load = AP_NEW_N(m->x->arena, most, struct load);
    m->of = AP_NEW_N(m->x->arena, m->n, struct member);
    for (int i = 0; i < m->n; i++) {
        struct member *of = &m->of[i];
        of->node = &m->x->prog->local.nodes[m->call->nodes[i]];
        of->row = m->row < m->n_elems && ap_shape_elems(&of->node->shape) < m->n_elems &&
                  of->node->op != AP_OP_REDUCE;
        if (put_member(m, i, err))
            return -1;
        set_after(m, i);
    }
    return 0;
}

void members_free(struct members *m)
{
    for (int i = 0; i < m->n; i++)
        ap_buf_free(&m->of[i].line);
}

const char *members_name(const struct members *m, int at, char *room, size_t size)
{
    snprintf(room, size, "%s", operand(m, at).name);
    return room;
}

int members_put_combines(const struct members *m, struct ap_buf *out, struct ap_err *err)
{
    for (int i = 0; i < m->n; i++) {
        char name[24];
        snprintf(name, sizeof name, "combine%d", i);
        if (m->of[i].sum && text_combine(m->x, out, name, m->of[i].node,
                                         m->of[i].node->attrs->to_apply, err))
            return -1;
    }
    return 0;
}

void *members_result(const struct members *m, int i)
{
    return m->x->value[m->call->nodes[i]];
}

struct cuda_at *members_args(const struct members *m, int more)
{
    struct cuda_at *arg = AP_NEW_N(m->x->arena, m->n_loads + more + 1, struct cuda_at);
    for (int k = 0; k < m->n_loads; k++)
        arg[k] = at_memory(m->load[k].src);
    return arg;
}

/* ---- what is needed ---- */

struct members_need members_need_new(const struct members *m)
{
    return (struct members_need){AP_NEW_N(m->x->arena, m->n + 1, bool),
                                 AP_NEW_N(m->x->arena, m->n_loads + 1, bool)};
}

/* Operands come first, so one sweep from the back does. */
static void spread(const struct members *m, struct members_need *need, int from)
{
    for (int i = from; i >= 0; i--) {
        const struct member *of = &m->of[i];
        if (!need->member[i] || (of->sum && i != from) || (of->row && i != from))
            continue;
        for (int k = 0; k < of->n_in; k++) {
            if (of->in[k] >= 0)
                need->member[of->in[k]] = true;
            else
                need->load[~of->in[k]] = true;
        }
    }
}

void members_need_add(const struct members *m, struct members_need *need, int at)
{
    if (at < 0) {
        need->load[~at] = true;
        return;
    }
    need->member[at] = true;
    spread(m, need, at);
}

void members_put_lines(struct ap_buf *b, const struct members *m,
                       const struct members_need *need, int phase)
{
    for (int i = 0; i < m->n; i++) {
        const struct member *of = &m->of[i];
        const bool row = of->row && !of->sum;
        if (!of->line.len || of->sum || (need && !need->member[i]) ||
            (phase < 0 ? row : !row || of->after != phase))
            continue;
        ap_buf_puts(b, phase < 0 ? "        " : "    ");
        ap_buf_put(b, of->line.data, of->line.len);
    }
}
