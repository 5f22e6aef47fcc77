#define _XOPEN_SOURCE 700 /* realpath */
/*
 * Checkpoints by all ranks.
 * Problem: every rank holds shards under one plan; the file has whole tensors, and the
 * next run another plan. No state of the file in between may be taken for a checkpoint.
 * Idea: an element's place in the file follows from its place in the whole tensor, so
 * every rank writes and reads its own runs of neighbours, without communication. Of
 * ranks that hold the same shard, the tensor's number modulo their count picks the
 * writer. The new file has another name until all ranks have synced it.
 * Cost: linear in this rank's elements, one system call per run.
 */
#include "run/checkpoint.h"

#include "step/backend.h"
#include "run/block.h"
#include "tool/tool.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- a shard and the file ---- */

/* Elements on their way between a shard in memory and the file. */
struct moving {
    struct checkpoint *c;
    struct checkpoint_tensor *tensor;
    char *host;
    int size; /* bytes of an element */
    bool write, count;
};

/* -1: failed, errno is 0 where the file ends early. */
static int move_bytes(const struct moving *m, char *p, int64_t bytes, int64_t at)
{
    while (bytes > 0) {
        const ssize_t n = m->write ? pwrite(m->c->fd, p, (size_t)bytes, (off_t)at)
                                   : pread(m->c->fd, p, (size_t)bytes, (off_t)at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n == 0)
            errno = 0;
        if (n <= 0)
            return -1;
        p += n;
        at += n;
        bytes -= n;
    }
    return 0;
}

static int move_run(void *ctx, int64_t local, int64_t whole, int64_t n)
{
    struct moving *m = ctx;
    char *p = m->host + local * m->size;
    const int64_t at = m->c->data_at + m->tensor->at + whole * m->size;
    if (move_bytes(m, p, n * m->size, at))
        return ap_err_set(&m->c->failed, "%s: tensor %d (%s): %s", m->c->path,
                          m->tensor->index, m->tensor->name,
                          errno ? strerror(errno) : "the file ends early");
    uint64_t sum = 0;
    for (int64_t i = 0; m->count && i < n; i++) {
        uint64_t bits = 0;
        memcpy(&bits, p + i * m->size, (size_t)m->size);
        sum += ap_hash_mix((uint64_t)(whole + i), bits);
    }
    m->tensor->sum += sum;
    return 0;
}

/* Whether this rank is the one that answers for its shard of the tensor; of devices of
 * one rank, none holds another's shard. */
static bool is_mine(const struct exec *x, const struct ap_layout *layout, int index)
{
    const struct ap_mesh *mesh = &x->prog->mesh;
    int64_t copy = 0, copies = 1, coords[AP_MAX_AXES];
    ap_mesh_coords(mesh, x->comm->rank, coords);
    for (int a = mesh->microbatch ? 1 : 0; a < mesh->n_axes; a++)
        if (layout->axis[a].kind != AP_SPLIT) {
            copy = copy * mesh->size[a] + coords[a];
            copies *= mesh->size[a];
        }
    return copy == index % copies;
}

static struct checkpoint_tensor *tensor_of(const struct checkpoint *c,
                                           const struct exec *x, int k)
{
    const struct ap_node *v = &x->prog->local.nodes[x->prog->local.params[k]];
    const int number = x->number ? x->number[k] : k;
    const int index = v->attrs->argument ? v->attrs->argument->index : number;
    for (int lo = 0, hi = c->n; number >= 0 && lo < hi;) {
        const int mid = (lo + hi) / 2;
        if (c->tensor[mid].index == index)
            return &c->tensor[mid];
        if (c->tensor[mid].index < index)
            lo = mid + 1;
        else
            hi = mid;
    }
    return NULL;
}

bool checkpoint_has(const struct checkpoint *c, const struct exec *x, int k)
{
    return c && tensor_of(c, x, k);
}

static void move_shard(struct moving *m, struct exec *x, int k)
{
    const struct ap_node *v = &x->prog->local.nodes[x->prog->local.params[k]];
    const struct placement place = exec_placement(v);
    struct ap_mark mark = ap_arena_mark(x->arena);
    struct block b;
    m->size = ap_dtype_size(place.global.dtype);
    int64_t coords[AP_MAX_AXES];
    ap_mesh_coords(&x->prog->mesh, x->comm->rank, coords);
    block_open(x->arena, &b, &x->prog->mesh, &place, v->attrs->argument,
               coords);
    block_each(&b, move_run, m);
    ap_arena_rewind(x->arena, mark);
}

void checkpoint_get(struct checkpoint *c, struct exec *x, int k, char *host)
{
    const struct ap_node *v = &x->prog->local.nodes[x->prog->local.params[k]];
    const struct placement place = exec_placement(v);
    struct moving m = {.c = c, .tensor = tensor_of(c, x, k), .host = host};
    m.count =
        (!x->answers || x->answers[k]) && is_mine(x, &place.layout, m.tensor->index);
    if (!c->failed.msg[0])
        move_shard(&m, x, k);
}

void checkpoint_put(struct checkpoint *c, struct exec *x, int k)
{
    const int node = x->prog->local.params[k];
    const struct ap_node *v = &x->prog->local.nodes[node];
    const struct placement place = exec_placement(v);
    struct moving m = {
        .c = c, .tensor = tensor_of(c, x, k), .write = true, .count = true};
    if (!m.tensor || c->failed.msg[0] || (x->answers && !x->answers[k]) ||
        !is_mine(x, &place.layout, m.tensor->index))
        return;
    const int64_t bytes = ap_shape_bytes(&v->shape);
    m.host = ap_xrealloc(NULL, (size_t)bytes + 1);
    x->backend->read(m.host, x->value[node], bytes);
    move_shard(&m, x, k);
    free(m.host);
}

/* Sums of all ranks, on rank 0; those of this rank start anew. */
static void add_sums(struct checkpoint *c, struct comm *job, uint64_t *total)
{
    const int64_t bytes = c->n * (int64_t)sizeof *total;
    uint64_t *sum = ap_xrealloc(NULL, (size_t)bytes + 1);
    memset(total, 0, (size_t)bytes);
    for (int r = 0; r < job->size; r++) {
        for (int i = 0; i < c->n; i++)
            sum[i] = c->tensor[i].sum;
        if (job->rank == r || job->rank == 0)
            job->to_root(job, r, sum, bytes);
        for (int i = 0; i < c->n; i++)
            total[i] += sum[i];
    }
    for (int i = 0; i < c->n; i++)
        c->tensor[i].sum = 0;
    free(sum);
}

int checkpoint_check(struct checkpoint *c, struct comm *job, struct ap_err *err)
{
    uint64_t *total = ap_xrealloc(NULL, (size_t)c->n * sizeof *total + 1);
    *err = c->failed;
    add_sums(c, job, total);
    for (int i = 0; job->rank == 0 && !err->msg[0] && i < c->n; i++)
        if (total[i] != c->tensor[i].hash)
            ap_err_set(err,
                       "%s: tensor %d (%s): its bytes have changed since it was "
                       "written (hash)",
                       c->path, c->tensor[i].index, c->tensor[i].name);
    free(total);
    return err->msg[0] ? -1 : 0;
}

/* ---- saving ---- */

/* What this process has of the folder that it saves in. */
static struct {
    char *lock;       /* a file that it has locked; NULL: none */
    const char *made; /* the folder, where it has made it; NULL: it has not */
} claimed;

void checkpoint_give_back(void)
{
    if (claimed.lock)
        unlink(claimed.lock); /* before the lock is free */
    if (claimed.made)
        rmdir(claimed.made); /* a folder with a checkpoint stays */
    claimed.lock = NULL;
    claimed.made = NULL;
}

/* Locks the file, made where it is missing, for as long as the process lives. POSIX's
 * locks are those that NFS has, too. */
static int lock_file(const char *path, const char *dir, struct ap_err *err)
{
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    for (;;) {
        struct stat locked, named;
        const int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
        if (fd < 0)
            return ap_err_set(err, "%s: %s", path, strerror(errno));
        if (fcntl(fd, F_SETLK, &whole) && (errno == EAGAIN || errno == EACCES)) {
            close(fd);
            return ap_err_set(err, "--save %s: another run saves there", dir);
        }
        if (fcntl(fd, F_SETLK, &whole)) {
            ap_warn("%s: cannot be locked (%s): no other run may save there", path,
                    strerror(errno));
            return 0;
        }
        if (!fstat(fd, &locked) && !stat(path, &named) && locked.st_dev == named.st_dev &&
            locked.st_ino == named.st_ino)
            return 0;
        close(fd); /* the run that had it before has removed it */
    }
}

int checkpoint_claim(const char *dir, struct ap_err *err)
{
    struct ap_buf path = {0};
    struct stat st;

    atexit(checkpoint_give_back);
    if (!mkdir(dir, 0777))
        claimed.made = dir;
    const int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return ap_err_set(err, "--save %s: %s", dir, strerror(errno));
    close(fd);
    ap_buf_printf(&path, "%s/" CHECKPOINT_NAME, dir);
    char *real = realpath(path.data, NULL); /* runs that replace one file have one lock */
    int rc = 0;
    if (!real && errno != ENOENT)
        rc = ap_err_set(err, "%s: %s", path.data, strerror(errno));
    else if (real && !stat(real, &st) && !S_ISREG(st.st_mode))
        rc = ap_err_set(err, "%s: expected a file that can be replaced", path.data);
    if (real) {
        path.len = 0;
        ap_buf_puts(&path, real);
    }
    free(real);
    ap_buf_puts(&path, ".lock");
    if (!rc)
        rc = lock_file(path.data, dir, err);
    if (rc)
        ap_buf_free(&path);
    else
        claimed.lock = path.data;
    return rc;
}

/* Makes the file, with room for all of it, so that a full disk shows before ranks write.
 */
static int make_file(struct checkpoint *c, const char *dir, struct ap_err *err)
{
    mkdir(dir, 0777); /* it may have been removed since */
    c->fd = open(c->path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (c->fd < 0)
        return ap_err_set(err, "%s: %s", c->path, strerror(errno));
    ap_tool_unfinished(c->path);
    const int why = posix_fallocate(c->fd, 0, (off_t)(c->data_at + checkpoint_bytes(c)));
    return why ? ap_err_set(err, "%s: %s", c->path, strerror(why)) : 0;
}

/* The file that rank 0 made. */
static int open_file(struct checkpoint *c, struct ap_err *err)
{
    struct stat st;
    c->fd = open(c->path, O_RDWR | O_CLOEXEC);
    if (c->fd < 0 || fstat(c->fd, &st))
        return ap_err_set(err, "%s: %s (ranks of all hosts write the same file)", c->path,
                          strerror(errno));
    if (st.st_size != c->data_at + checkpoint_bytes(c))
        return ap_err_set(err, "%s: not the file that rank 0 has made", c->path);
    return 0;
}

static int sync_file(struct checkpoint *c, struct ap_err *err)
{
    const bool bad = fsync(c->fd) != 0;
    return bad ? ap_err_set(err, "%s: %s", c->path, strerror(errno)) : 0;
}

/* The header, now that the hashes are known; rank 0. */
static int write_header(struct checkpoint *c, struct ap_err *err)
{
    struct ap_buf header = {0};
    const struct moving m = {.c = c, .write = true};
    checkpoint_header(c, &header);
    int rc = move_bytes(&m, header.data, (int64_t)header.len, 0);
    if (rc)
        ap_err_set(err, "%s: %s", c->path, strerror(errno));
    ap_buf_free(&header);
    return rc ? rc : sync_file(c, err);
}

/* The new name of a file whose bytes are on the disk, and the folder's entry; rank 0. */
static int rename_file(const char *temp, const char *path, const char *dir,
                       struct ap_err *err)
{
    if (rename(temp, path))
        return ap_err_set(err, "%s: %s", path, strerror(errno));
    const int fd = open(dir, O_RDONLY | O_CLOEXEC);
    if (fd >= 0) { /* not all file systems sync folders */
        fsync(fd);
        close(fd);
    }
    return 0;
}

/* Whether a rank failed; then rank 0 removes the new file. */
static bool any_failed(struct comm *job, int rc, const struct checkpoint *c)
{
    const bool failed = job->max(job, rc != 0) != 0;
    if (failed && job->rank == 0)
        unlink(c->path);
    return failed;
}

int checkpoint_save(struct saver *s, struct comm *job, int64_t step, struct ap_err *err)
{
    struct checkpoint *c = &s->file;
    struct ap_buf path = {0}, temp = {0}, header = {0};
    uint64_t *total = ap_xrealloc(NULL, (size_t)c->n * sizeof *total + 1);
    ap_buf_printf(&path, "%s/" CHECKPOINT_NAME, s->dir);
    char *real = realpath(path.data, NULL); /* what a link leads to is replaced */
    ap_buf_printf(&temp, "%s.new", real ? real : path.data);
    c->path = temp.data;
    c->fd = -1;
    c->step = step;
    c->failed = (struct ap_err){{0}};
    checkpoint_header(c, &header);
    ap_buf_free(&header);

    int rc = job->rank == 0 ? make_file(c, s->dir, err) : 0;
    bool failed = any_failed(job, rc, c);
    if (!failed) {
        rc = job->rank == 0 ? 0 : open_file(c, err);
        if (!rc)
            s->put(s->ctx, c);
        if (!rc && c->failed.msg[0])
            rc = ap_err_set(err, "%s", c->failed.msg);
        if (!rc)
            rc = sync_file(c, err);
        add_sums(c, job, total);
        for (int i = 0; i < c->n; i++)
            c->tensor[i].hash = total[i];
        failed = any_failed(job, rc, c);
    }
    if (!failed) {
        rc = job->rank == 0 ? write_header(c, err) : 0;
        if (!rc && job->rank == 0)
            rc = rename_file(temp.data, real ? real : path.data, s->dir, err);
        any_failed(job, rc, c);
    }
    if (c->fd >= 0)
        close(c->fd);
    c->fd = -1;
    if (job->rank == 0)
        ap_tool_unfinished(NULL);
    free(total);
    free(real);
    ap_buf_free(&path);
    ap_buf_free(&temp);
    return rc;
}
