/* Attentions of the program as calls of cuDNN (attention.c), and what is known of them.
 */
#ifndef EXEC_CUDA_ATTENTION_H
#define EXEC_CUDA_ATTENTION_H

#include "sdpa.h"

#if CUDA_HAS_CUDNN

/* What a dimension of a tensor of an attention is; others are dimensions of the scores.
 */
enum { OF_QUERIES = -2, OF_KEYS = -3, OF_WIDTH = -4 };

/* An operand or the result of one of the group's contractions. */
struct attention_tensor {
    int node;  /* -1: the attention has none */
    int order; /* the node whose shape says how it lies: itself, or a transpose of it */
    int8_t is[AP_MAX_RANK]; /* [dimension of `order`] */
};

/* The nodes [first, end) of a group, as an attention or its gradients. */
struct attention {
    int first, end;
    bool backward;
    int scores, products; /* contractions: q k', and dO v' (-1) */
    int query, key;       /* dimensions of the scores */
    int64_t back, ahead;  /* of the mask; INT64_MAX: no bound */
    struct attention_tensor of[SDPA_STATS];
    /* Scores that the contractions read whose results these are; of SDPA_O, SDPA_DQ,
     * SDPA_DK and SDPA_DV */
    int weights[SDPA_STATS];
    double scale;
};

/* By the form of the group: its contractions, and what they read. */
bool attention_match(const struct ap_graph *g, int first, struct attention *a);
/*
 * By what the group computes (attention_probe.c): evaluates its elementwise operators and
 * sums for pseudo-random products, compares with softmax and its gradients, and finds the
 * scale.
 */
bool attention_probe(struct exec *x, struct attention *a);

#endif
#endif
