/*
 * Attributes. Every value is first delimited as balanced text; those that the graph keeps
 * are then read from it. Instructions with the same operator and the same attribute text
 * share one set, so that a train step of 10^5 instructions has a few hundred.
 */
#include "hlo/hlo_parse.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "graph/attr_text.h"

enum attr_kind {
    ATTR_BOOL, /* into the set, as all up to ATTR_LABELS */
    ATTR_DIRECTION,
    ATTR_INT,
    ATTR_INTS,
    ATTR_LABELS,
    ATTR_FFT,
    ATTR_ORDER,
    ATTR_PADDING,
    ATTR_SLICE,
    ATTR_TRANSPOSE,
    ATTR_WINDOW,
    ATTR_BACKEND, /* into the instruction, as all that follow */
    ATTR_COMP,
    ATTR_COMPS,
    ATTR_BRANCH,
    ATTR_BRANCHES,
    ATTR_EFFECT,
    ATTR_EPSILON,
    ATTR_FRONTEND,
    ATTR_METADATA,
    ATTR_SHARDING,
    ATTR_TARGET,
    ATTR_WORD, /* a target without quotes */
    ATTR_SKIP  /* known, and of no consequence here */
};

struct attr_row {
    const char *name;
    enum attr_kind kind;
    size_t where; /* offset in struct ap_attrs, or index in hlo_instr.comp */
};

#define AT(member) offsetof(struct ap_attrs, member)
/* Sorted by name. */
static const struct attr_row rows[] = {
    {"algorithm", ATTR_WORD, 0},
    {"api_version", ATTR_SKIP, 0},
    {"backend_config", ATTR_BACKEND, 0},
    {"batch_group_count", ATTR_INT, AT(batch_group_count)},
    {"body", ATTR_COMP, 0},
    {"branch_computations", ATTR_BRANCHES, 0},
    {"called_computations", ATTR_COMPS, 0},
    {"calls", ATTR_COMP, 0},
    {"channel_id", ATTR_SKIP, 0},
    {"collapsed_slice_dims", ATTR_INTS, AT(collapsed_slice_dims)},
    {"condition", ATTR_COMP, 1},
    {"control-predecessors", ATTR_SKIP, 0},
    {"custom_call_has_side_effect", ATTR_EFFECT, 0},
    {"custom_call_schedule", ATTR_SKIP, 0},
    {"custom_call_target", ATTR_TARGET, 0},
    {"dim_labels", ATTR_LABELS, 0},
    {"dimensions", ATTR_INTS, AT(dimensions)},
    {"direction", ATTR_DIRECTION, AT(direction)},
    {"distribution", ATTR_WORD, 0},
    {"dynamic_slice_sizes", ATTR_INTS, AT(dynamic_slice_sizes)},
    {"epsilon", ATTR_EPSILON, 0},
    {"exponent_bits", ATTR_INT, AT(exponent_bits)},
    {"false_computation", ATTR_BRANCH, 1},
    {"feature_group_count", ATTR_INT, AT(feature_group_count)},
    {"feature_index", ATTR_INT, AT(index)},
    {"fft_length", ATTR_INTS, AT(fft_length)},
    {"fft_type", ATTR_FFT, AT(fft_type)},
    {"frontend_attributes", ATTR_FRONTEND, 0},
    {"index", ATTR_INT, AT(index)},
    {"index_vector_dim", ATTR_INT, AT(index_vector_dim)},
    {"indices_are_sorted", ATTR_BOOL, AT(indices_are_sorted)},
    {"input_batching_dims", ATTR_INTS, AT(input_batching_dims)},
    {"inserted_window_dims", ATTR_INTS, AT(inserted_window_dims)},
    {"iota_dimension", ATTR_INT, AT(iota_dimension)},
    {"is_stable", ATTR_BOOL, AT(is_stable)},
    {"k", ATTR_INT, AT(k)},
    {"largest", ATTR_BOOL, AT(largest)},
    {"left_side", ATTR_BOOL, AT(left_side)},
    {"lhs_batch_dims", ATTR_INTS, AT(lhs_batch_dims)},
    {"lhs_contracting_dims", ATTR_INTS, AT(lhs_contracting_dims)},
    {"lower", ATTR_BOOL, AT(lower)},
    {"mantissa_bits", ATTR_INT, AT(mantissa_bits)},
    {"metadata", ATTR_METADATA, 0},
    {"offset_dims", ATTR_INTS, AT(offset_dims)},
    {"operand_batching_dims", ATTR_INTS, AT(operand_batching_dims)},
    {"operand_precision", ATTR_SKIP, 0},
    {"origin", ATTR_SKIP, 0},
    {"output_to_operand_aliasing", ATTR_SKIP, 0},
    {"padding", ATTR_PADDING, 0},
    {"parameter_replication", ATTR_SKIP, 0},
    {"result_accuracy", ATTR_SKIP, 0},
    {"rhs_batch_dims", ATTR_INTS, AT(rhs_batch_dims)},
    {"rhs_contracting_dims", ATTR_INTS, AT(rhs_contracting_dims)},
    {"scatter", ATTR_COMP, 1},
    {"scatter_dims_to_operand_dims", ATTR_INTS, AT(scatter_dims_to_operand_dims)},
    {"scatter_indices_batching_dims", ATTR_INTS, AT(scatter_indices_batching_dims)},
    {"schedule", ATTR_SKIP, 0},
    {"select", ATTR_COMP, 0},
    {"sharding", ATTR_SHARDING, 0},
    {"slice", ATTR_SLICE, 0},
    {"slice_sizes", ATTR_INTS, AT(slice_sizes)},
    {"start_index_map", ATTR_INTS, AT(start_index_map)},
    {"start_indices_batching_dims", ATTR_INTS, AT(start_indices_batching_dims)},
    {"statistics", ATTR_SKIP, 0},
    {"to_apply", ATTR_COMP, 0},
    {"transpose_a", ATTR_TRANSPOSE, 0},
    {"true_computation", ATTR_BRANCH, 0},
    {"type", ATTR_ORDER, AT(total_order)},
    {"unique_indices", ATTR_BOOL, AT(unique_indices)},
    {"unit_diagonal", ATTR_BOOL, AT(unit_diagonal)},
    {"update_window_dims", ATTR_INTS, AT(update_window_dims)},
    {"window", ATTR_WINDOW, 0},
};
#undef AT

/* Attributes without which an operator has no meaning. */
static const struct {
    enum ap_op op;
    const char *names[3];
} required[] = {
    {AP_OP_CHOLESKY, {"lower"}},
    {AP_OP_COMPARE, {"direction"}},
    {AP_OP_CONCATENATE, {"dimensions"}},
    {AP_OP_CONVOLUTION, {"dim_labels"}},
    {AP_OP_DYNAMIC_SLICE, {"dynamic_slice_sizes"}},
    {AP_OP_FFT, {"fft_type", "fft_length"}},
    {AP_OP_GATHER, {"slice_sizes", "index_vector_dim"}},
    {AP_OP_IOTA, {"iota_dimension"}},
    {AP_OP_PAD, {"padding"}},
    {AP_OP_REDUCE, {"dimensions", "to_apply"}},
    {AP_OP_REDUCE_PRECISION, {"exponent_bits", "mantissa_bits"}},
    {AP_OP_REDUCE_WINDOW, {"window", "to_apply"}},
    {AP_OP_REVERSE, {"dimensions"}},
    {AP_OP_SCATTER, {"index_vector_dim", "to_apply"}},
    {AP_OP_SELECT_AND_SCATTER, {"window", "select", "scatter"}},
    {AP_OP_SLICE, {"slice"}},
    {AP_OP_SORT, {"dimensions", "to_apply"}},
    {AP_OP_TOPK, {"k"}},
    {AP_OP_TRANSPOSE, {"dimensions"}},
    {AP_OP_TRIANGULAR_SOLVE, {"left_side", "lower"}},
};

#define N_ROWS    (sizeof rows / sizeof rows[0])
#define MAX_ATTRS 40 /* attributes of one instruction */

struct given {
    const struct attr_row *row;
    struct hlo_span value;
};

static int compare_row(const void *key, const void *row)
{
    const struct hlo_span *name = key;
    const char *s = ((const struct attr_row *)row)->name;
    size_t len = strlen(s), n = name->len < len ? name->len : len;
    int c = memcmp(name->s, s, n);
    return c ? c : (name->len > len) - (name->len < len);
}

struct ap_attrs hlo_default_attrs(void)
{
    return ap_attrs_default;
}

void hlo_attr_cache_free(struct hlo_attr_cache *cache)
{
    hlo_map_free(&cache->texts);
    hlo_map_free(&cache->warned);
    ap_buf_free(&cache->key);
    free(cache->sets);
}

/* ---- values ---- */

static int read_bool(struct hlo_src *src, struct hlo_span value, bool *out)
{
    *out = hlo_span_is(value, "true") || hlo_span_is(value, "1");
    if (!*out && !hlo_span_is(value, "false") && !hlo_span_is(value, "0"))
        return hlo_fail(src, hlo_at(src, value.s), "expected true or false");
    return 0;
}

static int read_fft(struct hlo_src *src, struct hlo_span value, struct ap_attrs *a)
{
    for (int i = 0; i < AP_N_FFTS; i++)
        if (hlo_span_is(value, ap_fft_names[i])) {
            a->fft_type = (enum ap_fft)i;
            return 0;
        }
    return hlo_fail(src, hlo_at(src, value.s), "expected FFT, IFFT, RFFT or IRFFT");
}

static int read_value(struct hlo_src *src, const struct given *g, struct ap_attrs *a)
{
    struct ap_err err = {{0}};
    size_t pos = hlo_at(src, g->value.s);
    char *member = (char *)a + g->row->where;
    int rc = 0;
    switch (g->row->kind) {
    case ATTR_BOOL:
        return read_bool(src, g->value, (bool *)(void *)member);
    case ATTR_FFT:
        return read_fft(src, g->value, a);
    case ATTR_TRANSPOSE: /* ADJOINT of real numbers */
        a->transpose_a = !hlo_span_is(g->value, "NO_TRANSPOSE");
        return 0;
    case ATTR_ORDER:
        a->total_order = hlo_span_is(g->value, "TOTALORDER");
        return 0;
    case ATTR_DIRECTION:
        rc = ap_direction_parse(src->text, &pos, &a->direction, &err);
        break;
    case ATTR_INT:
        rc = ap_int_parse(src->text, &pos, (int64_t *)(void *)member, &err);
        break;
    case ATTR_INTS:
        rc = ap_ints_parse(src->arena, src->text, &pos, (struct ap_ints *)(void *)member,
                           &err);
        break;
    case ATTR_LABELS:
        rc = ap_dim_labels_parse(src->text, &pos, a, &err);
        break;
    case ATTR_PADDING:
        rc = ap_padding_parse(src->arena, src->text, &pos, a, &err);
        break;
    case ATTR_SLICE:
        rc = ap_slice_parse(src->arena, src->text, &pos, a, &err);
        break;
    case ATTR_WINDOW:
        rc = ap_window_parse(src->arena, src->text, &pos, a, &err);
        break;
    case ATTR_BACKEND:
    case ATTR_COMP:
    case ATTR_COMPS:
    case ATTR_BRANCH:
    case ATTR_BRANCHES:
    case ATTR_EFFECT:
    case ATTR_EPSILON:
    case ATTR_FRONTEND:
    case ATTR_METADATA:
    case ATTR_SHARDING:
    case ATTR_TARGET:
    case ATTR_WORD:
    case ATTR_SKIP:
        break;
    }
    if (rc)
        return hlo_fail(src, pos, "%s: %s", g->row->name, err.msg);
    if (pos != hlo_at(src, g->value.s) + g->value.len)
        return hlo_fail(src, pos, "%s: trailing text in the value", g->row->name);
    return 0;
}

/* The shared set for these attributes. */
static int intern_set(struct hlo_src *src, struct hlo_attr_cache *cache, enum ap_op op,
                      const struct given *given, int n, const struct ap_attrs **out)
{
    cache->key.len = 0;
    ap_buf_int(&cache->key, op);
    for (int i = 0; i < n; i++) {
        if (given[i].row->kind >= ATTR_BACKEND)
            continue;
        ap_buf_putc(&cache->key, ',');
        ap_buf_int(&cache->key, given[i].row - rows);
        ap_buf_putc(&cache->key, '=');
        ap_buf_put(&cache->key, given[i].value.s, given[i].value.len);
    }
    int known = hlo_map_get(&cache->texts, cache->key.data, cache->key.len);
    if (known < 0) {
        struct ap_attrs *a = AP_NEW(src->arena, struct ap_attrs);
        *a = hlo_default_attrs();
        a->largest = op == AP_OP_TOPK;
        for (int i = 0; i < n; i++)
            if (given[i].row->kind < ATTR_BACKEND && read_value(src, &given[i], a))
                return -1;
        if (cache->n == cache->cap) {
            cache->cap = cache->cap ? 2 * cache->cap : 256;
            cache->sets = ap_xrealloc(cache->sets, cache->cap * sizeof(void *));
        }
        known = (int)cache->n;
        cache->sets[cache->n++] = a;
        const char *key = ap_arena_dup(src->arena, cache->key.data, cache->key.len);
        hlo_map_put(&cache->texts, key, cache->key.len, known);
    }
    *out = cache->sets[known];
    return 0;
}

/* The computation that a name at the cursor stands for. */
static int read_comp(struct hlo_src *src, const struct hlo_map *comps, int *out)
{
    struct hlo_span name;
    hlo_skip(src);
    size_t pos = src->pos;
    if (hlo_name(src, "the name of a computation", &name))
        return -1;
    *out = hlo_map_get(comps, name.s, name.len);
    if (*out < 0)
        return hlo_fail(src, pos, "computation '%.*s' is not defined before its use",
                        (int)(name.len < 200 ? name.len : 200), name.s);
    return 0;
}

/* "{a, b}": all branches of a conditional. */
static int read_branches(struct hlo_src *src, const struct hlo_map *comps,
                         struct hlo_instr *instr)
{
    int *list = NULL, n = 0, rc = hlo_expect(src, '{', "the branches");
    while (!rc && hlo_skip(src) != '}') {
        if ((n & (n - 1)) == 0)
            list = ap_xrealloc(list, (size_t)(n ? 2 * n : 1) * sizeof *list);
        rc = read_comp(src, comps, &list[n++]);
        if (!rc && hlo_skip(src) != '}')
            rc = hlo_expect(src, ',', "the branches");
    }
    if (!rc && n) {
        instr->n_branches = n;
        instr->branches = ap_arena_dup(src->arena, list, (size_t)n * sizeof *list);
    }
    free(list);
    return rc;
}

/* true_computation (0) or false_computation (1). */
static int read_branch(struct hlo_src *src, const struct hlo_map *comps, size_t which,
                       struct hlo_instr *instr)
{
    int two[2] = {-1, -1};
    for (int i = 0; i < instr->n_branches && i < 2; i++)
        two[i] = instr->branches[i];
    if (read_comp(src, comps, &two[which]))
        return -1;
    instr->n_branches = 2;
    instr->branches = ap_arena_dup(src->arena, two, sizeof two);
    return 0;
}

/* "{key=value key=value}", separated by blanks or commas: the string value of one key. */
static int find_string(struct hlo_src *src, struct hlo_span value, const char *key,
                       const char **out)
{
    size_t end = hlo_at(src, value.s) + value.len, back = src->pos;
    src->pos = hlo_at(src, value.s);
    if (!hlo_eat(src, '{'))
        return hlo_fail(src, src->pos, "expected '{'");
    int rc = 0;
    while (hlo_skip(src) != '}' && !rc) {
        struct hlo_span name, skipped;
        if (hlo_eat(src, ','))
            continue;
        const char *quoted = NULL;
        if (hlo_skip(src) == '"' || src->text[src->pos] == '\'') {
            rc = hlo_string(src, &quoted); /* quoted keys occur in raw values */
            name = (struct hlo_span){quoted, quoted ? strlen(quoted) : 0};
        } else {
            rc = hlo_word(src, "a key", &name);
        }
        rc = rc || hlo_expect(src, '=', "a list of keys and values") ? -1 : 0;
        if (rc)
            break;
        char c = hlo_skip(src);
        if (hlo_span_is(name, key) && (c == '"' || c == '\''))
            rc = hlo_string(src, out);
        else
            rc = hlo_value(src, &skipped);
    }
    if (!rc && src->pos + 1 != end)
        rc = hlo_fail(src, src->pos, "unbalanced value");
    src->pos = back;
    return rc;
}

/* {"known_trip_count":{"n":"32"}}, also as a quoted string: the number, -1 if it is not
 * there, -2 if it is less than 0. */
static int64_t trip_count(struct hlo_span value)
{
    static const char key[] = "known_trip_count";
    size_t i = 0, n = sizeof key - 1;
    while (i + n <= value.len && memcmp(value.s + i, key, n) != 0)
        i++;
    if (i + n > value.len)
        return -1;
    for (i += n; i < value.len && !(value.s[i] >= '0' && value.s[i] <= '9'); i++)
        if (value.s[i] == '}')
            return -1;
    if (i < value.len && value.s[i - 1] == '-')
        return -2;
    int64_t count = i < value.len ? 0 : -1;
    for (; i < value.len && value.s[i] >= '0' && value.s[i] <= '9'; i++)
        count = ap_add64(ap_mul64(count, 10), value.s[i] - '0');
    return count;
}

/* Values that go into the instruction itself. */
static int read_for_instr(struct hlo_src *src, const struct hlo_map *comps,
                          const struct given *g, struct hlo_instr *instr)
{
    size_t back = src->pos;
    int rc = 0;
    if (g->row->kind == ATTR_BACKEND) {
        instr->config = g->value;
        if (instr->kind == HLO_WHILE)
            instr->trip_count = trip_count(g->value);
        if (instr->trip_count < -1)
            rc = hlo_fail(src, hlo_at(src, g->value.s), "known_trip_count is negative");
    } else if (g->row->kind == ATTR_COMP) {
        src->pos = hlo_at(src, g->value.s);
        rc = read_comp(src, comps, &instr->comp[g->row->where]);
    } else if (g->row->kind == ATTR_COMPS) {
        src->pos = hlo_at(src, g->value.s);
        bool list = hlo_eat(src, '{');
        if (!list || hlo_skip(src) != '}')
            rc = read_comp(src, comps, &instr->comp[0]);
    } else if (g->row->kind == ATTR_BRANCH || g->row->kind == ATTR_BRANCHES) {
        src->pos = hlo_at(src, g->value.s);
        rc = g->row->kind == ATTR_BRANCHES
                 ? read_branches(src, comps, instr)
                 : read_branch(src, comps, g->row->where, instr);
    } else if (g->row->kind == ATTR_METADATA) {
        rc = find_string(src, g->value, "op_name", &instr->op_name);
    } else if (g->row->kind == ATTR_FRONTEND) {
        const char *own = NULL;
        rc = find_string(src, g->value, "autopar.layout", &own);
        if (own)
            instr->pin = own;
        else if (!rc && !instr->pin)
            rc = find_string(src, g->value, "xla.sdy.sharding", &instr->pin);
    } else if (g->row->kind == ATTR_SHARDING) {
        if (!instr->pin || strchr("{#", *instr->pin)) /* a layout says more */
            instr->pin = hlo_span_dup(src->arena, g->value);
    } else if (g->row->kind == ATTR_EPSILON) {
        char *end;
        instr->epsilon = strtod(g->value.s, &end);
        if (end != g->value.s + g->value.len || !(instr->epsilon >= 0))
            rc = hlo_fail(src, hlo_at(src, g->value.s), "expected a number >= 0");
    } else if (g->row->kind == ATTR_EFFECT) {
        rc = read_bool(src, g->value, &instr->side_effect);
    } else if (g->row->kind == ATTR_WORD) {
        instr->target = hlo_span_dup(src->arena, g->value);
    } else if (g->row->kind == ATTR_TARGET) {
        src->pos = hlo_at(src, g->value.s);
        rc = hlo_string(src, &instr->target);
    }
    src->pos = back;
    return rc;
}

/* ---- lists ---- */

static void warn_unknown(struct hlo_src *src, struct hlo_attr_cache *cache,
                         struct hlo_span name)
{
    if (hlo_map_get(&cache->warned, name.s, name.len) >= 0)
        return;
    hlo_map_put(&cache->warned, name.s, name.len, 0);
    hlo_warn(src, hlo_at(src, name.s), "unknown attribute '%.*s' is ignored",
             (int)(name.len < 200 ? name.len : 200), name.s);
}

static int check_required(struct hlo_src *src, const struct given *given, int n,
                          const struct hlo_instr *instr)
{
    for (size_t i = 0; i < sizeof required / sizeof required[0]; i++) {
        if (required[i].op != instr->op)
            continue;
        for (int k = 0; k < 3 && required[i].names[k]; k++) {
            int j = 0;
            while (j < n && strcmp(given[j].row->name, required[i].names[k]) != 0)
                j++;
            if (j == n)
                return hlo_fail(src, hlo_at(src, instr->opcode.s),
                                "%s needs %s=", ap_ops[instr->op].name,
                                required[i].names[k]);
        }
    }
    return 0;
}

/* Name and value of one attribute behind its comma. */
static int next_attr(struct hlo_src *src, struct hlo_span *name, struct hlo_span *value)
{
    if (hlo_word(src, "the name of an attribute", name))
        return -1;
    if (hlo_expect(src, '=', "an attribute"))
        return -1;
    return hlo_value(src, value);
}

int hlo_attrs(struct hlo_src *src, struct hlo_attr_cache *cache,
              const struct hlo_map *comps, struct hlo_instr *instr)
{
    struct given given[MAX_ATTRS];
    int n = 0;
    while (hlo_eat(src, ',')) {
        struct hlo_span name, value;
        if (next_attr(src, &name, &value))
            return -1;
        if (instr->kind == HLO_UNSUPPORTED)
            continue;
        const struct attr_row *row =
            bsearch(&name, rows, N_ROWS, sizeof rows[0], compare_row);
        if (!row) {
            warn_unknown(src, cache, name);
            continue;
        }
        for (int i = 0; i < n; i++)
            if (given[i].row == row)
                return hlo_fail(src, hlo_at(src, name.s), "%s is given twice", row->name);
        if (row->kind == ATTR_SKIP)
            continue;
        if (n == MAX_ATTRS)
            return hlo_fail(src, hlo_at(src, name.s), "too many attributes");
        given[n++] = (struct given){row, value};
        if (row->kind >= ATTR_BACKEND && read_for_instr(src, comps, &given[n - 1], instr))
            return -1;
    }
    if (instr->kind == HLO_OP && check_required(src, given, n, instr))
        return -1;
    return intern_set(src, cache, instr->op, given, n, &instr->attrs);
}

/* "{ {0}: (3, {}, may-alias), ... }" */
static int read_aliases(struct hlo_src *src, struct hlo_span value,
                        struct hlo_module *module)
{
    struct ap_err err = {{0}};
    struct ap_buf list = {0};
    size_t back = src->pos;
    src->pos = hlo_at(src, value.s);
    int rc = hlo_expect(src, '{', "input_output_alias");
    while (!rc && hlo_skip(src) != '}') {
        struct hlo_alias a = {.pos = src->pos};
        if (ap_ints_parse(src->arena, src->text, &src->pos, &a.result, &err)) {
            rc = hlo_fail(src, src->pos, "input_output_alias: %s", err.msg);
            break;
        }
        if (hlo_expect(src, ':', "input_output_alias") ||
            hlo_expect(src, '(', "input_output_alias") ||
            hlo_int(src, "a parameter number", &a.param)) {
            rc = -1;
            break;
        }
        if (hlo_eat(src, ',')) {
            hlo_skip(src);
            if (ap_ints_parse(src->arena, src->text, &src->pos, &a.param_index, &err))
                rc = hlo_fail(src, src->pos, "input_output_alias: %s", err.msg);
        }
        struct hlo_span kind;
        if (!rc && hlo_eat(src, ','))
            rc = hlo_word(src, "may-alias or must-alias", &kind);
        rc = rc || hlo_expect(src, ')', "input_output_alias") ? -1 : 0;
        ap_buf_put(&list, &a, sizeof a);
        if (!rc && hlo_skip(src) != '}')
            rc = hlo_expect(src, ',', "input_output_alias");
    }
    if (!rc) {
        module->n_aliases = (int)(list.len / sizeof(struct hlo_alias));
        module->aliases = ap_arena_dup(src->arena, list.data ? list.data : "", list.len);
    }
    ap_buf_free(&list);
    src->pos = back;
    return rc;
}

/* Of "{(f32[4,2]{1,0}, (f32[], s32[]))->f32[]}", -1 if that is not its form. */
static int params_of_layout(struct hlo_span layout)
{
    int n = 0, depth = 0;

    if (layout.len < 3 || memcmp(layout.s, "{(", 2) != 0)
        return -1;
    for (size_t i = 2; i < layout.len; i++) {
        const char c = layout.s[i];
        if (c == ')' && depth == 0)
            return n;
        if (n == 0 && c > ' ')
            n = 1;
        n += c == ',' && depth == 0;
        depth += (strchr("([{", c) != NULL) - (strchr(")]}", c) != NULL);
    }
    return -1;
}

int hlo_header_attrs(struct hlo_src *src, struct hlo_attr_cache *cache,
                     struct hlo_module *module)
{
    static const char *const known[] = {
        "is_scheduled",
        "replica_count",
        "num_partitions",
        "buffer_donor",
        "alias_passthrough_params",
        "entry_computation_layout",
        "frontend_attributes",
        "allow_spmd_sharding_propagation_to_parameters",
        "allow_spmd_sharding_propagation_to_output",
        "origin_recovery_table",
        "debug_attributes",
    };
    while (hlo_eat(src, ',')) {
        struct hlo_span name, value;
        if (next_attr(src, &name, &value))
            return -1;
        if (hlo_span_is(name, "input_output_alias")) {
            if (read_aliases(src, value, module))
                return -1;
            continue;
        }
        if (hlo_span_is(name, "entry_computation_layout"))
            module->n_params = params_of_layout(value);
        size_t i = 0, n = sizeof known / sizeof known[0];
        while (i < n && !hlo_span_is(name, known[i]))
            i++;
        if (i == n)
            warn_unknown(src, cache, name);
    }
    return 0;
}
