/*
 * Random numbers in plain operators, so that every element's bits follow from its place
 * in the whole array and the state alone, however the array is split.
 *
 * rng-bit-generator gives XLA's bits. A block is w words of 32 bits made of the key and a
 * counter, which starts from the state. PHILOX and DEFAULT are Philox-4x32 with 10 rounds
 * (w = 4): element i of the array in row-major order is word i mod w of block i / w.
 * THREE_FRY is Threefry-2x32 with 20 rounds (w = 2): blocks lie over an array in which
 * the first even dimension, or the longest if all are odd, has half the length, rounded
 * up, and both words after one another in it. 64 bits are two words of a block; Salmon
 * et al., "Parallel random numbers: as easy as 1, 2, 3", sections 2 and 4. Every element
 * computes its own block and picks its word: w times the work, no element that another
 * device must send.
 *
 * rng has no state: its bits are Threefry's, of the instruction's number and the
 * element's place. They are not XLA's, and the same in every step.
 */
#include "emit.h"

#include <string.h>

#define WORD(b, x, dtype) emit_recast(&(b)->e, AP_OP_CONVERT, x, dtype)

struct bits {
    struct emit e;
    struct ap_shape like; /* u32, dimensions of the result */
};

static int op2(const struct bits *b, enum ap_op op, int x, int y)
{
    return emit_binary(&b->e, op, x, y);
}

static int with(const struct bits *b, enum ap_op op, int x, int64_t v)
{
    return emit_with(&b->e, op, x, v);
}

static int word(const struct bits *b, int64_t v)
{
    return emit_int(&b->e, AP_U32, v, &b->like);
}

/* Row-major place of each element, u64, in an array where `split` (-1: none) is halved.
 */
static int place(const struct bits *b, int split)
{
    struct ap_shape wide = b->like;
    int sum = emit_int(&b->e, AP_U64, 0, &wide);
    int64_t stride = 1;
    for (int d = wide.rank - 1; d >= 0; d--) {
        int64_t n = d == split ? ap_ceil_div(wide.dims[d], 2) : wide.dims[d];
        if (n > 1) {
            int at = emit_iota(&b->e, AP_U64, &wide, d);
            if (d == split)
                at = with(b, AP_OP_SHIFT_RIGHT_LOGICAL, at, 1);
            sum = op2(b, AP_OP_ADD, sum, with(b, AP_OP_MULTIPLY, at, stride));
        }
        stride = ap_mul64(stride, n);
    }
    return sum;
}

/* The dimension whose neighbours share a block of two words, -1 of a scalar. */
static int paired_dim(const struct ap_shape *s)
{
    int longest = s->rank - 1;
    for (int d = 0; d < s->rank; d++)
        if (s->dims[d] % 2 == 0)
            return d;
    for (int d = s->rank - 1; d >= 0; d--)
        longest = s->dims[d] >= s->dims[longest] ? d : longest;
    return longest;
}

static int low(const struct bits *b, int x)
{
    return WORD(b, x, AP_U32);
}

static int high(const struct bits *b, int x)
{
    return WORD(b, with(b, AP_OP_SHIFT_RIGHT_LOGICAL, x, 32), AP_U32);
}

/* ---- Threefry-2x32 ---- */

static void threefry(const struct bits *b, const int key[2], int x[2])
{
    static const int rotations[8] = {13, 15, 26, 6, 17, 29, 16, 24};
    int ks[3] = {key[0], key[1], 0};
    ks[2] = with(b, AP_OP_XOR, op2(b, AP_OP_XOR, key[0], key[1]), 0x1BD11BDA);
    x[0] = op2(b, AP_OP_ADD, x[0], ks[0]);
    x[1] = op2(b, AP_OP_ADD, x[1], ks[1]);
    for (int i = 0; i < 5; i++) {
        for (int k = 0; k < 4; k++) {
            int r = rotations[4 * (i % 2) + k];
            int left = with(b, AP_OP_SHIFT_LEFT, x[1], r);
            int right = with(b, AP_OP_SHIFT_RIGHT_LOGICAL, x[1], 32 - r);
            x[0] = op2(b, AP_OP_ADD, x[0], x[1]);
            x[1] = op2(b, AP_OP_XOR, op2(b, AP_OP_OR, left, right), x[0]);
        }
        x[0] = op2(b, AP_OP_ADD, x[0], ks[(i + 1) % 3]);
        x[1] = with(b, AP_OP_ADD, op2(b, AP_OP_ADD, x[1], ks[(i + 2) % 3]), i + 1);
    }
}

/* ---- Philox-4x32 ---- */

/* High and low word of x times m. */
static void product(const struct bits *b, int x, int64_t m, int out[2])
{
    int wide = with(b, AP_OP_MULTIPLY, WORD(b, x, AP_U64), m);
    out[0] = high(b, wide);
    out[1] = low(b, wide);
}

static void philox(const struct bits *b, const int key[2], int x[4])
{
    int k0 = key[0], k1 = key[1];
    for (int i = 0; i < 10; i++) {
        int p[2], q[2];
        product(b, x[0], 0xD2511F53, p);
        product(b, x[2], 0xCD9E8D57, q);
        x[0] = op2(b, AP_OP_XOR, op2(b, AP_OP_XOR, q[0], x[1]), k0);
        x[1] = q[1];
        x[2] = op2(b, AP_OP_XOR, op2(b, AP_OP_XOR, p[0], x[3]), k1);
        x[3] = p[1];
        k0 = with(b, AP_OP_ADD, k0, 0x9E3779B9);
        k1 = with(b, AP_OP_ADD, k1, 0xBB67AE85);
    }
}

/* ---- rng-bit-generator ---- */

struct generator {
    struct bits b;
    bool three_fry;
    int words;        /* of 32 bits in a block */
    int n_state;      /* words of 64 bits */
    int state, at[3]; /* the state, and its words as scalars */
    int size;         /* bytes of an element */
};

/* Element i of a vector, as a scalar. */
static int element(const struct emit *e, int x, int64_t i)
{
    struct ap_arena *arena = e->f->im->src->arena;
    struct ap_shape one = *emit_shape(e, x);
    struct ap_slice_dim slice = {i, i + 1, 1};
    struct ap_attrs *a = emit_attrs(e);
    int64_t size = 1;
    one.dims = ap_arena_dup(arena, &size, sizeof size);
    a->slice = ap_arena_dup(arena, &slice, sizeof slice);
    a->n_slice = 1;
    return emit_reshape(e, emit_op(e, AP_OP_SLICE, 1, &x, &one, a), 0, &size);
}

/* Scalars as a vector of the state's type. */
static int vector(const struct generator *g)
{
    const struct emit *e = &g->b.e;
    struct ap_shape shape = *emit_shape(e, g->state);
    struct ap_attrs *a = emit_attrs(e);
    int64_t zero = 0, one = 1;
    int parts[3];
    for (int i = 0; i < g->n_state; i++)
        parts[i] = emit_reshape(e, g->at[i], 1, &one);
    a->dimensions.n = 1;
    a->dimensions.v = ap_arena_dup(e->f->im->src->arena, &zero, sizeof zero);
    return emit_op(e, AP_OP_CONCATENATE, g->n_state, parts, &shape, a);
}

/* A scalar of the state for every element. */
static int spread(const struct generator *g, int i)
{
    return emit_spread(&g->b.e, g->at[i], &g->b.like);
}

/* One of the n (1, 2 or 4) words by the low bits of `which`. */
static int pick(const struct bits *b, const int *x, int n, int which)
{
    if (n == 1)
        return x[0];
    int bit = with(b, AP_OP_AND, which, n / 2);
    int zero = emit_int(&b->e, emit_shape(&b->e, which)->dtype, 0, &b->like);
    int upper = emit_compare(&b->e, AP_NE, bit, zero);
    return emit_select(&b->e, upper, pick(b, x + n / 2, n / 2, which),
                       pick(b, x, n / 2, which));
}

/* The words of each element's block. */
static void block_of(const struct generator *g, int block, int x[4])
{
    const struct bits *b = &g->b;
    int state = spread(g, 0), key[2] = {low(b, state), high(b, state)};
    int base = spread(g, 1), counter = op2(b, AP_OP_ADD, base, block);
    x[0] = low(b, counter);
    x[1] = high(b, counter);
    if (g->three_fry) {
        threefry(b, key, x);
        return;
    }
    int top = g->n_state == 3 ? spread(g, 2) : state;
    int carry = emit_compare(&b->e, AP_LT, counter, base);
    top = op2(b, AP_OP_ADD, top, WORD(b, carry, AP_U64));
    x[2] = low(b, top);
    x[3] = high(b, top);
    philox(b, key, x);
}

/* Blocks, and for each element its block and the number of its word in it. */
struct cut {
    int64_t n_blocks;
    int block, which;
};

static struct cut cut_blocks(const struct generator *g)
{
    const struct bits *b = &g->b;
    int per_block = g->size == 8 ? g->words / 2 : g->words, shift = 0;
    struct cut c = {.n_blocks = ap_ceil_div(ap_shape_elems(&b->like), per_block)};
    if (!g->three_fry || g->size == 8) {
        while (1 << shift < per_block)
            shift++;
        c.which = place(b, -1);
        c.block = with(b, AP_OP_SHIFT_RIGHT_LOGICAL, c.which, shift);
        return c;
    }
    struct ap_shape wide = b->like;
    int split = paired_dim(&wide);
    c.block = place(b, split);
    c.which = split < 0 ? emit_int(&b->e, AP_U64, 0, &wide)
                        : emit_iota(&b->e, AP_U64, &wide, split);
    c.n_blocks = 1;
    for (int d = 0; d < wide.rank; d++)
        c.n_blocks *= d == split ? ap_ceil_div(wide.dims[d], 2) : wide.dims[d];
    return c;
}

static int generate(const struct generator *g, const struct cut *c, enum ap_dtype dtype)
{
    const struct bits *b = &g->b;
    int per_block = g->size == 8 ? g->words / 2 : g->words, x[4];
    block_of(g, c->block, x);
    if (g->size < 8)
        return emit_recast(&b->e, AP_OP_CONVERT, pick(b, x, per_block, c->which), dtype);
    int even[2] = {x[0], x[2]}, odd[2] = {x[1], x[3]};
    int lo = WORD(b, pick(b, even, per_block, c->which), AP_U64);
    int hi = WORD(b, pick(b, odd, per_block, c->which), AP_U64);
    int bits = op2(b, AP_OP_OR, lo, with(b, AP_OP_SHIFT_LEFT, hi, 32));
    return emit_recast(&b->e, AP_OP_BITCAST_CONVERT, bits, dtype);
}

/* The state n blocks further. */
static int advance(struct generator *g, int64_t n)
{
    const struct emit *e = &g->b.e;
    int before = g->at[1];
    g->at[1] = emit_with(e, AP_OP_ADD, before, n);
    if (g->n_state == 3) {
        int carry = emit_compare(e, AP_LT, g->at[1], before);
        carry = emit_recast(e, AP_OP_CONVERT, carry, AP_U64);
        g->at[2] = emit_binary(e, AP_OP_ADD, g->at[2], carry);
    }
    return vector(g);
}

static int bit_generator(struct emit *e, struct value *out)
{
    const struct hlo_instr *instr = e->instr;
    struct hlo_src *src = e->f->im->src;
    const struct ap_shape *shape = &instr->shape;
    const char *name = instr->target ? instr->target : "rng_default";
    struct generator g = {.b.e = *e};
    g.three_fry = hlo_span_is((struct hlo_span){name, strlen(name)}, "rng_three_fry");
    if (instr->n_in != 1 || (g.state = emit_operand(e, 0)) < 0)
        return hlo_fail(src, e->pos, "rng-bit-generator takes one array");
    const struct ap_shape *s = emit_shape(e, g.state);
    bool two = shape->dtype == AP_TUPLE && shape->n_parts == 2 &&
               ap_shape_equal(&shape->parts[0], s);
    if (!two || !ap_dtype_is_int(shape->parts[1].dtype))
        return hlo_fail(src, e->pos,
                        "rng-bit-generator makes its state and an array of integers");
    g.n_state = s->rank == 1 && s->dims[0] <= 3 ? (int)s->dims[0] : 0;
    if (s->dtype != AP_U64 || g.n_state < 2 || (g.three_fry && g.n_state != 2))
        return hlo_refuse(src, e->pos,
                          "rng-bit-generator (%.40s) of a state that is not "
                          "u64[2] is not supported",
                          name);
    g.words = g.three_fry ? 2 : 4;
    g.size = ap_dtype_size(shape->parts[1].dtype);
    g.b.like = shape->parts[1];
    g.b.like.dtype = AP_U32;
    for (int i = 0; i < g.n_state; i++)
        g.at[i] = element(e, g.state, i);
    struct value *parts = AP_NEW_N(src->arena, 2, struct value);
    struct cut c = cut_blocks(&g);
    parts[1].node = generate(&g, &c, shape->parts[1].dtype);
    parts[0].node = advance(&g, c.n_blocks);
    *out = inline_tuple(2, parts);
    return 0;
}

/* ---- rng ---- */

/* [0, 1) in steps of 2^-23, f32, of the upper bits. */
static int unit(const struct bits *b, int x)
{
    int mantissa = with(b, AP_OP_SHIFT_RIGHT_LOGICAL, x, 9);
    int bits = with(b, AP_OP_OR, mantissa, 0x3f800000);
    int y = emit_recast(&b->e, AP_OP_BITCAST_CONVERT, bits, AP_F32);
    return op2(b, AP_OP_SUBTRACT, y, emit_number(&b->e, AP_F32, 1, &b->like));
}

/* Standard normal numbers of two uniform ones, after Box and Muller. */
static int normal(const struct bits *b, const int x[2])
{
    int one = emit_number(&b->e, AP_F32, 1, &b->like);
    int two = emit_number(&b->e, AP_F32, -2, &b->like);
    int turn = emit_number(&b->e, AP_F32, 6.283185307179586, &b->like);
    int left = op2(b, AP_OP_SUBTRACT, one, unit(b, x[0]));
    int square = op2(b, AP_OP_MULTIPLY, emit_unary(&b->e, AP_OP_LOG, left), two);
    int angle = op2(b, AP_OP_MULTIPLY, unit(b, x[1]), turn);
    return op2(b, AP_OP_MULTIPLY, emit_unary(&b->e, AP_OP_SQRT, square),
               emit_unary(&b->e, AP_OP_COSINE, angle));
}

/* Integers of [lo, hi), by the remainder. */
static int between(const struct bits *b, const int x[2], int lo, int hi)
{
    enum ap_dtype dtype = emit_shape(&b->e, lo)->dtype;
    int wide = op2(b, AP_OP_OR, WORD(b, x[0], AP_U64),
                   with(b, AP_OP_SHIFT_LEFT, WORD(b, x[1], AP_U64), 32));
    int range = WORD(b, op2(b, AP_OP_SUBTRACT, hi, lo), AP_U64);
    int rest = op2(b, AP_OP_REMAINDER, wide, range);
    return op2(b, AP_OP_ADD, lo, WORD(b, rest, dtype));
}

static int stateless(struct emit *e, struct value *out)
{
    struct hlo_src *src = e->f->im->src;
    const struct ap_shape *shape = &e->instr->shape;
    const char *name = e->instr->target ? e->instr->target : "";
    bool is_normal = strcmp(name, "rng_normal") == 0, is_float;
    struct bits b = {*e, *shape};
    int arg[2], x[2];
    b.like.dtype = AP_U32;
    is_float = ap_dtype_is_float(shape->dtype);
    if (!is_normal && strcmp(name, "rng_uniform") != 0)
        return hlo_refuse(src, e->pos, "rng of distribution '%.40s' is not supported",
                          name);
    if (e->instr->n_in != 2 || (is_normal && !is_float) ||
        !(is_float || ap_dtype_is_int(shape->dtype)))
        return hlo_refuse(src, e->pos, "%s of these types is not supported", name);
    for (int k = 0; k < 2; k++) {
        if ((arg[k] = emit_operand(e, k)) < 0)
            return -1;
        const struct ap_shape *s = emit_shape(e, arg[k]);
        if (s->rank || s->dtype != shape->dtype)
            return hlo_fail(src, e->pos, "operand %d of rng must be a scalar of type %s",
                            k, ap_dtype_name(shape->dtype));
        arg[k] = emit_spread(e, arg[k], shape);
    }
    int at = place(&b, -1), key[2] = {word(&b, e->f->im->n_rngs++), word(&b, 0)};
    x[0] = low(&b, at);
    x[1] = high(&b, at);
    threefry(&b, key, x);
    if (!is_float) {
        *out = (struct value){.node = between(&b, x, arg[0], arg[1])};
        return 0;
    }
    int y = emit_recast(e, AP_OP_CONVERT, is_normal ? normal(&b, x) : unit(&b, x[0]),
                        shape->dtype);
    int scale = is_normal ? arg[1] : op2(&b, AP_OP_SUBTRACT, arg[1], arg[0]);
    int scaled = op2(&b, AP_OP_MULTIPLY, y, scale);
    *out = (struct value){.node = op2(&b, AP_OP_ADD, scaled, arg[0])};
    return 0;
}

int inline_rng(struct frame *f, const struct hlo_instr *instr, struct value *out)
{
    struct emit e = emit_start(f, instr);
    return hlo_span_is(instr->opcode, "rng") ? stateless(&e, out)
                                             : bit_generator(&e, out);
}
