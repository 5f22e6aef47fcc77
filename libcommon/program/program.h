/*
 * Programs: what ap-rewrite writes and ap-exec runs. One module (for SPMD: one for all
 * ranks) is a local graph: the group's operators on local shapes, collectives and local
 * steps as nodes, in execution order, with buffers assigned.
 */
#ifndef AP_PROGRAM_H
#define AP_PROGRAM_H

#include "plan/plan.h"

/* Where a node's value lives. Bytes of one arena per rank; offsets are 64-byte aligned.
 */
struct ap_buffer {
    int64_t offset; /* -1: no memory (fused inside its group, tuple, elided by alias) */
    int64_t bytes;
    int alias; /* node whose buffer this value shares (reshape, opt-barrier), or -1 */
};

/* A program's values at another place: buffers that lie within `bytes` from `at` on lie
 * `shift` further (pipeline/pipeline_program.h). */
struct ap_slot {
    int64_t at, bytes, shift;
};
static inline int64_t ap_slot_offset(const struct ap_slot *slot,
                                     const struct ap_buffer *b)
{
    const bool moves = slot->bytes > 0 && b->offset >= slot->at &&
                       b->offset - slot->at <= slot->bytes - b->bytes;
    return moves ? b->offset + slot->shift : b->offset;
}

struct ap_program {
    struct ap_mesh mesh; /* of ranks */
    /* Devices of the plan that a rank plays (program_tile.c), and their mesh, with the
       axes of `mesh`; 0 or 1: each rank is one, and `devices` is not set. Collectives are
       between ranks; layouts, and local steps along axes, are of devices: of the one in
       attrs.device. */
    int per_rank;
    struct ap_mesh devices;
    /* Parameters are those of the source graph, in order, with local shapes; results are
       the source's, each in its parameter's layout or replicated. Groups: nodes that run
       as one fused pass share node.group; ids rise in execution order. With several
       devices per rank these are the first device's, and after them come parameters that
       others hold, and their new values. */
    struct ap_graph local;
    const int *number;        /* [parameter]: in the source graph; NULL: its own */
    struct ap_buffer *buffer; /* per local node */
    int64_t peak_bytes;       /* size of the arena */
    int64_t alive_bytes;      /* the most of it that is in use at once; not written */
    /* Groups each_lo .. each_hi - 1 run once per microbatch, in order, with the
       microbatch axis at its number; none without such an axis. Over that axis,
       all-reduce adds to its own result (which the first microbatch starts), all-gather
       writes its blocks into it, ap-slice reads: no communication. */
    int each_lo, each_hi;
    const int *source; /* per local node: node of the source graph that it computes
                          a part or a copy of */
    /* a part of a larger program: parameters may be one microbatch's share */
    bool part;
    const int *turn; /* per group: struct ap_plan's; not written */
    /* Per group: -1, or of a collective that only starts in its place the group
       (n_groups: the end) before which it is awaited; nothing before that reads its
       result or writes what it reads or writes. NULL: nothing is said. */
    const int *wait;
};

/* What is made of a partitioned program. */
struct ap_program_form {
    bool split;   /* groups that can be run: ap_program_split or _kernels */
    bool overlap; /* collectives start early and are awaited late */
    /* of a part of a pipeline: groups keep their turns, and buffers are the lane's */
    bool by_turn;
    int per_rank;        /* devices that a rank plays; 0: one */
    int64_t pack_bytes;  /* of a bucket of gradients; 0: none; AP_BUCKET_BY_PRICE */
    int64_t limit_bytes; /* of ap_plan_buffers */
    const struct ap_cost *cost; /* of the plan */
};
/* Buckets of at most AP_BUCKET_MOST bytes, such that the last one, which nothing hides,
 * and the latencies of all take least time together. */
#define AP_BUCKET_BY_PRICE -1
/* DistributedDataParallel's bucket_cap_mb of 25 MiB. */
#define AP_BUCKET_MOST (25 << 20)

/*
 * SPMD partitioning: the plan as a local program. Each conversion once, before its first
 * user, or for a later phase as soon as nothing else needs the larger value; masks where
 * padded reduced factors need them; iota, constants, gather and scatter get their global
 * place (attrs.global, attrs.layout).
 */
int ap_partition(struct ap_arena *arena, const struct ap_plan *plan,
                 const struct ap_conversions *conv, struct ap_program *prog,
                 struct ap_err *err);

/*
 * Attentions, which a plan has as one group each, as groups that an interpreter can run,
 * all or those in rings alone; before the buffers. (program_split.c)
 */
void ap_program_split(struct ap_arena *arena, struct ap_program *prog, bool only_rings);

/*
 * What forward passes of attentions hand to their backward passes, where the device has
 * kernels for both: the result and a number per row, in place of two numbers per row.
 * Groups stay what they are. (program_attention.c)
 */
void ap_program_attention(struct ap_arena *arena, struct ap_program *prog);

/*
 * Groups that a device runs as one kernel each (kernel_form.h), of what `ap-fuse
 * --kernels` marked; with ap_program_attention, and rings split; before ap_program_pack.
 * (program_kernels.c)
 */
void ap_program_kernels(struct ap_arena *arena, struct ap_program *prog);

/*
 * Devices of a mesh in ranks of n consecutive ones: axis by axis, how many ranks; -1:
 * these are no ranges of its axes. (program_tile.c)
 */
int ap_tile_ranks(const struct ap_mesh *mesh, int64_t n, struct ap_mesh *ranks);
/*
 * The same program with n devices per rank; before ap_program_pack and the buffers. -1
 * where n is no part of the mesh, or a collective cannot be made of parts.
 */
int ap_program_tile(struct ap_arena *arena, struct ap_program *prog, int n,
                    struct ap_err *err);
/* The mesh of the plan's devices, and how many of them a rank plays. */
static inline const struct ap_mesh *ap_program_devices(const struct ap_program *prog)
{
    return prog->per_rank > 1 ? &prog->devices : &prog->mesh;
}
static inline int ap_program_per_rank(const struct ap_program *prog)
{
    return prog->per_rank > 1 ? prog->per_rank : 1;
}
/* Coordinates, on the mesh of devices, of one that a rank plays. */
static inline void ap_program_coords(const struct ap_program *prog, int rank,
                                     int64_t device, int64_t *coords)
{
    ap_mesh_coords(ap_program_devices(prog),
                   (int64_t)rank * ap_program_per_rank(prog) + device, coords);
}
/* The graph with the source's parameters and results only: those of the first device. */
struct ap_graph ap_program_own(const struct ap_program *prog);

/*
 * Gradients in buckets, collectives where they may start, and where they are awaited, as
 * the form says; before the buffers. (program_pack.c)
 */
void ap_program_pack(struct ap_arena *arena, struct ap_program *prog,
                     const struct ap_program_form *form);
/* Whether the blocks of a collective node lie in memory as it sends and receives them:
 * only then it runs while others do. */
bool ap_program_is_direct(const struct ap_program *prog, int node);

/* Whether a value is read by its own group only, and by that at least once: it needs no
 * memory. */
bool ap_program_is_inner(const struct ap_graph *g, int node);

/* Whether a node is alone in its group and no more than another name for its operand, or
 * for consecutive elements of a collective's result that begin at a multiple of 64 bytes.
 */
bool ap_program_is_view(const struct ap_graph *g, int node);
/* Where such a node's value begins in its operand's, in bytes; -1: it is none. */
int64_t ap_program_view_offset(const struct ap_graph *g, int node);
/* Whether a node is the all-reduce of a bucket that nobody else reads, which takes place
 * in the bucket's memory. */
bool ap_program_reduces_in_place(const struct ap_program *prog, int node);
/* Whether a node, over microbatches, keeps what the iterations before put there: it is
 * complete with the last one only. */
bool ap_program_is_carried(const struct ap_program *prog, int node);

/* Per group of the program (and at its end): bytes that are in use while it runs, of
 * values or, aligned, of their buffers. */
int64_t *ap_program_alive(struct ap_arena *arena, const struct ap_program *prog,
                          bool aligned);

/*
 * A value that is born in one group and last read in another lives over the whole loop of
 * microbatches where it was there before, or is carried from one to the next.
 */
void ap_program_stretch(const struct ap_program *prog, int node, int *birth, int *death);

/* Collectives of a step: count and bytes (of the full tensor on the axes, per group) by
 * kind and axes, those of all microbatches together. */
struct ap_coll_count {
    enum ap_op op;
    unsigned axes;
    int64_t count, bytes;
};
/* Sorted by op, axes. Caller's arena. Counted from the local graph's nodes. */
int ap_program_collectives(struct ap_arena *arena, const struct ap_program *prog,
                           struct ap_coll_count **out);
/* The same counted from conversions. */
int ap_conversion_collectives(struct ap_arena *arena, const struct ap_mesh *mesh,
                              const struct ap_conversions *conv,
                              struct ap_coll_count **out);
/* "full tensor" bytes of a collective node, from its operand's local shape and coll. */
int64_t ap_coll_bytes(const struct ap_mesh *mesh, const struct ap_node *node,
                      const struct ap_shape *operand);

/*
 * Whether an interpreter may trust the program: groups are ones that run as one,
 * collectives and shards fit the mesh, every value that is read from memory has as much
 * of the arena as its shape needs. at names the section. The graph has been indexed and
 * its shapes checked.
 */
int ap_program_check(const struct ap_program *prog, const struct ap_at *at,
                     struct ap_err *err);

/* Section "program". The reader takes numbers as they are: ap_program_check. */
void ap_program_to_json(const struct ap_program *prog, struct ap_buf *out);
int ap_program_from_json(struct ap_arena *arena, const json_t *o, const struct ap_at *at,
                         struct ap_program *prog, struct ap_err *err);

#endif
