/*
 * Attributes. Every value is first delimited as balanced text; those that the graph keeps
 * are then read from it. Instructions with the same operator and the same attribute text
 * share one set, so that a train step of 10^5 instructions has a few hundred.
 */
#include "hlo/hlo_parse.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "graph/attr_text.h"

/* Attributes that are not in the table of graph/attrs.def. */
enum own_kind {
    ATTR_INDEX, /* `index`, under another name */
    ATTR_BACKEND,
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

struct own_row {
    const char *name;
    enum own_kind kind;
    size_t which; /* in hlo_instr.comp, or of the two branches */
};

/* Sorted by name. */
static const struct own_row rows[] = {
    {"algorithm", ATTR_WORD, 0},
    {"api_version", ATTR_SKIP, 0},
    {"backend_config", ATTR_BACKEND, 0},
    {"body", ATTR_COMP, 0},
    {"branch_computations", ATTR_BRANCHES, 0},
    {"called_computations", ATTR_COMPS, 0},
    {"calls", ATTR_COMP, 0},
    {"channel_id", ATTR_SKIP, 0},
    {"condition", ATTR_COMP, 1},
    {"control-predecessors", ATTR_SKIP, 0},
    {"custom_call_has_side_effect", ATTR_EFFECT, 0},
    {"custom_call_schedule", ATTR_SKIP, 0},
    {"custom_call_target", ATTR_TARGET, 0},
    {"distribution", ATTR_WORD, 0},
    {"epsilon", ATTR_EPSILON, 0},
    {"false_computation", ATTR_BRANCH, 1},
    {"feature_index", ATTR_INDEX, 0},
    {"frontend_attributes", ATTR_FRONTEND, 0},
    {"metadata", ATTR_METADATA, 0},
    {"operand_layout_constraints", ATTR_SKIP, 0},
    {"origin", ATTR_SKIP, 0},
    {"output_to_operand_aliasing", ATTR_SKIP, 0},
    {"parameter_replication", ATTR_SKIP, 0},
    {"result_accuracy", ATTR_SKIP, 0},
    {"scatter", ATTR_COMP, 1},
    {"schedule", ATTR_SKIP, 0},
    {"select", ATTR_COMP, 0},
    {"sharding", ATTR_SHARDING, 0},
    {"statistics", ATTR_SKIP, 0},
    {"to_apply", ATTR_COMP, 0},
    {"true_computation", ATTR_BRANCH, 0},
};

#define N_ROWS    (sizeof rows / sizeof rows[0])
#define MAX_ATTRS 40 /* attributes of one instruction */

struct given {
    const char *name;
    enum ap_attr attr;         /* of the graph; AP_N_ATTRS: another, */
    const struct own_row *own; /* this */
    struct hlo_span value;
};

static int compare_row(const void *key, const void *row)
{
    const struct hlo_span *name = key;
    const char *s = ((const struct own_row *)row)->name;
    size_t len = strlen(s), n = name->len < len ? name->len : len;
    int c = memcmp(name->s, s, n);
    return c ? c : (name->len > len) - (name->len < len);
}

/* Looks an attribute up; false: nobody knows it. */
static bool find_attr(struct hlo_span name, enum hlo_kind kind, struct given *g)
{
    g->own = NULL;
    g->attr = ap_attr_find_hlo(name.s, name.len);
    if (g->attr == AP_ATTR_algorithm && kind == HLO_RNG) /* the generator's */
        g->attr = AP_N_ATTRS;
    if (g->attr < AP_N_ATTRS) {
        g->name = ap_attr_table[g->attr].hlo;
        return true;
    }
    g->own = bsearch(&name, rows, N_ROWS, sizeof rows[0], compare_row);
    if (!g->own)
        return false;
    g->name = g->own->name;
    if (g->own->kind == ATTR_INDEX)
        g->attr = AP_ATTR_index;
    return true;
}

void hlo_attr_cache_free(struct hlo_attr_cache *cache)
{
    ap_names_free(&cache->texts);
    ap_names_free(&cache->warned);
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

static int read_value(struct hlo_src *src, const struct given *g, struct ap_attrs *a)
{
    struct ap_err err = {{0}};
    size_t pos = hlo_at(src, g->value.s);

    if (ap_attr_parse(src->arena, g->attr, src->text, &pos, a, &err))
        return hlo_fail(src, pos, "%s: %s", g->name, err.msg);
    if (pos != hlo_at(src, g->value.s) + g->value.len)
        return hlo_fail(src, pos, "%s: trailing text in the value", g->name);
    return 0;
}

/* The shared set for these attributes. */
static int intern_set(struct hlo_src *src, struct hlo_attr_cache *cache, enum ap_op op,
                      const struct given *given, int n, const struct ap_attrs **out)
{
    cache->key.len = 0;
    ap_buf_int(&cache->key, op);
    for (int i = 0; i < n; i++) {
        if (given[i].attr == AP_N_ATTRS)
            continue;
        ap_buf_putc(&cache->key, ',');
        ap_buf_int(&cache->key, given[i].attr);
        ap_buf_putc(&cache->key, '=');
        ap_buf_put(&cache->key, given[i].value.s, given[i].value.len);
    }
    int known = ap_names_get(&cache->texts, cache->key.data, cache->key.len);
    if (known < 0) {
        struct ap_attrs *a = AP_NEW(src->arena, struct ap_attrs);
        *a = ap_attrs_default;
        a->largest = op == AP_OP_TOPK;
        for (int i = 0; i < n; i++)
            if (given[i].attr < AP_N_ATTRS && read_value(src, &given[i], a))
                return -1;
        AP_ROOM(cache->sets, cache->n, cache->cap);
        known = cache->n;
        cache->sets[cache->n++] = a;
        const char *key = ap_arena_dup(src->arena, cache->key.data, cache->key.len);
        ap_names_put(&cache->texts, key, cache->key.len, known);
    }
    *out = cache->sets[known];
    return 0;
}

/* The computation that a name at the cursor stands for. */
static int read_comp(struct hlo_src *src, const struct ap_names *comps, int *out)
{
    struct hlo_span name;
    hlo_skip(src);
    size_t pos = src->pos;
    if (hlo_name(src, "the name of a computation", &name))
        return -1;
    *out = ap_names_get(comps, name.s, name.len);
    if (*out < 0)
        return hlo_fail(src, pos, "computation '%.*s' is not defined before its use",
                        (int)(name.len < 200 ? name.len : 200), name.s);
    return 0;
}

/* "{a, b}": all branches of a conditional. */
static int read_branches(struct hlo_src *src, const struct ap_names *comps,
                         struct hlo_instr *instr)
{
    int *list = NULL, n = 0, cap = 0, rc = hlo_expect(src, '{', "the branches");
    while (!rc && hlo_skip(src) != '}') {
        AP_ROOM(list, n, cap);
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
static int read_branch(struct hlo_src *src, const struct ap_names *comps, size_t which,
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

/* "{key=value key=value}", separated by blanks or commas: the value of one key, a string
 * or, as XLA prints JSON objects, text in braces. */
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
        if (!rc && hlo_span_is(name, key) && c == '{')
            *out = hlo_span_dup(src->arena, skipped);
    }
    if (!rc && src->pos + 1 != end)
        rc = hlo_fail(src, src->pos, "unbalanced value");
    src->pos = back;
    return rc;
}

/* Where key stands in a value; its length if it does not. */
static size_t place_of(struct hlo_span value, const char *key)
{
    size_t i = 0, n = strlen(key);
    while (i + n <= value.len && memcmp(value.s + i, key, n) != 0)
        i++;
    return i + n <= value.len ? i : value.len;
}

/* {"known_trip_count":{"n":"32"}}, also as a quoted string: the number, -1 if it is not
 * there, -2 if it is less than 0. */
static int64_t trip_count(struct hlo_span value)
{
    static const char key[] = "known_trip_count";
    size_t i = place_of(value, key);
    if (i == value.len)
        return -1;
    for (i += sizeof key - 1; i < value.len && !(value.s[i] >= '0' && value.s[i] <= '9');
         i++)
        if (value.s[i] == '}')
            return -1;
    if (i < value.len && value.s[i - 1] == '-')
        return -2;
    int64_t count = i < value.len ? 0 : -1;
    for (; i < value.len && value.s[i] >= '0' && value.s[i] <= '9'; i++)
        count = ap_add64(ap_mul64(count, 10), value.s[i] - '0');
    return count;
}

/*
 * A layout of our own, or Shardy's sharding. JAX wraps the words of typed keys in one on
 * an empty mesh, beside which XLA's sharding={replicated} stands: it names no device, and
 * pins nothing ("" until all attributes are read).
 */
static int read_frontend(struct hlo_src *src, struct hlo_span value,
                         struct hlo_instr *instr)
{
    const char *own = NULL, *sdy = NULL;

    if (find_string(src, value, "autopar.layout", &own) ||
        find_string(src, value, "xla.sdy.sharding", &sdy))
        return -1;
    if (own)
        instr->pin = own;
    else if (sdy && strstr(sdy, "@empty_mesh"))
        instr->pin = "";
    else if (sdy && !instr->pin)
        instr->pin = sdy;
    return 0;
}

/* Values that go into the instruction itself. */
static int read_for_instr(struct hlo_src *src, const struct ap_names *comps,
                          const struct given *g, struct hlo_instr *instr)
{
    size_t back = src->pos;
    int rc = 0;
    if (g->own->kind == ATTR_BACKEND) {
        instr->config = g->value;
        if (instr->kind == HLO_WHILE)
            instr->trip_count = trip_count(g->value);
        if (instr->trip_count < -1)
            rc = hlo_fail(src, hlo_at(src, g->value.s), "known_trip_count is negative");
    } else if (g->own->kind == ATTR_COMP) {
        src->pos = hlo_at(src, g->value.s);
        rc = read_comp(src, comps, &instr->comp[g->own->which]);
    } else if (g->own->kind == ATTR_COMPS) {
        src->pos = hlo_at(src, g->value.s);
        bool list = hlo_eat(src, '{');
        if (!list || hlo_skip(src) != '}')
            rc = read_comp(src, comps, &instr->comp[0]);
    } else if (g->own->kind == ATTR_BRANCH || g->own->kind == ATTR_BRANCHES) {
        src->pos = hlo_at(src, g->value.s);
        rc = g->own->kind == ATTR_BRANCHES
                 ? read_branches(src, comps, instr)
                 : read_branch(src, comps, g->own->which, instr);
    } else if (g->own->kind == ATTR_METADATA) {
        rc = find_string(src, g->value, "op_name", &instr->op_name);
    } else if (g->own->kind == ATTR_FRONTEND) {
        rc = read_frontend(src, g->value, instr);
    } else if (g->own->kind == ATTR_SHARDING) {
        /* a layout says more, and "" that nothing is meant */
        if (!instr->pin || *instr->pin == '{' || *instr->pin == '#')
            instr->pin = hlo_span_dup(src->arena, g->value);
    } else if (g->own->kind == ATTR_EPSILON) {
        char *end;
        instr->epsilon = strtod(g->value.s, &end);
        if (end != g->value.s + g->value.len || !(instr->epsilon >= 0))
            rc = hlo_fail(src, hlo_at(src, g->value.s), "expected a number >= 0");
    } else if (g->own->kind == ATTR_EFFECT) {
        rc = read_bool(src, g->value, &instr->side_effect);
    } else if (g->own->kind == ATTR_WORD) {
        instr->target = hlo_span_dup(src->arena, g->value);
    } else if (g->own->kind == ATTR_TARGET) {
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
    if (ap_names_get(&cache->warned, name.s, name.len) >= 0)
        return;
    ap_names_put(&cache->warned, name.s, name.len, 0);
    hlo_warn(src, hlo_at(src, name.s), "unknown attribute '%.*s' is ignored",
             (int)(name.len < 200 ? name.len : 200), name.s);
}

static int check_required(struct hlo_src *src, const struct given *given, int n,
                          const struct hlo_instr *instr)
{
    ap_attr_set set = ap_attrs_needed(instr->op, AP_ATTR_IN_HLO);

    for (; set; set &= set - 1) {
        const struct ap_attr_info *a = &ap_attr_table[ap_attr_first(set)];
        const char *name = a->hlo ? a->hlo : a->name;
        int j = 0;
        while (j < n && strcmp(given[j].name, name) != 0)
            j++;
        if (j == n)
            return hlo_fail(src, hlo_at(src, instr->opcode.s),
                            "%s needs %s=", ap_ops[instr->op].name, name);
    }
    return 0;
}

/* Name and value of one attribute after its comma. */
static int next_attr(struct hlo_src *src, struct hlo_span *name, struct hlo_span *value)
{
    if (hlo_word(src, "the name of an attribute", name))
        return -1;
    if (hlo_expect(src, '=', "an attribute"))
        return -1;
    return hlo_value(src, value);
}

int hlo_attrs(struct hlo_src *src, struct hlo_attr_cache *cache,
              const struct ap_names *comps, struct hlo_instr *instr)
{
    struct given given[MAX_ATTRS];
    int n = 0;
    while (hlo_eat(src, ',')) {
        struct hlo_span name, value;
        if (next_attr(src, &name, &value))
            return -1;
        if (instr->kind == HLO_UNSUPPORTED)
            continue;
        struct given g = {.value = value};
        if (!find_attr(name, instr->kind, &g)) {
            warn_unknown(src, cache, name);
            continue;
        }
        for (int i = 0; i < n; i++)
            if (given[i].name == g.name)
                return hlo_fail(src, hlo_at(src, name.s), "%s is given twice", g.name);
        if (g.own && g.own->kind == ATTR_SKIP)
            continue;
        if (n == MAX_ATTRS)
            return hlo_fail(src, hlo_at(src, name.s), "too many attributes");
        given[n++] = g;
        if (g.own && read_for_instr(src, comps, &g, instr))
            return -1;
    }
    if (instr->pin && !*instr->pin)
        instr->pin = NULL;
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
    static const char step[] = "autopar.step";
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
        if (hlo_span_is(name, "frontend_attributes") &&
            place_of(value, step) < value.len) { /* others may have any form */
            module->step_pos = hlo_at(src, value.s);
            if (find_string(src, value, step, &module->step))
                return -1;
        }
        size_t i = 0, n = sizeof known / sizeof known[0];
        while (i < n && !hlo_span_is(name, known[i]))
            i++;
        if (i == n)
            warn_unknown(src, cache, name);
    }
    return 0;
}
