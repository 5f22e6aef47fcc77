/*
 * Grammar of HLO text, by recursive descent in one pass: computations, instructions,
 * shapes, operands. The only recursion is over tuple shapes and operands written in
 * place, both bounded.
 */
#include "hlo/hlo_parse.h"

#include "base/array.h"

#include <stdlib.h>
#include <string.h>

#define MAX_DEPTH 64 /* tuples in tuples, operands in operands */

struct parser {
    struct hlo_src *src;
    struct hlo_module *module;
    struct hlo_attr_cache cache;
    struct ap_names names; /* of the computation at hand */
    struct ap_names comps;
    struct hlo_instr *instr; /* of the computation at hand */
    int n_instr, cap_instr;
    struct hlo_comp *comp;
    int n_comp, cap_comp;
    struct ap_buf operands; /* int stack */
};

/* Legal opcodes that are neither in ops.def nor handled by the reader. */
static const char *const other_opcodes[] = {
    "add-dependency",
    "after-all",
    "all-gather-done",
    "all-gather-start",
    "all-reduce-done",
    "all-reduce-start",
    "acos",
    "acosh",
    "asin",
    "async-done",
    "async-start",
    "async-update",
    "atanh",
    "collective-broadcast",
    "collective-permute-done",
    "collective-permute-start",
    "copy-done",
    "copy-start",
    "domain",
    "dynamic-reshape",
    "get-dimension-size",
    "infeed",
    "mulhi",
    "outfeed",
    "partition-id",
    "ragged-all-to-all",
    "ragged-dot",
    "recv",
    "recv-done",
    "replica-id",
    "rng-get-and-update-state",
    "scaled-dot",
    "scan",
    "send",
    "send-done",
    "set-dimension-size",
    "stochastic-convert",
};

/* ---- shapes ---- */

bool hlo_at_shape(struct hlo_src *src)
{
    if (hlo_skip(src) == '(')
        return true;
    const char *s = src->text + src->pos;
    size_t n = 0;
    while ((s[n] >= 'a' && s[n] <= 'z') || (s[n] >= '0' && s[n] <= '9'))
        n++;
    return n && s[n] == '[';
}

/* "{1,0:T(8,128)}" behind a shape. */
static int skip_layout(struct hlo_src *src)
{
    size_t pos = src->pos;
    struct hlo_span skipped;
    if (src->text[pos] != '{')
        return 0;
    const char *p = src->text + pos + 1;
    while (*p == ' ')
        p++;
    if (!(*p >= '0' && *p <= '9') && *p != ':' && *p != '}')
        return 0;
    return hlo_value(src, &skipped);
}

static int array_shape(struct hlo_src *src, struct ap_shape *shape)
{
    struct hlo_span type;
    hlo_skip(src);
    size_t pos = src->pos;
    if (hlo_word(src, "a shape", &type) || hlo_expect(src, '[', "a shape"))
        return -1;
    shape->dtype = ap_dtype_find(type.s, type.len);
    if (shape->dtype >= AP_TUPLE)
        return hlo_refuse(src, pos, "element type '%.*s' is not supported yet",
                          (int)(type.len < 40 ? type.len : 40), type.s);
    int64_t dims[AP_MAX_RANK];
    while (hlo_skip(src) != ']') {
        if (src->text[src->pos] == '<' || src->text[src->pos] == '?')
            return hlo_refuse(src, src->pos, "dynamic dimensions are not supported yet");
        if (shape->rank == AP_MAX_RANK)
            return hlo_refuse(src, src->pos,
                              "more than %d dimensions are not supported yet",
                              AP_MAX_RANK);
        pos = src->pos;
        if (hlo_int(src, "a size", &dims[shape->rank]))
            return -1;
        if (dims[shape->rank++] < 0)
            return hlo_fail(src, pos, "a size must not be negative");
        if (hlo_skip(src) != ']' && hlo_expect(src, ',', "a shape"))
            return -1;
    }
    src->pos++;
    shape->dims = ap_arena_dup(src->arena, dims, (size_t)shape->rank * sizeof dims[0]);
    if (ap_shape_bytes(shape) == INT64_MAX)
        return hlo_fail(src, hlo_at(src, type.s), "the shape has too many elements");
    return skip_layout(src);
}

static int shape_in(struct hlo_src *src, struct ap_shape *shape, int depth)
{
    *shape = (struct ap_shape){0};
    if (!hlo_eat(src, '('))
        return array_shape(src, shape);
    if (depth == MAX_DEPTH)
        return hlo_fail(src, src->pos, "tuples are nested more than %d deep", MAX_DEPTH);
    shape->dtype = AP_TUPLE;
    struct ap_buf parts = {0};
    int rc = 0;
    while (!rc && hlo_skip(src) != ')') {
        struct ap_shape part;
        rc = shape_in(src, &part, depth + 1);
        ap_buf_put(&parts, &part, sizeof part);
        if (!rc && hlo_skip(src) != ')')
            rc = hlo_expect(src, ',', "a tuple shape");
    }
    src->pos += !rc;
    if (!rc) {
        shape->n_parts = (int)(parts.len / sizeof *shape);
        shape->parts = ap_arena_dup(src->arena, parts.data ? parts.data : "", parts.len);
    }
    ap_buf_free(&parts);
    return rc;
}

int hlo_shape(struct hlo_src *src, struct ap_shape *shape)
{
    return shape_in(src, shape, 0);
}

/* ---- operands ---- */

static int parse_rhs(struct parser *p, struct hlo_instr *instr, int depth);

/* Adds an instruction; its id. */
static int add_instr(struct parser *p, const struct hlo_instr *instr)
{
    AP_ROOM(p->instr, p->n_instr, p->cap_instr);
    p->instr[p->n_instr] = *instr;
    p->module->n_instrs++;
    return p->n_instr++;
}

static struct hlo_instr blank_instr(struct parser *p, size_t pos)
{
    hlo_skip(p->src);
    return (struct hlo_instr){
        .pos = pos, .comp = {-1, -1}, .trip_count = -1, .op = AP_N_OPS, .op_name = ""};
}

/* An operand that nobody defined: is it further down, or nowhere? */
static int undefined(struct parser *p, struct hlo_span name, size_t pos)
{
    int n = (int)(name.len < 200 ? name.len : 200);
    const char *stop = strstr(p->src->text + pos, "\n}");
    for (const char *s = p->src->text + pos; (s = strchr(s, '\n'));) {
        if (stop && s >= stop)
            break;
        s += 1 + strspn(s + 1, " \t%");
        if (strncmp(s, "ROOT ", 5) == 0)
            s += 5 + strspn(s + 5, " %");
        if (strncmp(s, name.s, name.len) == 0 && strncmp(s + name.len, " =", 2) == 0)
            return hlo_fail(p->src, pos, "operand '%.*s' is used before its definition",
                            n, name.s);
    }
    return hlo_fail(p->src, pos, "operand '%.*s' is not defined", n, name.s);
}

/* "%x#1#0": element 0 of element 1 of tuple x. */
static int compact_get(struct parser *p, int id, size_t pos, int *out)
{
    while (p->src->text[p->src->pos] == '#') {
        p->src->pos++;
        struct hlo_instr get = blank_instr(p, pos);
        struct ap_attrs *attrs = AP_NEW(p->src->arena, struct ap_attrs);
        if (hlo_int(p->src, "a tuple index", &get.number))
            return -1;
        const struct ap_shape *tuple = &p->instr[id].shape;
        if (get.number < 0 || get.number >= tuple->n_parts)
            return hlo_fail(p->src, pos, "the operand has no element %lld",
                            (long long)get.number);
        *attrs = ap_attrs_default;
        get.kind = HLO_GET;
        get.name = ap_arena_printf(p->src->arena, "%s#%lld", p->instr[id].name,
                                   (long long)get.number);
        get.shape = tuple->parts[get.number];
        get.shape_known = true;
        get.in = ap_arena_dup(p->src->arena, &id, sizeof id);
        get.n_in = 1;
        get.attrs = attrs;
        id = add_instr(p, &get);
    }
    *out = id;
    return 0;
}

static int parse_operand(struct parser *p, int depth, int *out)
{
    struct hlo_src *src = p->src;
    struct ap_shape shape;
    bool shaped = false;
    struct hlo_span name;
    hlo_skip(src);
    size_t pos = src->pos;
    if (hlo_at_shape(src)) {
        if (hlo_shape(src, &shape))
            return -1;
        shaped = true;
        hlo_skip(src);
    }
    size_t at = src->pos;
    if (hlo_name(src, "an operand", &name))
        return -1;
    if (hlo_skip(src) == '(') { /* written in place */
        if (depth == MAX_DEPTH)
            return hlo_fail(src, at, "operands are nested more than %d deep", MAX_DEPTH);
        struct hlo_instr in = blank_instr(p, at);
        in.name =
            ap_arena_printf(src->arena, "%.*s.at%d", (int)(name.len < 40 ? name.len : 40),
                            name.s, p->n_instr);
        src->pos = pos;
        if (parse_rhs(p, &in, depth + 1))
            return -1;
        *out = add_instr(p, &in);
        return 0;
    }
    int id = ap_names_get(&p->names, name.s, name.len);
    if (id < 0)
        return undefined(p, name, at);
    if (compact_get(p, id, at, out))
        return -1;
    if (shaped && p->instr[*out].shape_known &&
        !ap_shape_equal(&shape, &p->instr[*out].shape))
        return hlo_fail(src, pos, "the operand's shape differs from its definition");
    return 0;
}

static int parse_operands(struct parser *p, struct hlo_instr *instr, int depth)
{
    size_t base = p->operands.len;
    while (hlo_skip(p->src) != ')') {
        int id;
        if (parse_operand(p, depth, &id))
            return -1;
        ap_buf_put(&p->operands, &id, sizeof id);
        if (hlo_skip(p->src) != ')' && hlo_expect(p->src, ',', "the operands"))
            return -1;
    }
    size_t bytes = p->operands.len - base;
    instr->n_in = (int)(bytes / sizeof(int));
    if (bytes)
        instr->in = ap_arena_dup(p->src->arena, p->operands.data + base, bytes);
    p->operands.len = base;
    return 0;
}

/* ---- instructions ---- */

static int find_opcode(struct parser *p, struct hlo_instr *instr)
{
    struct hlo_span s = instr->opcode;
    static const struct {
        const char *name;
        enum hlo_kind kind;
    } special[] = {
        {"tuple", HLO_TUPLE},
        {"get-tuple-element", HLO_GET},
        {"call", HLO_CALL},
        {"fusion", HLO_CALL},
        {"map", HLO_MAP},
        {"bitcast", HLO_BITCAST},
        {"custom-call", HLO_CUSTOM_CALL},
        {"opt-barrier", HLO_BARRIER},
        {"while", HLO_WHILE},
        {"conditional", HLO_CONDITIONAL},
        {"rng", HLO_RNG},
        {"rng-bit-generator", HLO_RNG},
        {"batch-norm-training", HLO_BATCH_NORM},
        {"batch-norm-inference", HLO_BATCH_NORM},
        {"batch-norm-grad", HLO_BATCH_NORM},
    };
    for (size_t i = 0; i < sizeof special / sizeof special[0]; i++) {
        instr->kind = special[i].kind;
        if (hlo_span_is(s, special[i].name))
            return 0;
    }
    instr->op = ap_op_find(s.s, s.len);
    instr->kind = HLO_OP;
    if (instr->op < AP_N_OPS && ap_ops[instr->op].class < AP_CLASS_COLLECTIVE)
        return 0;
    instr->kind = HLO_UNSUPPORTED;
    if (instr->op < AP_N_OPS && ap_ops[instr->op].class == AP_CLASS_COLLECTIVE)
        return 0;
    instr->op = AP_N_OPS;
    for (size_t i = 0; i < sizeof other_opcodes / sizeof other_opcodes[0]; i++)
        if (hlo_span_is(s, other_opcodes[i]))
            return 0;
    return hlo_fail(p->src, hlo_at(p->src, s.s), "unknown opcode '%.*s'",
                    (int)(s.len < 100 ? s.len : 100), s.s);
}

/* Shapes that the text may leave out because the operands say them. */
static int infer_shape(struct parser *p, struct hlo_instr *instr)
{
    const struct hlo_instr *in = p->instr;
    bool flat = true; /* tuples of tuples could grow without bound */
    for (int i = 0; i < instr->n_in; i++)
        flat &= in[instr->in[i]].shape.dtype != AP_TUPLE;
    if (instr->kind == HLO_TUPLE && flat) {
        struct ap_shape *parts = AP_NEW_N(p->src->arena, instr->n_in, struct ap_shape);
        for (int i = 0; i < instr->n_in; i++)
            parts[i] = in[instr->in[i]].shape;
        instr->shape =
            (struct ap_shape){.dtype = AP_TUPLE, .n_parts = instr->n_in, .parts = parts};
        return 0;
    }
    bool branches = instr->kind == HLO_CONDITIONAL && instr->n_branches;
    if ((instr->kind == HLO_CALL && instr->comp[0] >= 0) || branches) {
        const struct hlo_comp *comp =
            &p->comp[branches ? instr->branches[0] : instr->comp[0]];
        instr->shape = comp->instr[comp->root].shape;
        return 0;
    }
    if (instr->kind == HLO_WHILE) {
        instr->shape = in[instr->in[0]].shape;
        return 0;
    }
    bool like_operand = instr->kind == HLO_OP && instr->n_in > 0 &&
                        ap_ops[instr->op].class == AP_CLASS_ELEMENTWISE &&
                        instr->op != AP_OP_CONVERT && instr->op != AP_OP_BITCAST_CONVERT;
    if (!like_operand)
        return hlo_refuse(p->src, hlo_at(p->src, instr->opcode.s),
                          "a %.*s without a shape is not supported yet",
                          (int)(instr->opcode.len < 60 ? instr->opcode.len : 60),
                          instr->opcode.s);
    int from = instr->op == AP_OP_CLAMP || instr->op == AP_OP_SELECT;
    instr->shape = in[instr->in[from < instr->n_in ? from : 0]].shape;
    if (instr->op == AP_OP_COMPARE || instr->op == AP_OP_IS_FINITE)
        instr->shape.dtype = AP_PRED;
    return 0;
}

static int check_instr(struct parser *p, const struct hlo_instr *instr)
{
    size_t pos = hlo_at(p->src, instr->opcode.s);
    int arity = instr->kind == HLO_OP        ? ap_ops[instr->op].arity
                : instr->kind == HLO_GET     ? 1
                : instr->kind == HLO_BARRIER ? 1
                : instr->kind == HLO_WHILE   ? 1
                                             : -1;
    bool variadic = instr->op == AP_OP_REDUCE_WINDOW || instr->op == AP_OP_SCATTER;
    if (arity >= 0 && instr->n_in != arity && !(variadic && instr->n_in > arity))
        return hlo_fail(p->src, pos, "%.*s takes %d operand%s, got %d",
                        (int)instr->opcode.len, instr->opcode.s, arity,
                        arity == 1 ? "" : "s", instr->n_in);
    if (instr->kind == HLO_CALL && instr->comp[0] < 0)
        return hlo_fail(p->src, pos,
                        "%.*s needs to_apply= or calls=", (int)instr->opcode.len,
                        instr->opcode.s);
    for (int i = 0; i < instr->n_branches; i++)
        if (instr->branches[i] < 0)
            return hlo_fail(p->src, pos, "conditional needs both branches");
    if (instr->kind == HLO_CONDITIONAL &&
        (!instr->n_branches || instr->n_in != instr->n_branches + 1))
        return hlo_fail(p->src, pos,
                        "conditional needs an operand for each of its branches");
    if (instr->kind == HLO_WHILE && (instr->comp[0] < 0 || instr->comp[1] < 0))
        return hlo_fail(p->src, pos, "while needs condition= and body=");
    return 0;
}

static int parse_rhs(struct parser *p, struct hlo_instr *instr, int depth)
{
    struct hlo_src *src = p->src;
    instr->shape_known = hlo_at_shape(src);
    instr->shape_pos = instr->shape_known ? src->pos : 0;
    if (instr->shape_known && hlo_shape(src, &instr->shape))
        return -1;
    if (hlo_word(src, "an opcode", &instr->opcode) || find_opcode(p, instr))
        return -1;
    if (hlo_expect(src, '(', "an instruction"))
        return -1;
    int rc;
    if (instr->op == AP_OP_PARAMETER) {
        rc = hlo_int(src, "a parameter number", &instr->number);
    } else if (instr->op == AP_OP_CONSTANT) {
        rc = instr->shape_known ? hlo_literal(src, &instr->shape, &instr->literal)
                                : hlo_fail(src, src->pos, "a constant needs a shape");
    } else {
        rc = parse_operands(p, instr, depth);
    }
    if (rc || hlo_expect(src, ')', "an instruction"))
        return -1;
    if (depth == 0) {
        if (hlo_attrs(src, &p->cache, &p->comps, instr))
            return -1;
    } else {
        struct ap_attrs *attrs = AP_NEW(src->arena, struct ap_attrs);
        *attrs = ap_attrs_default;
        instr->attrs = attrs;
    }
    if (instr->kind == HLO_GET)
        instr->number = instr->attrs->index;
    if (check_instr(p, instr))
        return -1;
    if (instr->kind == HLO_GET && !instr->shape_known) {
        const struct ap_shape *tuple = &p->instr[instr->in[0]].shape;
        if (instr->number >= 0 && instr->number < tuple->n_parts) {
            instr->shape = tuple->parts[instr->number];
            instr->shape_known = true;
        }
    }
    if (!instr->shape_known && infer_shape(p, instr))
        return -1;
    instr->shape_known = true;
    return 0;
}

static int parse_instr(struct parser *p, int *root)
{
    struct hlo_src *src = p->src;
    struct hlo_span name;
    hlo_skip(src);
    size_t pos = src->pos;
    if (hlo_name(src, "an instruction", &name))
        return -1;
    bool is_root =
        src->text[pos] != '%' && hlo_span_is(name, "ROOT") && hlo_skip(src) != '=';
    if (is_root) {
        pos = src->pos;
        if (hlo_name(src, "an instruction", &name))
            return -1;
    }
    if (hlo_expect(src, '=', "an instruction"))
        return -1;
    if (ap_names_get(&p->names, name.s, name.len) >= 0)
        return hlo_fail(src, pos, "'%.*s' is defined twice in this computation",
                        (int)(name.len < 200 ? name.len : 200), name.s);
    struct hlo_instr instr = blank_instr(p, pos);
    instr.name = hlo_span_dup(src->arena, name);
    if (parse_rhs(p, &instr, 0))
        return -1;
    int id = add_instr(p, &instr);
    ap_names_put(&p->names, name.s, name.len, id);
    if (is_root && *root >= 0)
        return hlo_fail(src, pos, "a second ROOT in this computation");
    if (is_root)
        *root = id;
    return 0;
}

/* ---- computations ---- */

/* Finds the instruction of every parameter number. */
static int collect_params(struct parser *p, struct hlo_comp *comp)
{
    int n = 0;
    for (int i = 0; i < p->n_instr; i++)
        n += p->instr[i].op == AP_OP_PARAMETER;
    int *params = AP_NEW_N(p->src->arena, n ? n : 1, int);
    memset(params, -1, (size_t)n * sizeof *params);
    for (int i = 0; i < p->n_instr; i++) {
        const struct hlo_instr *instr = &p->instr[i];
        if (instr->op != AP_OP_PARAMETER)
            continue;
        if (instr->number < 0 || instr->number >= n)
            return hlo_fail(p->src, instr->pos,
                            "parameter %lld in a computation of %d parameters",
                            (long long)instr->number, n);
        if (params[instr->number] >= 0)
            return hlo_fail(p->src, instr->pos, "parameter %lld is defined twice",
                            (long long)instr->number);
        params[instr->number] = i;
    }
    comp->params = params;
    comp->n_params = n;
    return 0;
}

static int finish_comp(struct parser *p, struct hlo_comp *comp, int root)
{
    if (!p->n_instr)
        return hlo_fail(p->src, comp->pos, "computation '%.200s' has no instructions",
                        comp->name);
    comp->root = root < 0 ? p->n_instr - 1 : root;
    comp->n = p->n_instr;
    if (collect_params(p, comp))
        return -1;
    comp->instr =
        ap_arena_dup(p->src->arena, p->instr, (size_t)p->n_instr * sizeof *p->instr);
    AP_ROOM(p->comp, p->n_comp, p->cap_comp);
    p->comp[p->n_comp++] = *comp;
    return 0;
}

static int parse_comp(struct parser *p)
{
    struct hlo_src *src = p->src;
    struct hlo_span name, skipped;
    struct ap_shape result;
    hlo_skip(src);
    struct hlo_comp comp = {.pos = src->pos};
    if (hlo_name(src, "a computation", &name))
        return -1;
    bool entry = src->text[comp.pos] != '%' && hlo_span_is(name, "ENTRY") &&
                 (hlo_skip(src) == '%' || hlo_at_word(src));
    if (entry) {
        comp.pos = src->pos;
        if (hlo_name(src, "a computation", &name))
            return -1;
    }
    if (hlo_skip(src) == '(') {
        if (hlo_value(src, &skipped))
            return -1;
        if (!hlo_eat_str(src, "->"))
            return hlo_fail(src, src->pos, "expected '->' and the result's shape");
        if (hlo_shape(src, &result))
            return -1;
    }
    size_t open = (hlo_skip(src), src->pos);
    if (hlo_expect(src, '{', "a computation"))
        return -1;
    comp.name = hlo_span_dup(src->arena, name);
    if (ap_names_get(&p->comps, name.s, name.len) >= 0)
        return hlo_fail(src, comp.pos, "computation '%.200s' is defined twice",
                        comp.name);
    p->n_instr = 0;
    ap_names_clear(&p->names);
    int root = -1;
    while (hlo_skip(src) != '}') {
        if (src->pos >= src->len)
            return hlo_fail(src, open, "this '{' is not closed: the text is truncated");
        if (parse_instr(p, &root))
            return -1;
    }
    src->pos++;
    while (hlo_eat(src, ',')) /* execution_thread="main" */
        if (hlo_word(src, "an attribute", &skipped) ||
            hlo_expect(src, '=', "an attribute") || hlo_value(src, &skipped))
            return -1;
    if (finish_comp(p, &comp, root))
        return -1;
    ap_names_put(&p->comps, name.s, name.len, p->n_comp - 1);
    if (entry && p->module->entry >= 0)
        return hlo_fail(src, comp.pos, "a second ENTRY");
    if (entry)
        p->module->entry = p->n_comp - 1;
    return 0;
}

/* FileNames, FunctionNames, FileLocations and StackFrames: lines "1 "name"" or "1 {...}".
 */
static bool skip_table(struct hlo_src *src, int *rc)
{
    static const char *const tables[] = {"FileNames", "FunctionNames", "FileLocations",
                                         "StackFrames"};
    size_t back = src->pos;
    struct hlo_span word, skipped;
    int64_t number;
    *rc = 0;
    if (!hlo_at_word(src) || hlo_word(src, "a table", &word))
        return false;
    size_t i = 0;
    while (i < 4 && !hlo_span_is(word, tables[i]))
        i++;
    char c = hlo_skip(src);
    if (i == 4 || c == '{' || c == '(') {
        src->pos = back;
        return false;
    }
    while (!*rc && hlo_skip(src) >= '0' && src->text[src->pos] <= '9') {
        *rc = hlo_int(src, "a number", &number);
        *rc = *rc || hlo_value(src, &skipped) ? -1 : 0;
    }
    return true;
}

/* Without a word the last computation is the entry, but not if it cannot be. */
static int check_entry(struct parser *p)
{
    const struct hlo_module *m = p->module;
    const bool named = m->entry >= 0;
    const struct hlo_comp *comp = &p->comp[named ? m->entry : p->n_comp - 1];

    if (m->n_params >= 0 && comp->n_params != m->n_params)
        return hlo_fail(p->src, comp->pos,
                        "%s '%.200s' has %d parameters, entry_computation_layout %d%s",
                        named ? "ENTRY" : "no computation is the ENTRY, and the last one",
                        comp->name, comp->n_params, m->n_params,
                        named ? "" : ": the text is truncated");
    if (!named)
        p->module->entry = p->n_comp - 1;
    return 0;
}

static int parse_module(struct parser *p)
{
    struct hlo_src *src = p->src;
    struct hlo_span name;
    p->module->name = "module";
    p->module->entry = p->module->n_params = -1;
    if (src->len > 3 && memcmp(src->text, "\xef\xbb\xbf", 3) == 0)
        src->pos = 3; /* byte order mark */
    if (hlo_at_word(src) && hlo_eat_str(src, "HloModule ")) {
        if (hlo_name(src, "the module's name", &name))
            return -1;
        p->module->name = hlo_span_dup(src->arena, name);
        if (hlo_header_attrs(src, &p->cache, p->module))
            return -1;
    }
    while (hlo_skip(src), src->pos < src->len) {
        int rc;
        if (skip_table(src, &rc) ? rc : parse_comp(p))
            return -1;
    }
    if (!p->n_comp)
        return hlo_fail(src, src->pos, "no computation in the text");
    return check_entry(p);
}

int hlo_parse(struct hlo_src *src, struct hlo_module *module)
{
    struct parser p = {.src = src, .module = module};
    *module = (struct hlo_module){0};
    int rc = parse_module(&p);
    module->comps = ap_arena_dup(src->arena, p.comp ? (const void *)p.comp : "",
                                 (size_t)p.n_comp * sizeof *p.comp);
    module->n_comps = p.n_comp;
    hlo_attr_cache_free(&p.cache);
    ap_names_free(&p.names);
    ap_names_free(&p.comps);
    ap_buf_free(&p.operands);
    free(p.instr);
    free(p.comp);
    return rc;
}
