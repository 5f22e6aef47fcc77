/*
 * Programs, which ap-rewrite writes and ap-exec runs. A module (one for all ranks, as
 * SPMD) is a local graph: the groups' operators on local shapes, collectives and local
 * steps as nodes, in execution order, with buffers assigned.
 */
#ifndef AP_PROGRAM_H
#define AP_PROGRAM_H

#include "plan/plan.h"

/* The place of a node's value in the arena of a rank, in bytes; offsets are 64-byte
 * aligned. What is on the host (attrs.host) lies behind all that is on the device. */
struct ap_buffer {
    int64_t offset; /* -1: no memory (fused inside its group, tuple, elided by alias) */
    int64_t bytes;
    int alias; /* node whose buffer this value shares (reshape, opt-barrier), or -1 */
};

/* A shift of a program's values: buffers within `bytes` from `at` on move by `shift`
 * (pipeline/pipeline_program.h). */
struct ap_slot {
    int64_t at, bytes, shift;
    int64_t host_at, host_bytes, host_shift; /* likewise, of values on the host */
};
static inline int64_t ap_slot_offset(const struct ap_slot *slot,
                                     const struct ap_buffer *b)
{
    const bool moves = slot->bytes > 0 && b->offset >= slot->at &&
                       b->offset - slot->at <= slot->bytes - b->bytes;
    const bool host = slot->host_bytes > 0 && b->offset >= slot->host_at &&
                      b->offset - slot->host_at <= slot->host_bytes - b->bytes;
    return b->offset + (moves ? slot->shift : host ? slot->host_shift : 0);
}

struct ap_program {
    struct ap_mesh mesh; /* of ranks */
    /* The parameters of the source graph, in order, with local shapes, and the source's
       results, each in its parameter's layout or replicated. Nodes that run as one fused
       pass share node.group; ids rise in execution order. */
    struct ap_graph local;
    struct ap_buffer *buffer; /* per local node */
    int64_t peak_bytes;       /* size of the arena */
    int64_t alive_bytes;      /* the most bytes that are in use at once; not written */
    /* Groups each_lo .. each_hi - 1 run once per microbatch, in order, with the
       microbatch's number as coordinate of the microbatch axis; without such an axis
       there are none. Over that axis, all-reduce adds to its own result (which the first
       microbatch initializes), all-gather writes its block into its result, and ap-slice
       reads its block, without communication. */
    int each_lo, each_hi;
    const int *source; /* per local node: node of the source graph that it computes
                          a part or a copy of */
    /* a part of a larger program: parameters may be one microbatch's share */
    bool part;
    const int *turn; /* per group, as in struct ap_plan; not written */
    /* Per group: -1, or, for a collective that starts in this place, the group (n_groups:
       the end) before which it is awaited. No group before that one reads its result, or
       writes a buffer that it reads or writes. NULL: collectives complete in their
       places. */
    const int *wait;
};

/* What is made of a partitioned program. */
struct ap_program_form {
    bool split;   /* groups that can be run: ap_program_split or _kernels */
    bool overlap; /* collectives start early and are awaited late */
    /* of a part of a pipeline: groups keep their turns, and buffers are the lane's */
    bool by_turn;
    int64_t pack_bytes;  /* of a bucket of gradients; 0: none; AP_BUCKET_BY_PRICE */
    int64_t limit_bytes; /* of ap_plan_buffers */
    const struct ap_cost *cost; /* of the plan */
};
/* Buckets of at most AP_BUCKET_MOST bytes that minimize the time of the last bucket,
 * which nothing hides, plus the latencies of all buckets. */
#define AP_BUCKET_BY_PRICE -1
/* DistributedDataParallel's bucket_cap_mb of 25 MiB. */
#define AP_BUCKET_MOST (25 << 20)

/*
 * SPMD partitioning: makes the local program of a plan. Each conversion runs once, before
 * its first user, or, for a later phase, as soon as nothing else needs the larger value.
 * Operands with padded reduced factors are masked. iota, constants, gather and scatter
 * get their global place (attrs.global, attrs.layout).
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
 * Changes the values that forward passes of attentions keep for their backward passes,
 * for devices with kernels for both: the result and a number per row, in place of two
 * numbers per row. Groups do not change. (program_attention.c)
 */
void ap_program_attention(struct ap_arena *arena, struct ap_program *prog);

/*
 * Makes groups that a device runs as one kernel each (kernel_form.h) from the kernels
 * that `ap-fuse --kernels` marked. Includes ap_program_attention and the splitting of
 * rings. Called before ap_program_pack. (program_kernels.c)
 */
void ap_program_kernels(struct ap_arena *arena, struct ap_program *prog);

/*
 * Keeps values on the host while nothing reads them, as the plan says: adds copies out of
 * the device's memory and back. host: [node of the source graph]. Called before
 * ap_program_pack. (program_offload.c)
 */
void ap_program_offload(struct ap_arena *arena, const bool *host,
                        struct ap_program *prog);

/*
 * Puts gradients into buckets, and chooses where collectives start and where they are
 * awaited, as the form says. Called before buffers are planned. (program_pack.c)
 */
void ap_program_pack(struct ap_arena *arena, struct ap_program *prog,
                     const struct ap_program_form *form);
/* Whether the blocks of a collective node lie in memory in the order in which it sends
 * and receives them; only such a collective runs concurrently with other groups. */
bool ap_program_is_direct(const struct ap_program *prog, int node);

/* Whether a value is read by its own group only, and by that at least once: it needs no
 * memory. */
bool ap_program_is_inner(const struct ap_graph *g, int node);

/* Whether a node is alone in its group and a view: another name for its operand, or for
 * consecutive elements of a collective's result that begin at a multiple of 64 bytes. */
bool ap_program_is_view(const struct ap_graph *g, int node);
/* The place in bytes at which a view begins in its operand's value; -1 if the node is not
 * a view. */
int64_t ap_program_view_offset(const struct ap_graph *g, int node);
/* Whether a node is the all-reduce of a bucket that no other node reads, so that it works
 * in the bucket's memory. */
bool ap_program_reduces_in_place(const struct ap_program *prog, int node);
/* Whether a node keeps the results of earlier microbatches, so that its value is complete
 * after the last microbatch only. */
bool ap_program_is_carried(const struct ap_program *prog, int node);

/* Per group of the program (and at its end): the bytes in use while it runs, of values
 * or, if aligned, of their buffers. */
int64_t *ap_program_alive(struct ap_arena *arena, const struct ap_program *prog,
                          bool aligned);

/*
 * Extends the lifetime of a value, from its first to its last group, to the whole loop of
 * microbatches if the value exists before the loop or is carried from one microbatch to
 * the next.
 */
void ap_program_stretch(const struct ap_program *prog, int node, int *birth, int *death);

/* Collectives of a step: count and bytes (of the full tensor on the axes, per group) by
 * kind and axes, over all microbatches. */
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
/*
 * Bytes of the full tensor of a collective node, from its operand's local shape and coll.
 */
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
