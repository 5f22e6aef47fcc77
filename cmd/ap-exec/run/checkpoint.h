/*
 * Checkpoints: the weights and states that a step changes, in one file
 * DIR/checkpoint.safetensors.
 *
 * The format is safetensors: eight bytes of length, a JSON header, the tensors' bytes one
 * after the other. It was chosen because every rank can write its own elements at
 * offsets that are known beforehand, one rename replaces a whole checkpoint, it has names
 * for bf16 and fp8, and Python, Rust and C++ libraries of that name read it elsewhere.
 *
 * Tensor K is argument K of the step (a stack of layers is one), or parameter K where the
 * document has no step: the numbers of --data and --out. Tensors have the shapes of the
 * whole graph, independent of the plan and the number of ranks. Under __metadata__ are
 * "step", the steps done; "K.name"; and "K.hash", the sum, modulo 2^64, of ap_hash_mix(i,
 * bits) over the tensor's elements i, which ranks can make of parts in any order.
 */
#ifndef EXEC_CHECKPOINT_H
#define EXEC_CHECKPOINT_H

#include "step/exec.h"

struct checkpoint_tensor {
    int index; /* K */
    const char
        *name; /* of the parameter, or of the first parameter that is a part of it */
    struct ap_shape whole; /* of argument K */
    int64_t at;            /* bytes from the first tensor */
    uint64_t hash;         /* that the file has */
    uint64_t sum;          /* of the bytes that this rank has written or read so far */
};

struct checkpoint {
    const char *path;
    int fd;       /* -1: not open */
    int64_t step; /* steps done */
    int64_t data_at;
    int n;
    struct checkpoint_tensor *tensor; /* ascending by index */
    struct ap_err failed;             /* the first failure of put and get; empty: none */
};

/* ---- the file (checkpoint_file.c) ---- */

#define CHECKPOINT_NAME "checkpoint.safetensors"

/* The tensors of g's parameters that a step changes, in file order; g: of the whole
 * graph, with or without operators. -1: a type that the format has no name for. arena. */
int checkpoint_list(struct ap_arena *arena, const struct ap_graph *g,
                    struct checkpoint *c, struct ap_err *err);
/* The header's bytes, length included, padded to a multiple of 64; sets c->data_at. */
void checkpoint_header(struct checkpoint *c, struct ap_buf *out);
/* Bytes of a tensor, and of all tensors. */
int64_t checkpoint_bytes(const struct checkpoint *c);
/* Opens DIR/checkpoint.safetensors and reads its header; -1 with err, which names the
 * file: absent, cut short, not of this format. The caller closes c->fd. arena. */
int checkpoint_open(struct ap_arena *arena, const char *dir, struct checkpoint *c,
                    struct ap_err *err);
/* Whether the open file has just the tensors that g's steps change. */
int checkpoint_match(struct ap_arena *arena, const struct ap_graph *g,
                     struct checkpoint *c, struct ap_err *err);

/* ---- ranks (checkpoint.c) ---- */

/* Whether the step changes parameter k of x (or another part of the same argument). */
bool checkpoint_has(const struct checkpoint *c, const struct exec *x, int k);
/*
 * Parameter k of x, whose shard on this rank is `host`, from the file. Elements count for
 * the hash on one of the ranks that hold them only. Failures are kept in c, so that all
 * ranks go on to checkpoint_check.
 */
void checkpoint_get(struct checkpoint *c, struct exec *x, int k, char *host);
/* After all parameters were read: whether all ranks could, and the hashes are right. The
 * same on all ranks. */
int checkpoint_check(struct checkpoint *c, struct comm *job, struct ap_err *err);
/* Likewise to the file, by one of the ranks that hold an element; called by `put`. */
void checkpoint_put(struct checkpoint *c, struct exec *x, int k);

/*
 * The folder, made where it is missing, is this run's from now on: another run that saves
 * there, or where a link leads to the same checkpoint, would write the same new file. A
 * locked file next to the checkpoint marks it; the lock ends with the process in any
 * case. A file system without locks is warned of. Files that were made for it are removed
 * at exit, and so is a folder that is still empty. -1, with err: another run has it, or
 * what has the checkpoint's name is no file. Rank 0, before the first step.
 */
int checkpoint_claim(const char *dir, struct ap_err *err);
/* The same at once, while the other ranks wait: when they exit, mpirun may end this one.
 */
void checkpoint_give_back(void);

/* The state of saving: a list of tensors, and the function that gives this rank's
 * parameters. */
struct saver {
    struct checkpoint file;
    const char *dir;
    void (*put)(void *ctx, struct checkpoint *c);
    void *ctx;
};
/*
 * Writes a checkpoint next to the one in the folder, syncs it and renames it. Called by
 * all ranks, which agree (job_agree) afterwards: -1, with err, on those that failed; the
 * old checkpoint stays then.
 */
int checkpoint_save(struct saver *s, struct comm *job, int64_t step, struct ap_err *err);

#endif
