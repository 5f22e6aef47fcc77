/*
 * Einsum. Operands are joined from the left: labels that neither the output nor a later
 * operand has are summed away, first within one operand, then by the product of two.
 */
#include "onnx/onnx.h"

#include <string.h>

#define DOTS       26 /* labels from here on: the dimensions of "..." */
#define MAX_LABELS 64

struct term {
    int x, rank;
    int label[AP_MAX_RANK];
};

/* Letters of s[0 .. len) to labels; n_dots dimensions stand for "...". */
static bool parse(struct ox *c, const char *s, size_t len, int n_dots, struct term *t)
{
    t->rank = 0;
    for (size_t i = 0; i < len; i++) {
        bool upper = s[i] >= 'A' && s[i] <= 'Z', lower = s[i] >= 'a' && s[i] <= 'z';
        int n = 1, first = lower ? s[i] - 'a' : DOTS + 12 + s[i] - 'A';
        if (s[i] == ' ')
            continue;
        if (!upper && !lower) {
            if (len - i < 3 || memcmp(s + i, "...", 3) != 0 || n_dots < 0) {
                ox_fail(c, "malformed equation");
                return false;
            }
            n = n_dots;
            first = DOTS;
            i += 2;
        }
        for (int k = 0; k < n; k++) {
            if (t->rank == AP_MAX_RANK) {
                ox_refuse(c, "of this rank is not supported yet");
                return false;
            }
            t->label[t->rank++] = first + k;
        }
    }
    return true;
}

static int find(const struct term *t, int label)
{
    for (int d = 0; d < t->rank; d++)
        if (t->label[d] == label)
            return d;
    return -1;
}

static void drop(struct term *t, int d)
{
    memmove(&t->label[d], &t->label[d + 1], (size_t)(t->rank - d - 1) * sizeof(int));
    t->rank--;
}

/* A label that stands twice: the diagonal. */
static void take_diagonals(struct ox *c, struct term *t)
{
    for (int d = 0; d < t->rank; d++) {
        int e = d + 1;
        while (e < t->rank && t->label[e] != t->label[d])
            e++;
        if (e == t->rank)
            continue;
        struct ap_shape s = ox_shape(c, t->x);
        int same = ox_cmp(c, AP_EQ, ox_iota(c, AP_S64, s.rank, s.dims, d),
                          ox_iota(c, AP_S64, s.rank, s.dims, e));
        int y = ox_select(c, same, t->x, ox_full_like(c, t->x, 0));
        t->x = ox_reduce1(c, y, AP_RED_SUM, e, false);
        drop(t, e);
        d--;
        if (t->x < 0)
            return;
    }
}

/* Sums away the labels that are not in `keep`. */
static void sum_out(struct ox *c, struct term *t, const bool *keep)
{
    for (int d = t->rank - 1; d >= 0; d--)
        if (!keep[t->label[d]]) {
            t->x = ox_reduce1(c, t->x, AP_RED_SUM, d, false);
            drop(t, d);
        }
}

static void multiply(struct ox *c, struct term *a, const struct term *b, const bool *keep)
{
    int64_t ab[AP_MAX_RANK], bb[AP_MAX_RANK], ac[AP_MAX_RANK], bc[AP_MAX_RANK];
    struct term out = {.x = -1};
    int n_batch = 0, n_contract = 0, free_b = 0;
    for (int d = 0; d < a->rank; d++) {
        int e = find(b, a->label[d]);
        if (e < 0)
            continue;
        if (keep[a->label[d]]) {
            ab[n_batch] = d;
            bb[n_batch++] = e;
            out.label[out.rank++] = a->label[d];
        } else {
            ac[n_contract] = d;
            bc[n_contract++] = e;
        }
    }
    for (int e = 0; e < b->rank; e++)
        free_b += find(a, b->label[e]) < 0;
    if (a->rank - n_contract + free_b > AP_MAX_RANK) {
        ox_refuse(c, "of this rank is not supported yet");
        a->x = -1;
        return;
    }
    for (int d = 0; d < a->rank; d++)
        if (find(b, a->label[d]) < 0)
            out.label[out.rank++] = a->label[d];
    for (int e = 0; e < b->rank; e++)
        if (find(a, b->label[e]) < 0)
            out.label[out.rank++] = b->label[e];
    out.x =
        ox_dot(c, a->x, b->x, &(struct ap_dot_dims){n_batch, ab, bb, n_contract, ac, bc});
    *a = out;
}

/* The output when the equation has no "->": labels that stand once, in order. */
static void implicit_output(const struct term *terms, int n, struct term *out)
{
    int count[MAX_LABELS] = {0};
    out->rank = 0;
    for (int i = 0; i < n; i++)
        for (int d = 0; d < terms[i].rank; d++)
            count[terms[i].label[d]]++;
    for (int pass = 0; pass < 3; pass++) /* "...", upper case, lower case */
        for (int l = 0; l < MAX_LABELS; l++) {
            int kind = l < DOTS ? 2 : l < DOTS + 12 ? 0 : 1;
            if (kind == pass && (count[l] == 1 || (count[l] && pass == 0)) &&
                out->rank < AP_MAX_RANK)
                out->label[out->rank++] = l;
        }
}

static bool read_terms(struct ox *c, const char *eq, struct term *terms, struct term *out)
{
    const char *arrow = strstr(eq, "->"), *p = eq;
    int dots = -1;
    for (int i = 0; i < c->n_in; i++) {
        size_t len = strcspn(p, ",-");
        int letters = 0, rank = ox_rank(c, c->in[i]);
        bool has_dots = false;
        for (size_t k = 0; k < len; k++) {
            letters += p[k] != ' ' && p[k] != '.';
            has_dots = has_dots || p[k] == '.';
        }
        int n = has_dots ? rank - letters : -1;
        if (n > 12 || (has_dots && (n < 0 || (dots >= 0 && n != dots)))) {
            ox_refuse(c, "with this '...' is not supported yet");
            return false;
        }
        dots = has_dots ? n : dots;
        terms[i].x = c->in[i];
        if (!parse(c, p, len, n, &terms[i]))
            return false;
        if (terms[i].rank != rank) {
            ox_fail(c, "the equation does not fit operand %d", i);
            return false;
        }
        p += len + (p[len] == ',' && i + 1 < c->n_in);
    }
    if (arrow ? p != arrow : *p != 0) {
        ox_fail(c, "the equation does not have %d terms", c->n_in);
        return false;
    }
    if (!arrow)
        implicit_output(terms, c->n_in, out);
    return !arrow || parse(c, arrow + 2, strlen(arrow + 2), dots, out);
}

static int einsum(struct ox *c)
{
    struct term *terms = AP_NEW_N(c->file->arena, c->n_in, struct term), out = {.x = -1};
    int64_t perm[AP_MAX_RANK];
    for (int i = 0; i < c->n_in; i++)
        if (c->in[i] < 0)
            return ox_fail(c, "input %d is missing", i);
    if (!read_terms(c, ox_attr_s(c, "equation", ""), terms, &out))
        return -1;
    for (int i = 0; i < c->n_in; i++) {
        bool keep[MAX_LABELS] = {false}, later[MAX_LABELS] = {false};
        for (int d = 0; d < out.rank; d++)
            keep[out.label[d]] = later[out.label[d]] = true;
        for (int k = 0; k < c->n_in; k++)
            for (int d = 0; d < terms[k].rank && k != i; d++)
                if (k > i || (k == 0 && i > 0)) {
                    keep[terms[k].label[d]] = true;
                    later[terms[k].label[d]] |= k > i;
                }
        take_diagonals(c, &terms[i]);
        sum_out(c, &terms[i], keep);
        if (i)
            multiply(c, &terms[0], &terms[i], later);
        if (terms[i ? 0 : i].x < 0)
            return -1;
    }
    if (out.rank != terms[0].rank)
        return ox_refuse(c, "with this output is not supported yet");
    for (int d = 0; d < out.rank; d++) {
        perm[d] = find(&terms[0], out.label[d]);
        if (perm[d] < 0)
            return ox_fail(c, "an output label stands in no operand");
    }
    return ox_transpose(c, terms[0].x, perm);
}

const struct ox_op ox_einsum_ops[] = {
    {"Einsum", 12, 20, 1, -1, einsum, 0},
    {NULL, 0, 0, 0, 0, NULL, 0},
};
