/* Attentions of a program: the roles of a group's contractions (attention_form.c), and
 * the function that the group computes (attention_probe.c). */
#ifndef AP_ATTENTION_FORM_H
#define AP_ATTENTION_FORM_H

#include "program/program.h"

/* Tensors of rows: of queries, or of keys. */
enum ap_attention_operand {
    AP_ATTENTION_Q,
    AP_ATTENTION_K,
    AP_ATTENTION_V,
    AP_ATTENTION_O,
    AP_ATTENTION_DO,
    AP_ATTENTION_DQ,
    AP_ATTENTION_DK,
    AP_ATTENTION_DV,
    AP_ATTENTION_OPERANDS
};

/* The kind of a dimension of a tensor of an attention; values from 0 on are dimensions of
 * the scores. */
enum { AP_OF_QUERIES = -2, AP_OF_KEYS = -3, AP_OF_WIDTH = -4 };

/* An operand or the result of one of the group's contractions. */
struct ap_attention_tensor {
    int node;  /* -1: the attention has no such tensor */
    int order; /* the node whose shape is its order in memory: itself, or a transpose of
                  it */
    int8_t is[AP_MAX_RANK]; /* [dimension of `order`] */
};

/* The nodes [first, end) of a group, as an attention or its gradients. */
struct ap_attention_form {
    int first, end;
    bool backward;
    int scores, products; /* contractions: q k', and dO v' (-1) */
    int query, key;       /* dimensions of the scores */
    int64_t back, ahead;  /* of the mask; INT64_MAX: unbounded */
    struct ap_attention_tensor of[AP_ATTENTION_OPERANDS];
    /* The scores that the contraction of this result reads; for O, DQ, DK and DV */
    int weights[AP_ATTENTION_OPERANDS];
    /*
     * A number per query: the logarithm of a row's sum of exponentials. In a forward
     * group it is the only value besides o that is read elsewhere; a backward group reads
     * it. -1: there is none.
     */
    int stats;
    int8_t stats_is[AP_MAX_RANK]; /* its dimensions: AP_OF_QUERIES, and dimensions of the
                                     scores */
    /* In a backward group that reads o: the sums of dO o; else -1. It has the dimensions
     * of the scores without keys. */
    int total;
    double scale; /* ap_attention_probe */
};

/* Finds the form of the group that begins with a node from its contractions and their
 * operands. False if the group is not an attention. */
bool ap_attention_form_of(const struct ap_graph *g, int first,
                          struct ap_attention_form *a);
/*
 * By what the group computes: evaluates its elementwise operators and sums for
 * pseudo-random products, compares with softmax and its gradients, and finds the scale. A
 * forward group's `stats` that are something else are -1 then. A backward group that sums
 * dO o must be handed the statistics and the o of an attention that is the same.
 */
bool ap_attention_probe(struct ap_arena *arena, const struct ap_program *prog,
                        struct ap_attention_form *a);

/* Whether a forward and a backward group, both probed, belong to one attention: they have
 * equal operands and equal functions. */
bool ap_attention_same(const struct ap_graph *g, const struct ap_attention_form *forward,
                       const struct ap_attention_form *backward);

#endif
