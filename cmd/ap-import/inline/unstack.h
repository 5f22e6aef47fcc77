/* Inside the splitting of stacked tensors only; see unstack.c. */
#ifndef UNSTACK_H
#define UNSTACK_H

#include "import.h"

struct unstack {
    struct import *im; /* grows the new nodes while the old ones are read */
    struct ap_arena *arena;
    struct ap_graph old;
    struct node_info *old_info;
    const bool *live;
    const int *axis; /* per old node: the dimension that is split, -1 for none */
    int *to;         /* per old node that is not split: the new one */
    int **pieces;    /* per old node that is split: its new ones */
    int *n_users;    /* of old nodes, results included */
    int *n_params;   /* parameters so far */
};

/* True if a layered update sets one place of dimension d; *place says which. */
bool unstack_sets(const struct import *im, const struct ap_node *node, int d,
                  int64_t *place);
/* Whether the parts that a reduction makes of its operand's layers can be combined. */
bool unstack_can_combine(const struct import *im, const struct ap_node *node);

/* Adds the new nodes of one pass. */
void unstack_emit(struct unstack *u);
/* A parameter's name with the number of a layer: see ap-import(1). */
const char *unstack_param_name(struct ap_arena *arena, const char *name, int64_t layer);
/* A sharding without dimension d, or NULL when it cannot be inferred. */
const char *unstack_pin(struct ap_arena *arena, const char *pin, int d);

#endif
