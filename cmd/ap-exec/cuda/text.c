/*
 * Kernels as text. An elementwise operator is a call of a device function that is made
 * from the same expression as the CPU's loop (formulas.h): FLOAT_FORMULAS and its kin are
 * expanded to the text of functions NAME_type(x, y), which stand after the prelude, and
 * to a table of their names.
 */
#include "cuda.h"
#include "graph/formulas.h"

#include <stdio.h>
#include <string.h>

void text_append(struct ap_buf *out, const struct ap_buf *src)
{
    if (src->len)
        ap_buf_put(out, src->data, src->len);
}

/* ---- types ---- */

struct type {
    const char *name, *storage, *reg; /* name: HLO's, as functions end */
};
static const struct type types[AP_N_DTYPES] = {
    [AP_PRED] = {"pred", "uint8_t", "uint8_t"},
    [AP_S8] = {"s8", "int8_t", "int8_t"},
    [AP_S16] = {"s16", "int16_t", "int16_t"},
    [AP_S32] = {"s32", "int32_t", "int32_t"},
    [AP_S64] = {"s64", "int64_t", "int64_t"},
    [AP_U8] = {"u8", "uint8_t", "uint8_t"},
    [AP_U16] = {"u16", "uint16_t", "uint16_t"},
    [AP_U32] = {"u32", "uint32_t", "uint32_t"},
    [AP_U64] = {"u64", "uint64_t", "uint64_t"},
    [AP_F16] = {"f16", "f16", "float"},
    [AP_BF16] = {"bf16", "bf16", "float"},
    [AP_F32] = {"f32", "float", "float"},
    [AP_F64] = {"f64", "double", "double"},
    [AP_F8E4M3FN] = {"f8e4m3fn", "f8e4m3fn", "float"},
    [AP_F8E5M2] = {"f8e5m2", "f8e5m2", "float"},
    [AP_C64] = {"c64", "c64", "c64"},
};

bool text_computes(enum ap_dtype dtype)
{
    return types[dtype].name != NULL;
}

const char *text_storage(enum ap_dtype dtype)
{
    return types[dtype].storage;
}

const char *text_register(enum ap_dtype dtype)
{
    return types[dtype].reg;
}

const char *text_word(int size)
{
    return size == 1   ? "uint8_t"
           : size == 2 ? "uint16_t"
           : size == 4 ? "uint32_t"
           : size == 8 ? "uint64_t"
                       : "pack<uint64_t, 2>";
}

const char *text_round(enum ap_dtype dtype)
{
    static const char *const round[AP_N_DTYPES] = {[AP_BF16] = "round_bf16",
                                                   [AP_F16] = "round_f16",
                                                   [AP_F8E4M3FN] = "round_f8e4m3fn",
                                                   [AP_F8E5M2] = "round_f8e5m2"};
    return round[dtype] ? round[dtype] : "";
}

/* Of the type that registers have. */
static const char *kind_name(enum ap_dtype dtype)
{
    return cpu_is_plain(dtype) ? types[dtype].name : "f32";
}

/* ---- the operators' functions ---- */

#define UNARY_TEXT(OP, S, T, expr) \
    "static inline " #T " " #OP "_" #S "(" #T " x)\n{ return (" #T ")(" #expr "); }\n"
#define BINARY_TEXT(OP, S, T, expr)                                                     \
    "static inline " #T " " #OP "_" #S "(" #T " x, " #T " y)\n{ return (" #T ")(" #expr \
    "); }\n"
#define FINITE_TEXT(S, T, expr) \
    "static inline uint8_t IS_FINITE_" #S "(" #T " x)\n{ return " #expr "; }\n"
#define CLAMP_TEXT(S, T, expr)                                                         \
    "static inline " #T " CLAMP_" #S "(" #T " lo, " #T " x, " #T " hi)\n{ return (" #T \
    ")(" #expr "); }\n"
#define POWER_TEXT(S, T, U, W)                                                     \
    "static inline " #T " power_" #S "(" #T " x, " #T " y)\n{ return power_of<" #T \
    ", " #U ", " #W ">(x, y); }\n"
#define UNARY_PART_TEXT(OP, S, A, R, expr) \
    "static inline " #R " " #OP "_" #S "(" #A " x)\n{ return " #expr "; }\n"
#define BINARY_PART_TEXT(OP, S, A, R, expr) \
    "static inline " #R " " #OP "_" #S "(" #A " x, " #A " y)\n{ return " #expr "; }\n"
#define FLOATS_TEXT(S, T, f)                         \
    FLOAT_FORMULAS(UNARY_TEXT, BINARY_TEXT, T, S, f) \
    FLOAT_FINITE(FINITE_TEXT, S, T, f) FLOAT_CLAMP(CLAMP_TEXT, S, T)
#define SIGNED_TEXT(S, T, U, W, V) \
    POWER_TEXT(S, T, U, W)         \
    SIGNED_FORMULAS(UNARY_TEXT, BINARY_TEXT, S, T, U, W) INT_CLAMP(CLAMP_TEXT, S, T)
#define UNSIGNED_TEXT(S, T, U, W, V) \
    POWER_TEXT(S, T, U, W)           \
    UNSIGNED_FORMULAS(UNARY_TEXT, BINARY_TEXT, S, T, U, V) INT_CLAMP(CLAMP_TEXT, S, T)

const char cuda_formulas[] = FLOATS_TEXT(f32, float, f) FLOATS_TEXT(f64, double, )
    SIGNED_TYPES(SIGNED_TEXT) UNSIGNED_TYPES(
        UNSIGNED_TEXT) "static inline uint8_t NOT_pred(uint8_t x)\n{ return !x; }\n";
const char cuda_complex_formulas[] = COMPLEX_FORMULAS(UNARY_TEXT, BINARY_TEXT)
    COMPLEX_PARTS(UNARY_PART_TEXT, BINARY_PART_TEXT);

#define NAME_ROW(OP, S, T, expr) [AP_OP_##OP] = #OP,
static const char *const float_names[AP_N_OPS] = {
    FLOAT_FORMULAS(NAME_ROW, NAME_ROW, float, f32, f)[AP_OP_IS_FINITE] = "IS_FINITE",
    [AP_OP_CLAMP] = "CLAMP", [AP_OP_COMPLEX] = "COMPLEX"};
static const char *const complex_names[AP_N_OPS] = {
    COMPLEX_FORMULAS(NAME_ROW, NAME_ROW)[AP_OP_ABS] = "ABS", [AP_OP_IMAG] = "IMAG",
    [AP_OP_REAL] = "REAL"};
static const char *const int_names[AP_N_OPS] = {
    SIGNED_FORMULAS(NAME_ROW, NAME_ROW, s32, int32_t, uint32_t, uint32_t)[AP_OP_CLAMP] =
        "CLAMP"};
/* pred: 0 or 1; the functions are u8's but for `not` */
static const char *const pred_names[AP_N_OPS] = {
    [AP_OP_NOT] = "NOT_pred",  [AP_OP_AND] = "AND_u8",     [AP_OP_OR] = "OR_u8",
    [AP_OP_XOR] = "XOR_u8",    [AP_OP_ADD] = "OR_u8",      [AP_OP_MULTIPLY] = "AND_u8",
    [AP_OP_MAXIMUM] = "OR_u8", [AP_OP_MINIMUM] = "AND_u8", [AP_OP_CLAMP] = "CLAMP_u8"};

/* The function of an operator on registers of dtype; false if there is none. */
static bool function_name(enum ap_op op, enum ap_dtype dtype, char name[48])
{
    const bool is_float = ap_dtype_is_float(dtype);
    const char *base = dtype == AP_PRED  ? pred_names[op]
                       : dtype == AP_C64 ? complex_names[op]
                       : is_float        ? float_names[op]
                                         : int_names[op];
    if (!base || !text_computes(dtype))
        return false;
    if (dtype == AP_PRED)
        snprintf(name, 48, "%s", base);
    else
        snprintf(name, 48, "%s_%s", base, kind_name(dtype));
    return true;
}

/* ---- expressions ---- */

static void compare(struct ap_buf *out, const struct ap_attrs *a,
                    const struct text_operand *in)
{
    static const char *const sign[] = {"==", "!=", ">=", ">", "<=", "<"};
    if (a->total_order && ap_dtype_is_float(in[0].dtype))
        ap_buf_printf(out, "ordered_%s(%s) %s ordered_%s(%s)", kind_name(in[0].dtype),
                      in[0].name, sign[a->direction], kind_name(in[0].dtype), in[1].name);
    else
        ap_buf_printf(out, "%s %s %s", in[0].name, sign[a->direction], in[1].name);
}

/* Between a narrow float's register and its bits, or between types of one size. */
static int bitcast(struct ap_buf *out, const struct ap_node *v,
                   const struct text_operand *in)
{
    const enum ap_dtype from = in[0].dtype, to = v->shape.dtype;
    if (from == to)
        ap_buf_puts(out, in[0].name);
    else if (cpu_is_plain(from) && cpu_is_plain(to))
        ap_buf_printf(out, "bits_as<%s>(%s)", text_register(to), in[0].name);
    else if (cpu_is_plain(to))
        ap_buf_printf(out, "(%s)to_%s(%s).bits", text_register(to), types[from].name,
                      in[0].name);
    else if (cpu_is_plain(from))
        ap_buf_printf(out, "value_of(bits_as<%s>(%s))", text_storage(to), in[0].name);
    else
        return -1;
    return 0;
}

static int reduce_precision(struct exec *x, struct ap_buf *out, const struct ap_node *v,
                            const struct text_operand *in, struct ap_err *err)
{
    const struct ap_attrs *a = v->attrs;
    if (a->exponent_bits < 2 || a->exponent_bits > 8 || a->mantissa_bits < 1)
        return exec_unsupported(x, v, err, "these widths");
    ap_buf_printf(out, "%s(reduce_precision(%s, %d, %d))", text_round(v->shape.dtype),
                  in[0].name, (int)a->exponent_bits, (int)a->mantissa_bits);
    return 0;
}

/* Operators that are a call of their function. */
static int function(struct exec *x, struct ap_buf *out, const struct ap_node *v,
                    const struct text_operand *in, struct ap_err *err)
{
    char name[48];
    if (!function_name(v->op, in[0].dtype, name))
        return exec_unsupported(x, v, err, ap_dtype_name(in[0].dtype));
    ap_buf_printf(out, "%s(%s(", text_round(v->shape.dtype), name);
    for (int i = 0; i < v->n_in; i++)
        ap_buf_printf(out, "%s%s", i ? ", " : "", in[i].name);
    ap_buf_puts(out, "))");
    return 0;
}

int text_node(struct exec *x, struct ap_buf *out, const struct ap_node *v,
              const struct text_operand *in, struct ap_err *err)
{
    const enum ap_dtype to = v->shape.dtype;
    const bool of_complex = in[0].dtype == AP_C64;
    for (int i = 0; i < v->n_in; i++)
        if (!text_computes(in[i].dtype))
            return exec_unsupported(x, v, err, ap_dtype_name(in[i].dtype));
    if (!text_computes(to) ||
        (of_complex && ((v->op == AP_OP_CONVERT && to != AP_C64) ||
                        (v->op == AP_OP_COMPARE && v->attrs->direction > AP_NE))))
        return exec_unsupported(x, v, err, ap_dtype_name(of_complex ? AP_C64 : to));
    switch ((int)v->op) {
    case AP_OP_COPY:
    case AP_OP_OPT_BARRIER:
        ap_buf_puts(out, in[0].name);
        return 0;
    case AP_OP_CONVERT:
        ap_buf_printf(out, "%s(to_%s(%s))", text_round(to), kind_name(to), in[0].name);
        return 0;
    case AP_OP_BITCAST_CONVERT:
        return bitcast(out, v, in) ? exec_unsupported(x, v, err, ap_dtype_name(to)) : 0;
    case AP_OP_SELECT:
        ap_buf_printf(out, "%s ? %s : %s", in[0].name, in[1].name, in[2].name);
        return 0;
    case AP_OP_COMPARE:
        compare(out, v->attrs, in);
        return 0;
    case AP_OP_REDUCE_PRECISION:
        return in[0].dtype == AP_F64 || !ap_dtype_is_float(in[0].dtype)
                   ? exec_unsupported(x, v, err, ap_dtype_name(in[0].dtype))
                   : reduce_precision(x, out, v, in, err);
    }
    return function(x, out, v, in, err);
}

void text_constant(struct ap_buf *out, enum ap_dtype dtype, const void *value)
{
    uint64_t bits = 0;
    memcpy(&bits, value, (size_t)ap_dtype_size(dtype));
    if (!cpu_is_plain(dtype))
        ap_buf_printf(out, "value_of(%s{0x%llx})", text_storage(dtype),
                      (unsigned long long)bits);
    else if (dtype == AP_F32)
        ap_buf_printf(out, "ap_float_from_bits(0x%llxu)", (unsigned long long)bits);
    else if (dtype == AP_C64)
        ap_buf_printf(out, "bits_as<c64>((uint64_t)0x%llxull)", (unsigned long long)bits);
    else if (dtype == AP_F64)
        ap_buf_printf(out, "bits_as<double>((uint64_t)0x%llxull)",
                      (unsigned long long)bits);
    else
        ap_buf_printf(out, "(%s)0x%llxull", text_register(dtype),
                      (unsigned long long)bits);
}

/* ---- reducers ---- */

int text_body(struct exec *x, struct ap_buf *out, const char *name,
              const struct ap_reducer *red, struct ap_err *err)
{
    ap_buf_printf(out, "static inline void %s(", name);
    for (int i = 0; i < red->n_nodes; i++)
        if (red->nodes[i].op == AP_OP_PARAMETER)
            ap_buf_printf(out, "%s v%d, ", text_register(red->nodes[i].shape.dtype), i);
    for (int i = 0; i < red->n_results; i++)
        ap_buf_printf(out, "%s%s &r%d", i ? ", " : "",
                      text_register(red->nodes[red->results[i]].shape.dtype), i);
    ap_buf_puts(out, ")\n{\n");
    for (int i = 0; i < red->n_nodes; i++) {
        const struct ap_node *v = &red->nodes[i];
        struct text_operand in[3] = {{v->shape.dtype, ""}};
        if (v->op == AP_OP_PARAMETER)
            continue;
        if (v->op != AP_OP_CONSTANT && ap_ops[v->op].class != AP_CLASS_ELEMENTWISE)
            return exec_unsupported(x, v, err, "inside a reducer");
        if (!text_computes(v->shape.dtype))
            return exec_unsupported(x, v, err, ap_dtype_name(v->shape.dtype));
        ap_buf_printf(out, "    const %s v%d = ", text_register(v->shape.dtype), i);
        for (int k = 0; k < v->n_in && k < 3; k++) {
            in[k].dtype = red->nodes[v->in[k]].shape.dtype;
            snprintf(in[k].name, sizeof in[k].name, "v%d", v->in[k]);
        }
        if (v->op == AP_OP_CONSTANT)
            text_constant(out, v->shape.dtype, v->attrs->literal.data);
        else if (text_node(x, out, v, in, err))
            return -1;
        ap_buf_puts(out, ";\n");
    }
    for (int i = 0; i < red->n_results; i++)
        ap_buf_printf(out, "    r%d = v%d;\n", i, red->results[i]);
    ap_buf_puts(out, "}\n");
    return 0;
}

int text_combine(struct exec *x, struct ap_buf *out, const char *name,
                 const struct ap_node *v, int reducer, struct ap_err *err)
{
    const struct ap_reducer *red = &x->prog->local.reducers[reducer];
    const enum ap_dtype dtype = v->shape.dtype;
    const char *reg = text_computes(dtype) ? text_register(dtype) : "";
    const bool known = red->red != AP_RED_NONE && red->red != AP_RED_ASSIGN;
    char fn[48], body[64];
    if (!text_computes(dtype) ||
        (known && !function_name(cpu_red_op(red->red), dtype, fn)))
        return exec_unsupported(x, v, err, ap_dtype_name(dtype));
    if (known) { /* sums of narrow floats are rounded once, at the end */
        ap_buf_printf(out, "static inline %s %s(%s x, %s y) { return %s(x, y); }\n", reg,
                      name, reg, reg, fn);
        return 0;
    }
    if (red->n_nodes == 0)
        return exec_unsupported(x, v, err, "with a reducer that has no body");
    snprintf(body, sizeof body, "%s_body", name);
    if (text_body(x, out, body, red, err))
        return -1;
    ap_buf_printf(out,
                  "static inline %s %s(%s x, %s y) { %s r; %s(x, y, r); return r; }\n",
                  reg, name, reg, reg, reg, body);
    return 0;
}

/* ---- indices ---- */

struct text_index text_index(int64_t elems)
{
    const bool wide = elems > INT32_MAX - CUDA_BLOCK * 16;
    return (struct text_index){wide, wide ? "uint64_t" : "uint32_t",
                               wide ? "int64_t" : "int", wide ? "ull" : "u"};
}

/* Whether places are too far from each other for an int. */
static bool is_far(int rank, const int64_t *n, const int64_t *stride)
{
    int64_t reach = 0;
    for (int d = 0; d < rank; d++)
        if (n[d] > 1)
            reach = ap_add64(reach,
                             ap_mul64(n[d] - 1, stride[d] < 0 ? -stride[d] : stride[d]));
    return reach > INT32_MAX;
}

void text_offset(struct ap_buf *out, const struct text_index *t, const char *i, int rank,
                 const int64_t *n, const int64_t *stride)
{
    const char *type = is_far(rank, n, stride) ? "int64_t" : t->s;
    int64_t run = 1;
    bool any = false;
    ap_buf_puts(out, "(");
    for (int d = rank - 1; d >= 0; d--) {
        if (stride[d] != 0 && n[d] > 1) {
            ap_buf_printf(out, "%s(%s)(%s", any ? " + " : "", type, i);
            if (run > 1)
                ap_buf_printf(out, " / %lld%s", (long long)run, t->suffix);
            if (d > 0)
                ap_buf_printf(out, " %% %lld%s", (long long)n[d], t->suffix);
            ap_buf_puts(out, ")");
            if (stride[d] != 1)
                ap_buf_printf(out, " * (%lld)", (long long)stride[d]);
            any = true;
        }
        run *= n[d];
    }
    ap_buf_puts(out, any ? ")" : "0)");
}

void text_thread(struct ap_buf *out, const struct text_index *t, int block, int64_t n)
{
    ap_buf_printf(out,
                  "    const %s i = (%s)blockIdx.x * %d + threadIdx.x;\n"
                  "    if (i >= %lld%s)\n        return;\n",
                  t->u, t->u, block, (long long)n, t->suffix);
}
