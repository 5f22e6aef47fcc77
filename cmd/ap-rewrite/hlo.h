/* The graph in forms that other compilers read. */
#ifndef REWRITE_HLO_H
#define REWRITE_HLO_H

#include "plan/plan.h"
#include "tool/tool.h"

enum hlo_dialect { HLO_GSPMD, HLO_SHARDY };

/* What the form cannot say. */
struct hlo_lost {
    int partial; /* values that are partial where they are made: left to the compiler */
    int strided; /* others split at a stride, or unevenly along several axes: likewise */
    int moved;   /* parameters and results of that kind: split by the same axes in one
                    place instead, so that they take the same memory */
};

/* Says what the form does not, unless the tool is quiet. */
void hlo_warn_lost(const struct ap_tool *tool, const char *form,
                   const struct hlo_lost *lost);

/* ---- whole documents; out is appended to, and of no use after -1 ---- */

/*
 * The graph as one HLO module. With a plan for more than one device, parameters, results,
 * what groups make and what conversions make of it are annotated with shardings. conv are
 * the plan's. -1 for what HLO text cannot hold.
 */
int hlo_print(struct ap_arena *arena, const struct ap_plan *plan,
              const struct ap_conversions *conv, enum hlo_dialect dialect,
              struct ap_buf *out, struct hlo_lost *lost, struct ap_err *err);

/*
 * Parameters' and results' PartitionSpecs as a Python module, with a comment on what they
 * do not pin. conv are the plan's.
 */
void jax_print(const struct ap_plan *plan, const struct ap_conversions *conv,
               struct ap_buf *out, struct hlo_lost *lost);

/* ---- PartitionSpecs, in parts ---- */

/* Collectives of a plan, by what decides them where XLA gets the specs alone. */
struct jax_pinned {
    int64_t count, bytes;          /* all: of full tensors, per group of devices */
    int64_t sums, sum_bytes;       /* not pinned: complete partial sums */
    int64_t changes, change_bytes; /* not pinned: other changes of layout between uses */
    int64_t strided;               /* of both: from or to a split with a stride */
};
void jax_count(const struct ap_plan *plan, const struct ap_conversions *conv,
               struct jax_pinned *sum);
/* "the plan has 55 collectives of 1.2 MiB; ...", without a line's end. */
void jax_put_pinned(struct ap_arena *arena, const struct jax_pinned *p,
                    struct ap_buf *out);
/* Assignments of axis_names, axis_sizes, params and results: as a module's, or as items
 * of a dictionary. lost is added to. */
void jax_put_specs(const struct ap_plan *plan, bool items, struct ap_buf *out,
                   struct hlo_lost *lost);

/* ---- parts ---- */

enum hlo_said { HLO_SAID, HLO_MOVED, HLO_NOT_SAID };

/*
 * The mesh axes of size > 1 that split each dimension, major to minor, in order[d]; their
 * number in n[d]. HLO_MOVED when the layout cuts a dimension in more than one place, or
 * along several axes unevenly: then the lists of axes are not all that there is to it.
 * HLO_NOT_SAID when it is partial.
 */
enum hlo_said hlo_axes(const struct ap_mesh *mesh, const struct ap_shape *shape,
                       const struct ap_layout *l, int n[AP_MAX_RANK],
                       int order[AP_MAX_RANK][AP_MAX_AXES]);
/* "{devices=[2,1,4]<=[8] last_tile_dim_replicate}", "{replicated}", unless HLO_NOT_SAID.
 */
enum hlo_said hlo_put_gspmd(const struct ap_mesh *mesh, const struct ap_shape *shape,
                            const struct ap_layout *l, struct ap_buf *out);
/* "<@mesh, [{\"x\"}, {}]>", with its quotes escaped, unless HLO_NOT_SAID. */
enum hlo_said hlo_put_shardy(const struct ap_mesh *mesh, const struct ap_shape *shape,
                             const struct ap_layout *l, struct ap_buf *out);

/* Names that HLO allows, each once, none that starts with "ap.": those given, or close
 * to them. */
const char **hlo_names(struct ap_arena *arena, const char *const *want, int n);
/* Text in double quotes. */
void hlo_put_quoted(const char *s, struct ap_buf *out);
/* A constant's value, all of it. */
void hlo_put_literal(const struct ap_literal *literal, const struct ap_shape *shape,
                     struct ap_buf *out);
/* ", name=value" for every attribute of the node but computations. */
void hlo_put_attrs(const struct ap_node *node, struct ap_buf *out);

#endif
