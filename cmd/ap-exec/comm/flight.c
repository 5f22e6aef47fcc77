/*
 * Collectives that run concurrently with kernels on one thread. Problem: MPI makes
 * progress only inside of its calls, and a thread that calls it takes the processor from
 * the kernels. Idea: the kernel's TCP stack (or a network card) needs no processor of
 * ours, it needs data in time. A collective is cut into pieces, whose messages are
 * nonblocking; between two kernels the main thread looks at the pieces that have begun:
 * those whose messages have arrived are summed, in the order of ranks, and passed on.
 * Several pieces are under way at once, so that the link has work until the next look. A
 * piece has two rounds of messages at most: every rank's part of a block to the rank that
 * sums it, the sum to all. Messages carry the number of their piece and round as tag, so
 * that ranks may be at different pieces.
 *
 * Cost: a test for each piece under way at each look.
 */
#include "comm/flight.h"

#include "tool/tool.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* Bytes of the tensor that one piece sums: 4 ms of a link of 1 Gbit/s between two ranks.
 * Of 0.3, 1 and 4 MB none is quicker in scripts/bench/overlap-gain. */
#define PIECE_BYTES (1 << 20)
/* Bytes of one message: MPI counts in int. */
#define MESSAGE_BYTES (1 << 30)
/* Memory for blocks of pieces under way: 8 pieces, 30 ms of that link, longer than the
 * kernels between two looks. With one piece at a time a step of
 * scripts/bench/overlap-gain takes 1.45 times as long. */
#define ROOM_BYTES (8 << 20)
/* Pieces under way, and jobs that are not over. */
enum { PIECES = 32, JOBS = 1024 };
/* Tags, beyond those of other messages; MPI promises 32767. */
enum { FIRST_TAG = 1 << 14, TAGS = 1 << 14 };
/* Tickets go round. */
#define TICKETS (1 << 30)

enum round { SUM, SHARE, OVER };

/* Elements at .. at + n of a job, of its blocks where it has blocks; in bytes where
 * nothing is summed. */
struct piece {
    int ticket;
    int tag; /* of its first round */
    enum round round;
    int64_t at, n;
    int64_t memory_at; /* in the room for blocks */
    int n_requests;
    MPI_Request *request;
};

struct flights {
    struct comm *c;
    void (*check)(struct comm *c, int rc, const char *what);
    struct flight_job job[JOBS];
    int left[JOBS];       /* pieces that are not over; one more until all have begun */
    int n_added, n_begun; /* jobs, modulo TICKETS; the next that has pieces to begin */
    int64_t at;           /* how far that one has begun */
    struct piece piece[PIECES];
    unsigned first, n; /* pieces under way, in a ring */
    int tag;           /* of the next piece */
    MPI_Request *requests;
    char *room;
    int64_t end; /* of what the last piece takes of it */
};

static const struct flight_job *job_of(const struct flights *f, const struct piece *p)
{
    return &f->job[p->ticket % JOBS];
}

struct flights *flights_open(struct comm *c,
                             void (*check)(struct comm *c, int rc, const char *what))
{
    struct flights *f = ap_xrealloc(NULL, sizeof *f);
    const size_t each = 2 * (size_t)c->size;
    memset(f, 0, sizeof *f);
    f->c = c;
    f->check = check;
    f->requests = ap_xrealloc(NULL, PIECES * each * sizeof(MPI_Request));
    for (int i = 0; i < PIECES; i++)
        f->piece[i].request = f->requests + (size_t)i * each;
    f->room = ap_xrealloc(NULL, (size_t)flights_memory(f));
    return f;
}

void flights_close(struct flights *f)
{
    if (!f)
        return;
    free(f->requests);
    free(f->room);
    free(f);
}

int64_t flights_memory(const struct flights *f)
{
    /* a small piece has a whole copy of every rank */
    return ROOM_BYTES + (int64_t)f->c->size * COMM_SMALL_BYTES;
}

/* ---- messages of a piece ---- */

/* Bytes of what a job counts. */
static int64_t unit(const struct flight_job *j)
{
    return comm_sums(&j->of) ? ap_dtype_size(j->of.dtype) : 1;
}

/* All ranks sum all of it. */
static bool is_small(const struct flight_job *j, int64_t n)
{
    return j->of.op == AP_OP_ALL_REDUCE && n * unit(j) <= COMM_SMALL_BYTES;
}

/* An all-reduce's piece in blocks, one a rank; the last ones may be shorter. */
static int64_t block_at(const struct flight_job *j, const struct piece *p, int rank)
{
    const int64_t at = ap_ceil_div(p->n, j->n_ranks) * rank;
    return at < p->n ? at : p->n;
}

static int64_t block_n(const struct flight_job *j, const struct piece *p, int rank)
{
    return block_at(j, p, rank + 1) - block_at(j, p, rank);
}

static void send_to(struct flights *f, struct piece *p, int rank, const void *from,
                    int64_t bytes)
{
    if (bytes > 0)
        f->check(f->c,
                 MPI_Isend(from, (int)bytes, MPI_BYTE, rank, p->tag + (int)p->round,
                           job_of(f, p)->comm, &p->request[p->n_requests++]),
                 "MPI_Isend");
}

static void take_from(struct flights *f, struct piece *p, int rank, void *to,
                      int64_t bytes)
{
    if (bytes > 0)
        f->check(f->c,
                 MPI_Irecv(to, (int)bytes, MPI_BYTE, rank, p->tag + (int)p->round,
                           job_of(f, p)->comm, &p->request[p->n_requests++]),
                 "MPI_Irecv");
}

/* Elements that this rank sums of the piece; where they and their sum lie. */
struct summed {
    int64_t n;
    const char *own;
    char *sum;
};

static struct summed summed_of(const struct flights *f, const struct piece *p)
{
    const struct flight_job *j = job_of(f, p);
    const int64_t size = unit(j);
    if (j->of.op == AP_OP_REDUCE_SCATTER)
        return (struct summed){p->n,
                               (const char *)j->send + (j->me * j->of.n + p->at) * size,
                               (char *)j->recv + p->at * size};
    char *buf = (char *)j->recv + p->at * size;
    if (is_small(j, p->n))
        return (struct summed){p->n, buf, buf};
    buf += block_at(j, p, j->me) * size;
    return (struct summed){block_n(j, p, j->me), buf, buf};
}

/* Everybody's part of what a rank sums goes there. */
static void begin_sum(struct flights *f, struct piece *p)
{
    const struct flight_job *j = job_of(f, p);
    const struct summed mine = summed_of(f, p);
    const int64_t size = unit(j);
    char *blocks = f->room + p->memory_at;
    memcpy(blocks + j->me * mine.n * size, mine.own, (size_t)(mine.n * size));
    for (int k = 1; k < j->n_ranks; k++) {
        const int from = (j->me + j->n_ranks - k) % j->n_ranks;
        take_from(f, p, from, blocks + from * mine.n * size, mine.n * size);
    }
    for (int k = 1; k < j->n_ranks; k++) {
        const int to = (j->me + k) % j->n_ranks;
        const char *part = (const char *)j->recv + p->at * size;
        int64_t n = p->n;
        if (j->of.op == AP_OP_REDUCE_SCATTER)
            part = (const char *)j->send + (to * j->of.n + p->at) * size;
        else if (!is_small(j, p->n))
            part += block_at(j, p, to) * size, n = block_n(j, p, to);
        send_to(f, p, to, part, n * size);
    }
}

static void end_sum(struct flights *f, const struct piece *p)
{
    const struct flight_job *j = job_of(f, p);
    const struct summed mine = summed_of(f, p);
    comm_combine(mine.sum, f->room + p->memory_at, j->n_ranks, mine.n, j->of.dtype,
                 j->of.red);
}

/* Every rank's block goes to all. */
static void begin_share(struct flights *f, struct piece *p)
{
    const struct flight_job *j = job_of(f, p);
    const int64_t size = unit(j);
    if (j->of.op == AP_OP_COLLECTIVE_PERMUTE && j->of.peers.to == j->me) {
        memmove((char *)j->recv + p->at, (const char *)j->send + p->at, (size_t)p->n);
        return;
    }
    if (j->of.op == AP_OP_COLLECTIVE_PERMUTE) {
        take_from(f, p, j->of.peers.from, (char *)j->recv + p->at, p->n);
        send_to(f, p, j->of.peers.to, (const char *)j->send + p->at, p->n);
        return;
    }
    const bool reduced = j->of.op == AP_OP_ALL_REDUCE;
    for (int k = 1; k < j->n_ranks; k++) {
        const int q = (j->me + j->n_ranks - k) % j->n_ranks;
        const int64_t at = reduced ? p->at + block_at(j, p, q) : q * j->of.n + p->at;
        take_from(f, p, q, (char *)j->recv + at * size,
                  (reduced ? block_n(j, p, q) : p->n) * size);
    }
    const int64_t at = reduced ? p->at + block_at(j, p, j->me) : j->me * j->of.n + p->at;
    char *mine = (char *)j->recv + at * size;
    const int64_t bytes = (reduced ? block_n(j, p, j->me) : p->n) * size;
    if (!reduced)
        memmove(mine, (const char *)j->send + p->at, (size_t)bytes);
    for (int k = 1; k < j->n_ranks; k++)
        send_to(f, p, (j->me + k) % j->n_ranks, mine, bytes);
}

/* ---- pieces ---- */

/* Elements of a job's piece from `at` on. */
static int64_t piece_of(const struct flight_job *j, int64_t at)
{
    int64_t most = MESSAGE_BYTES;
    if (comm_sums(&j->of))
        most = PIECE_BYTES / unit(j);
    if (j->of.op == AP_OP_REDUCE_SCATTER)
        most = most / j->n_ranks > 0 ? most / j->n_ranks : 1;
    return j->of.n - at < most ? j->of.n - at : most;
}

/* Memory for the blocks that a rank sums of n elements. */
static int64_t memory_of(const struct flight_job *j, int64_t n)
{
    if (!comm_sums(&j->of))
        return 0;
    if (j->of.op == AP_OP_ALL_REDUCE && !is_small(j, n))
        n = ap_ceil_div(n, j->n_ranks);
    return (n * unit(j) * j->n_ranks + 63) / 64 * 64;
}

static struct piece *piece_at(struct flights *f, unsigned i)
{
    return &f->piece[(f->first + i) % PIECES];
}

/* Where `bytes` of the room are free, which is taken as a ring: after the last piece's,
 * before the first one's. -1: nowhere now. */
static int64_t find_room(struct flights *f, int64_t bytes)
{
    if (f->n == 0)
        f->end = 0;
    const int64_t end = f->end, first = f->n ? piece_at(f, 0)->memory_at : 0;
    if (bytes == 0)
        return end;
    if (end < first)
        return end + bytes < first ? end : -1;
    if (end + bytes <= flights_memory(f))
        return end;
    return bytes < first ? 0 : -1;
}

static void begin_round(struct flights *f, struct piece *p)
{
    p->n_requests = 0;
    if (p->round == SUM)
        begin_sum(f, p);
    else
        begin_share(f, p);
}

/* Begins the next piece of the next job; false if there is none, or no room. */
static bool begin_piece(struct flights *f)
{
    if (f->n_begun == f->n_added || f->n == PIECES)
        return false;
    const struct flight_job *j = &f->job[f->n_begun % JOBS];
    const int64_t n = piece_of(j, f->at), bytes = memory_of(j, n);
    const int64_t memory_at = find_room(f, bytes);
    if (memory_at < 0)
        return false;
    struct piece *p = piece_at(f, f->n++);
    p->ticket = f->n_begun;
    p->tag = FIRST_TAG + f->tag;
    f->tag = (f->tag + 2) % TAGS;
    p->round = comm_sums(&j->of) ? SUM : SHARE;
    p->at = f->at;
    p->n = n;
    p->memory_at = memory_at;
    f->end = memory_at + bytes;
    f->left[f->n_begun % JOBS]++;
    f->at += n;
    if (f->at == j->of.n) {
        f->left[f->n_begun % JOBS]--;
        f->n_begun = (f->n_begun + 1) % TICKETS;
        f->at = 0;
    }
    begin_round(f, p);
    return true;
}

/* Its messages are through. */
static void next_round(struct flights *f, struct piece *p)
{
    const struct flight_job *j = job_of(f, p);
    const bool again =
        p->round == SUM && j->of.op == AP_OP_ALL_REDUCE && !is_small(j, p->n);
    if (p->round == SUM)
        end_sum(f, p);
    p->round = again ? SHARE : OVER;
    if (again)
        begin_round(f, p);
    else
        f->left[p->ticket % JOBS]--;
}

void flights_progress(struct flights *f)
{
    for (unsigned i = 0; i < f->n; i++) {
        struct piece *p = piece_at(f, i);
        int done = p->round != OVER;
        while (done && p->round != OVER) {
            f->check(f->c,
                     MPI_Testall(p->n_requests, p->request, &done, MPI_STATUSES_IGNORE),
                     "MPI_Testall");
            if (done)
                next_round(f, p);
        }
    }
    while (f->n > 0 && piece_at(f, 0)->round == OVER) {
        f->first = (f->first + 1) % PIECES;
        f->n--;
    }
    while (begin_piece(f))
        ;
}

/* ---- jobs ---- */

bool flights_done(const struct flights *f, int ticket)
{
    return f->left[ticket % JOBS] == 0;
}

bool flights_full(const struct flights *f)
{
    return f->left[f->n_added % JOBS] > 0;
}

int flights_add(struct flights *f, const struct flight_job *job)
{
    const int ticket = f->n_added;
    assert(!flights_full(f) && job->of.n > 0);
    f->job[ticket % JOBS] = *job;
    f->left[ticket % JOBS] = 1;
    f->n_added = (f->n_added + 1) % TICKETS;
    return ticket;
}
