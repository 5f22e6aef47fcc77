/*
 * Plans for PyTorch: what DTensor, FSDP2 are told, and where stages begin. A
 * plan has a layout per value; PyTorch pins parameters, and what goes into and comes out
 * of modules, and propagates placements in between.
 */
#ifndef REWRITE_TORCH_H
#define REWRITE_TORCH_H

#include "pipeline/stage_cost.h"
#include "plan/plan.h"
#include "tool/tool.h"
#include "trainer.h"

/* A parameter of a module. */
struct torch_weight {
    int node;
    struct ap_layout own;      /* between steps, as the plan has it */
    struct ap_layout held;     /* as PyTorch has it: as its state, where FSDP2 holds it */
    struct ap_layout use;      /* of its first use in the forward pass */
    struct ap_layout state;    /* of the optimizer's; own where it has none */
    struct ap_layout gradient; /* where it is computed; own where it has none */
    bool fsdp;                 /* FSDP2 gathers it and scatters its gradient */
};

/* FSDP2's part: the weights that lie split along an axis that their uses are not split
 * along. */
struct torch_fsdp {
    unsigned shard, replicate; /* sets of mesh axes */
    bool reshard;              /* gathered anew for the backward pass */
};

/* A value that goes into a module (its one input of that shape) or comes out of it. */
struct torch_pin {
    const char *scope; /* of the module */
    bool output;
    int node;
    struct ap_layout computed; /* as its operators make it; of inputs, as they take it */
    struct ap_layout wanted;   /* in which it is passed on */
};

#define TORCH_N_LACKS 5 /* rows of the table in torch_lacks.c */

/* A plan, or a stage's. */
struct torch_part {
    struct ap_arena *arena;
    const struct ap_plan *plan;
    const struct ap_cost *cost;
    const struct ap_conversions *conv;
    struct ap_notes *notes; /* what is different in PyTorch */
    /* of a stage, NULL without: its part of the graph, and the microbatches of the whole
     */
    const struct ap_graph *whole;
    const struct ap_subgraph *sub;
    const struct ap_stage_microbatch *micro;
    int n_weights;
    struct torch_weight *weight; /* in the order of the parameters */
    struct torch_fsdp fsdp;
    int n_pins;
    struct torch_pin *pin; /* in the order of the nodes */
    struct {
        int n;
        double sec;
    } lack[TORCH_N_LACKS]; /* tensors that PyTorch has otherwise, the time to gather them
                            */
};

/* Layout in which the node takes operand k: the conversion's, else the producer's.
 */
struct ap_layout torch_operand_layout(const struct ap_plan *plan,
                                      const struct ap_conversions *conv, int node, int k);

/* ---- torch_lacks.c ---- */

/* Where a layout is: of a convolution's operand or result, of a parameter between steps,
 * of a parameter in its use. */
enum { TORCH_CONVOLVED = 1, TORCH_HELD = 2, TORCH_USED = 4 };
/* Makes of a node's planned layout one in which DTensor computes as one process does, and
 * counts in `lack` what was changed. */
void torch_express(struct torch_part *part, int node, unsigned where,
                   struct ap_layout *l);
/* A note for each kind of what was changed. */
void torch_note_lacks(const struct torch_part *part);

/* ---- torch_weights.c ---- */

/* Fills weight and fsdp of a part whose plan, conv and notes are set. */
void torch_find_weights(struct torch_part *part);
/* -1: a weight is not named as PyTorch names a module's parameters. */
int torch_check_names(const struct ap_graph *g, struct ap_err *err);

/* ---- torch_modules.c ---- */

/* Fills pin. */
void torch_find_pins(struct torch_part *part);
/* Whether some pin brings the node's value to this layout. */
bool torch_is_pinned(const struct torch_part *part, int node, const struct ap_layout *to);
/* Modules in which stages of a graph begin, "" for the first: starts[stage] (arena). What
 * is cut elsewhere is noted, if no contraction goes to another stage; else -1. stage_of:
 * [node of g], -1: of none. */
int torch_stage_starts(struct ap_arena *arena, const struct ap_graph *g,
                       const int *stage_of, int n_stages, struct ap_notes *notes,
                       const char ***starts, struct ap_err *err);

/* ---- torch.c ---- */

/* Writes the document's plan, or stages, for PyTorch; the tool's exit code. Ends the tool
 * when the plan is bad or of no PyTorch module. */
int torch_rewrite(struct ap_tool *tool, struct ap_arena *arena, const struct ap_doc *doc);

#endif
