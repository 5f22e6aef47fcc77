/*
 * The members of a kernel that computes several nodes at once, as text: a line for each,
 * and how the values are read that come from memory (members.c). Fused passes (fused.c),
 * kernels of rows (rows.c) and of sums (columns.c) put the lines where they need them.
 */
#ifndef EXEC_CUDA_MEMBERS_H
#define EXEC_CUDA_MEMBERS_H

#include "cuda.h"

/* Where a value from memory is read. */
enum load_mode {
    LOAD_ONCE,   /* once by a thread: all its elements are the same */
    LOAD_ROW,    /* once per row, whose elements are the same */
    LOAD_PACK,   /* `width` elements that lie side by side in one access */
    LOAD_ELEMENT /* one by one */
};

struct load {
    enum load_mode mode;
    enum ap_dtype dtype;
    const void *src;
    bool by_row; /* one element for each row: the row's number is the index */
    int rank;    /* -1: an iota of n[0] indices, n[1] elements each */
    int64_t n[AP_MAX_RANK], stride[AP_MAX_RANK], base;
    bool mapped; /* iota: src holds the global indices */
};

struct member {
    const struct ap_node *node;
    struct text_operand value;
    int n_in, in[3]; /* members, or ~number of a load */
    bool row;        /* a value per row, or one for all, among values per element */
    bool sum;        /* a reduce: of in[0], from in[1] */
    /* The most reductions one after the other on the way to the value (of a sum: to its
     * terms). */
    int after;
    struct ap_buf line; /* "const float v3 = ...;\n"; none: it is in[0]'s value */
};

struct members {
    struct exec *x;
    const struct call *call;
    struct cuda_call *out;
    int64_t n_elems;
    int64_t row; /* elements of a row; n_elems: there are no rows */
    int width;   /* elements of an access */
    bool held;   /* packs stay in registers: l3[q][k], not l3[k] */
    struct text_index index;
    int n, n_loads;
    struct load *load;
    struct member *of; /* [member of the call] */
};

/*
 * Fills n, load and of, from the other members of *m: of each node its line, in which
 * loads and values have the names under which members_put_load and the lines define them.
 * The result is freed with members_free. -1 with err set.
 */
int members_set(struct members *m, struct ap_err *err);
void members_free(struct members *m);
/* Elements of one access: the number of elements of the widest type that 16 bytes hold,
 * if all accesses fit. */
int members_width(const struct members *m, int64_t n);

/* Marks what member (or ~load) is computed from, itself too; sums and values per row end
 * the way, if they are not asked for themselves. */
struct members_need {
    bool *member, *load;
};
struct members_need members_need_new(const struct members *m);
void members_need_add(const struct members *m, struct members_need *need, int at);

/* "const float l3 = load(...);", or "float l3[4]; load_pack(...)", where the index of the
 * (first) element is an expression; held: without the array's declaration. */
void members_put_load(struct ap_buf *b, const struct members *m, int k,
                      const char *indent, const char *index);
/* The loads of that mode, and the lines, that are needed. */
void members_put_loads(struct ap_buf *b, const struct members *m,
                       const struct members_need *need, enum load_mode mode,
                       const char *indent, const char *index);
/* Those of values per row with after = phase; or, -1, of values per element. */
void members_put_lines(struct ap_buf *b, const struct members *m,
                       const struct members_need *need, int phase);
/* The name of member or ~load `at` in a line of text; room: at least 24 bytes, which may
 * be used. */
const char *members_name(const struct members *m, int at, char *room, size_t size);
/* The function "combineI" of each reduce I. -1 with err set. */
int members_put_combines(const struct members *m, struct ap_buf *out, struct ap_err *err);
/* Whether the member's value has a place in memory; which. */
void *members_result(const struct members *m, int i);
/* Arguments of a kernel: the loads' addresses, and room for `more` after them. */
struct cuda_at *members_args(const struct members *m, int more);

/* ---- kernels (rows.c, columns.c) ---- */

/* The operand's dimensions, kept ones and reduced ones apart, neighbours as one. */
struct reduce_dims {
    int64_t n_out, n_red;
    int kept_rank, red_rank;
    int64_t kept[AP_MAX_RANK], kept_stride[AP_MAX_RANK];
    int64_t red[AP_MAX_RANK], red_stride[AP_MAX_RANK];
    bool inner_kept; /* the innermost one is kept */
};
/* The least power of two that is at least n, up to most. */
static inline int power_of_two(int64_t n, int most)
{
    int p = 1;
    while (p < n && p < most)
        p *= 2;
    return p;
}
struct reduce_dims reduce_dims_of(const struct ap_node *v, const struct ap_shape *in);

/* Of a call that x, call, out, n_elems and index describe: elementwise nodes with
 * reductions along rows of `row` elements; reductions that nobody in the call reads, with
 * the elementwise nodes before them. */
int cuda_add_rows(struct members *m, int64_t row, struct ap_err *err);
int cuda_add_columns(struct members *m, struct ap_err *err);

#endif
