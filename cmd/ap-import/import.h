/*
 * From a parsed module to a graph, in steps that each have a file: calls and tuples are
 * dissolved (inline.c, reducer.c), the nodes brought to the form that planners like
 * (clean.c), and given roles, phases and scopes (roles.c, phases.c, names.c).
 */
#ifndef IMPORT_H
#define IMPORT_H

#include "graph/graph.h"
#include "hlo/hlo_parse.h"
#include "tool/totals.h"

/* The phase that op_name indicates. */
enum node_hint {
    HINT_NONE, /* no metadata, or no path in it */
    HINT_FORWARD,
    HINT_BACKWARD,
    HINT_BARE /* a path without jvp or transpose: the optimizer, or code around it */
};

/* The importer's data of a node in addition to struct ap_node. */
struct node_info {
    size_t pos; /* of the instruction in the text */
    enum node_hint hint;
    bool auto_named; /* not in the text: no name to record when it goes */
    bool layered;    /* takes or sets a place of an array that a loop's counter says */
    int counter;     /* follows from the counter of a loop at this depth; 0: of none */
};

/* A graph being built. nodes and info grow by malloc until import_finish. */
struct import {
    struct hlo_src *src;
    const struct hlo_module *module;
    int64_t work, max_work; /* steps of inlining done and allowed */
    struct ap_graph g;      /* results without roles, reducers */
    struct node_info *info;
    int cap, cap_reducers, cap_dropped;
    struct ap_reducer *reducers; /* malloc; g.reducers points here while building */
    const char **dropped;        /* malloc; g.dropped likewise */
    bool keep_loops;
    struct ap_comp *comps; /* malloc; g.comps points here while building */
    int cap_comps;
    int *comp_of;    /* [computation] of the text: its id in the graph, or -1 if it is not
                        made yet; malloc */
    int *reducer_of; /* [2 * computation + is scatter], -1 unknown; malloc */
    struct ap_names reducer_texts, scopes;
    const char **scope_list; /* malloc; the strings are in the arena */
    int n_scopes, cap_scopes;
    struct ap_buf scratch;
    struct ap_names warned_calls; /* targets of custom calls that were complained about */
    int n_rngs;                   /* instructions named rng so far */
    bool warned_pins;             /* said that a stack's sharding is dropped */
    bool warned_branches;    /* said that all branches of conditionals are computed */
    const bool *step_frozen; /* per argument of the section `step`; NULL: no section */
    const enum ap_role *step_role; /* likewise; NULL: the section says no roles */
    int step_loss; /* 1 + the result that the section `step` calls the loss; 0: none */
};

/* "GLOB": "word" pairs of --roles or --phases; later ones win. */
struct override {
    const char *glob;
    int value; /* enum ap_role or enum ap_phase */
    bool used;
};

/* The text of such a file, and the words that it may have. */
struct import_words {
    const char *file, *text;
    size_t len;
    const char *const *names; /* [n], NULL: none */
    int n;
};
/* Their number, -1 with err; arena. (overrides.c) */
int import_read_overrides(struct ap_arena *arena, const struct import_words *of,
                          struct override **out, struct ap_err *err);

struct import_params {
    int n_roles, n_phases;
    struct override *roles, *phases;
    bool keep_loops;  /* loops become nodes instead of being unrolled */
    int64_t max_work; /* 0: default */
};

struct import_stats {
    int64_t n_instrs;  /* in the text, all computations */
    int64_t n_inlined; /* after inlining, before cleaning, dead nodes included */
    struct ap_totals totals;
    const char *step; /* the section `step`, JSON, of a text that has one; or NULL */
};

/*
 * The whole pipeline: HLO text to an indexed, grouped and checked graph in src->arena.
 * -1 with src->err (and src->unsupported) set.
 */
int import_hlo(struct hlo_src *src, struct import_params *params, struct ap_graph *g,
               struct import_stats *stats);

/* ---- steps ---- */

/* A node without operands, shape and attributes; no parameter. */
struct ap_node import_node(enum ap_op op, const char *name);
/* The attributes' defaults, and the attributes of a scalar constant. */
struct ap_attrs *import_new_attrs(struct ap_arena *arena);
/* The same with the mark of nodes that read through an opt-barrier. */
const struct ap_attrs *import_recomputed(struct ap_arena *arena,
                                         const struct ap_attrs *attrs);
struct ap_attrs *import_scalar_attrs(struct ap_arena *arena, enum ap_dtype dtype,
                                     const void *data);
/* Operands by their new ids, to[old id]. */
void import_rewire(struct ap_arena *arena, struct ap_node *node, const int *to);
/* Marks all that marked nodes need. */
void import_mark_needed(const struct ap_node *nodes, int n, bool *mark);

/* The nodes of a graph being built, set aside while others are made; malloc. */
struct import_nodes {
    struct ap_graph g;
    struct node_info *info;
    int cap;
};
/* im has no nodes then. */
struct import_nodes import_set_aside(struct import *im);
void import_free_nodes(struct import_nodes *old);

/*
 * Checks the header's description of the exported step and puts its JSON into *section,
 * NULL if there is none.
 */
int import_step(struct import *im, const char **section);
/* Parameters and results say which arguments and results of the step they are. */
void import_number(struct import *im);
/* The same one's part number `part` of `parts` along dimension dim; NULL stays NULL. */
const struct ap_part *import_part(struct ap_arena *arena, const struct ap_part *of,
                                  int dim, int64_t part, int64_t parts);
/* The result whose number in the step is `index`, whole or its first part; -1: none. */
int import_step_result(const struct ap_graph *g, int index);
/* Adds a node whose operands are there; returns its id. */
int import_add(struct import *im, const struct ap_node *node,
               const struct node_info *info);
void import_drop(struct import *im, const char *name);
/* Fills g with the entry computation; calls and tuples dissolved; shapes checked. */
int import_inline(struct import *im);
/* The reducer for computation comp of instruction pos (in scatter or elsewhere), or -1.
 */
int import_reducer(struct import *im, int comp, bool scatter, size_t pos);
/*
 * Result i alone of a scatter's computation over n arrays, as a reducer of one array.
 * Exit 2 where the result depends on other arrays.
 */
int import_reducer_part(struct import *im, int comp, int i, int n, size_t pos);
/* The reducer of a kind that has a name. */
int import_reducer_of(struct import *im, enum ap_red red);
/* The reducer that adds. */
int import_sum(struct import *im);
/* Splits the stacked tensors of unrolled loops: see unstack.c. */
void import_unstack(struct import *im);
/* Per node: whether results need it. All parameters are live. */
bool *import_live(struct import *im);
/* Normal form: see clean.c. Rebuilds nodes and info; parameters come first. */
void import_clean(struct import *im);
/* Columns of a gather's or scatter's indices that count rows as batch dimensions: rows.c.
 */
void import_batch_rows(struct import *im, struct ap_node *node,
                       const struct node_info *info);
/* Roles of parameters and results, aliases. */
int import_roles(struct import *im, struct import_params *params);
/* Parameters' roles that --roles gives; -1 when one of its patterns was not used. */
int import_override_roles(struct import *im, struct import_params *params);
int import_phases(struct import *im, struct import_params *params);
/* Nodes inside of kept loops have the phase of their loop (of the first loop that uses
 * them). */
void import_loop_phases(struct import *im);
/* The finished graph, indexed, checked, grouped and counted. */
int import_finish(struct import *im, struct ap_graph *g, struct import_stats *stats);
/* Frees what grew by malloc. */
void import_release(struct import *im);

/* "jit(f)/jvp(a/b)/c/add" to "a/b/c", interned; "" for none. */
const char *import_scope(struct import *im, const char *op_name);
enum node_hint import_hint(const char *op_name);
/* True if op_name is the path of a parameter: "params['h_0']['w']", "state.mu[0]". */
bool import_is_path(const char *op_name);
/* The path as a scope: "h_0/w" of "params['h_0']['w']", "opt/0/mu" of "opt[0].mu". */
const char *import_path_scope(struct import *im, const char *path);
#endif
