#ifdef __linux__
#define _GNU_SOURCE /* sched_getaffinity */
#endif
#include "run/job.h"
#include "base/file.h"
#include "comm/watch.h"
#include "run/launch.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef __linux__
#include <sched.h>
#include <sys/prctl.h>
#endif

/* This process's rank, as mpirun or srun (with PMIx or PMI2) says it; NULL: neither has
 * started it. */
static const char *started_as(void)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"};
    const char *rank = NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names && !rank; i++)
        rank = getenv(names[i]);
    return rank;
}

bool job_is_started(void)
{
    return started_as() != NULL;
}

bool job_is_first(void)
{
    const char *rank = started_as();
    return !rank || !strcmp(rank, "0");
}

int job_cores(void)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS",
                                        "SLURM_NTASKS_PER_NODE"};
    const int online = (int)sysconf(_SC_NPROCESSORS_ONLN);
    int bound = online, ranks = 0;
#ifdef __linux__
    cpu_set_t set;
    if (!sched_getaffinity(0, sizeof set, &set))
        bound = CPU_COUNT(&set);
#endif
    if (bound < online)
        return bound;
    for (size_t i = 0; i < sizeof names / sizeof *names && ranks < 1; i++)
        ranks = getenv(names[i]) ? atoi(getenv(names[i])) : 0;
    const int share = online / (ranks < 1 ? 1 : ranks);
    return share < 1 ? 1 : share;
}

void job_join(struct comm *c, double watchdog_sec)
{
    const char *rank = started_as();
    if (!rank) {
        comm_self_open(c);
        return;
    }
#ifdef __linux__
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* when mpirun, or its like on this host, is gone */
#endif
    watch_start(atoi(rank), watchdog_sec);
    comm_mpi_open(c);
}

void job_agree(struct comm *c, int rc, int exit_code, const struct ap_err *err)
{
    const int64_t first = -c->max(c, rc ? -(int64_t)c->rank : -(int64_t)c->size);
    if (first == c->size)
        return;
    const int code = (int)c->max(c, c->rank == first ? exit_code : 0);
    if (c->rank == first && c->size > 1 && first > 0)
        ap_say("rank %d: %s", c->rank, err->msg);
    else if (c->rank == first)
        ap_say("%s", err->msg);
    if (c->rank == first)
        watch_told(code);
    c->close(c);
    exit(code);
}

void job_read(const char *path, struct ap_arena *arena, struct comm *c,
              struct ap_doc *doc)
{
    struct ap_err err = {{0}};
    char *text = NULL;
    size_t len = 0;
    int rc = 0;
    const char *kept = strcmp(path, "-") ? NULL : watch_shared(INPUT_VARIABLE);
    const char *file = strcmp(path, "-") ? path : "<stdin>";
    *doc = (struct ap_doc){.file = file};
    if (c->rank == 0)
        rc = ap_read_file(arena, kept ? kept : path, false, &text, &len, &err) ||
             ap_doc_parse(arena, file, text, len, doc, &err);
    job_agree(c, rc, AP_BAD_INPUT, &err);
}

/* ---- the program ---- */

/* The document's program; part: of one that rank 0 has checked. */
static int load(struct ap_arena *arena, const struct ap_doc *doc, bool part,
                struct ap_pipeline_program *program, struct ap_err *err)
{
    const struct ap_section *section = ap_doc_find(doc, "program");
    struct ap_err why = {{0}};
    if (!section)
        section = ap_doc_find(doc, "pipeline");
    if (!section)
        return ap_err_set(err, "%s: has no program: pipe it through ap-rewrite first",
                          doc->file);
    json_t *o = ap_doc_load(doc, section, &why);
    const struct ap_at at = {NULL, section->name, 0};
    int rc = !o     ? -1
             : part ? ap_pipeline_part_from_json(arena, o, &at, program, &why)
                    : ap_pipeline_from_json(arena, o, &at, program, &why);
    json_decref(o);
    if (rc) {
        const bool placed = !strncmp(why.msg, doc->file, strlen(doc->file));
        return ap_err_set(err, placed ? "%s%s" : "%s: %s", placed ? "" : doc->file,
                          why.msg);
    }
    return 0;
}

static int check_ranks(const struct ap_doc *doc, int n, int n_ranks, struct ap_err *err)
{
    if (n != n_ranks)
        return ap_err_set(err,
                          "%s: the program is for %d rank%s, this job has %d: run it "
                          "with -n %d",
                          doc->file, n, n == 1 ? "" : "s", n_ranks, n);
    return 0;
}

int job_check(struct ap_arena *arena, const struct ap_doc *doc, int n_ranks,
              struct ap_pipeline_program *program, struct ap_err *err)
{
    if (load(arena, doc, false, program, err))
        return -1;
    return n_ranks > 0 ? check_ranks(doc, program->n_ranks, n_ranks, err) : 0;
}

/* Rank 0's text to all ranks of c (arena). */
static void pass_text(struct ap_arena *arena, struct comm *c, struct ap_buf *text)
{
    int64_t bytes = (int64_t)text->len;
    c->broadcast(c, &bytes, sizeof bytes);
    if (c->rank != 0)
        *text = (struct ap_buf){ap_arena_alloc(arena, (size_t)bytes + 1), (size_t)bytes,
                                (size_t)bytes};
    c->broadcast(c, text->data, bytes);
}

/* A document with the section of a lane's part. */
static void put_part(struct ap_buf *out, const struct ap_pipeline_program *r, int lane)
{
    struct ap_arena scratch = {0};
    const struct ap_pipeline_program part = ap_pipeline_part(&scratch, r, lane);
    ap_buf_printf(out, "{\"autopar\":%d,\"%s\":", AP_DOC_VERSION, ap_pipeline_section(r));
    ap_pipeline_to_json(&part, out);
    ap_buf_putc(out, '}');
    ap_arena_free(&scratch);
}

/* The document of a lane's part, from rank 0 to the lane's ranks. Called by all ranks,
 * which know the lane of each; r: on rank 0. Text is the caller's on rank 0, else in the
 * arena. */
static void pass_lane(struct ap_arena *arena, struct comm *c,
                      const struct ap_pipeline_program *r, const int *lane_of, int lane,
                      struct ap_buf *mine)
{
    struct ap_buf text = {0};
    int *ranks = AP_NEW_N(arena, c->size + 1, int), n = 0;
    struct comm sub;
    ranks[n++] = 0;
    for (int k = 1; k < c->size; k++)
        if (lane_of[k] == lane)
            ranks[n++] = k;
    if (c->rank == 0)
        put_part(&text, r, lane);
    if (n > 1 && c->split(c, ranks, n, &sub)) {
        pass_text(arena, &sub, &text);
        sub.close(&sub);
    }
    if (lane_of[c->rank] == lane)
        *mine = text;
    else if (c->rank == 0)
        ap_buf_free(&text);
}

/* Each rank's part of rank 0's program. */
static void pass_parts(struct ap_arena *arena, struct comm *c,
                       const struct ap_pipeline_program *r, struct ap_buf *mine)
{
    int *lane_of = AP_NEW_N(arena, c->size + 1, int);
    int64_t n_lanes = r->n_lanes;
    for (int i = 0; c->rank == 0 && i < r->n_lanes; i++)
        for (int k = 0; k < r->lane[i].n_ranks; k++)
            lane_of[r->lane[i].ranks[k]] = i;
    c->broadcast(c, &n_lanes, sizeof n_lanes);
    c->broadcast(c, lane_of, c->size * (int64_t)sizeof *lane_of);
    for (int i = 0; i < n_lanes; i++)
        pass_lane(arena, c, r, lane_of, i, mine);
}

void job_program(struct ap_arena *arena, const struct ap_doc *doc, struct comm *c,
                 struct ap_pipeline_program *program)
{
    struct ap_err err = {{0}};
    struct ap_arena whole = {0}; /* what is not this rank's, and texts */
    struct ap_buf text = {0};
    struct ap_doc part;
    *program = (struct ap_pipeline_program){0};
    int rc =
        c->rank == 0 && (load(c->size > 1 ? &whole : arena, doc, false, program, &err) ||
                         check_ranks(doc, program->n_ranks, c->size, &err))
            ? -1
            : 0;
    job_agree(c, rc, AP_BAD_INPUT, &err);
    if (c->size > 1) {
        pass_parts(&whole, c, program, &text);
        rc = ap_doc_parse(&whole, doc->file, text.data, text.len, &part, &err) ||
             load(arena, &part, true, program, &err);
    }
    job_agree(c, rc, AP_BAD_INPUT, &err);
    if (c->rank == 0)
        ap_buf_free(&text);
    ap_arena_free(&whole);
}

/* ---- where ranks lie ---- */

enum { HOST_BYTES = 64 };

/* Names of the ranks' hosts, HOST_BYTES each, on rank 0. Caller frees. */
static char *gather_hosts(struct comm *c)
{
    char own[HOST_BYTES] = "";
    char *host = ap_xrealloc(NULL, (size_t)c->size * HOST_BYTES);
    gethostname(own, HOST_BYTES - 1);
    for (int r = 0; r < c->size; r++) {
        memcpy(host + (size_t)r * HOST_BYTES, own, HOST_BYTES);
        if (c->rank == 0 || c->rank == r)
            c->to_root(c, r, host + (size_t)r * HOST_BYTES, HOST_BYTES);
    }
    return host;
}

/* The section "placement": the host, by number, that each rank was priced on (arena);
 * NULL: there is none. */
static int read_places(struct ap_arena *arena, const struct ap_doc *doc, int n,
                       const int **planned, struct ap_err *err)
{
    const struct ap_section *section = ap_doc_find(doc, "placement");
    const struct ap_at at = {NULL, "placement", 0};
    *planned = NULL;
    if (!section)
        return 0;
    json_t *o = ap_doc_load(doc, section, err);
    const int rc = !o || ap_get_ids(arena, o, &at, "hosts",
                                    (struct ap_id_range){n, 0, n - 1}, planned, err) < 0
                       ? -1
                       : 0;
    json_decref(o);
    return rc && err->msg[0] == '/' ? ap_doc_err(doc, err) : rc;
}

/* The plan says which ranks share a host: one whose ranks are on several sends over
 * slower links than were priced. */
static void compare_places(const char *host, const int *planned, int n)
{
    for (int r = 1; r < n; r++) {
        int q = 0; /* the first rank that is priced on the same host */
        while (planned[q] != planned[r])
            q++;
        const char *here = host + (size_t)r * HOST_BYTES;
        const char *there = host + (size_t)q * HOST_BYTES;
        if (!strcmp(here, there))
            continue;
        ap_warn("rank %d is on host %s and rank %d on host %s, but the plan has both on "
                "one host: this run sends more between hosts than was priced (ap-rewrite "
                "--rankfile, or ap-shard --cluster for these hosts)",
                r, here, q, there);
        return;
    }
}

/* Without a placement: planners number devices host by host, so that ranks of a host are
 * neighbours. */
static void check_neighbours(const char *host, int n)
{
    for (int r = 1; r < n; r++) {
        const char *here = host + (size_t)r * HOST_BYTES;
        int q = 0; /* the first rank on this host */
        while (strcmp(host + (size_t)q * HOST_BYTES, here))
            q++;
        if (q == r || !strcmp(here - HOST_BYTES, here))
            continue;
        ap_warn("rank %d is on host %s, as rank %d is: plans number devices host by "
                "host, so this run sends other bytes between hosts than were priced "
                "(mpirun --map-by slot, srun --distribution=block)",
                r, here, q);
        return;
    }
}

void job_places(struct ap_arena *arena, const struct ap_doc *doc, struct comm *c)
{
    struct ap_err err = {{0}};
    const int *planned = NULL;
    char *host = gather_hosts(c);
    const int rc = c->rank == 0 && c->size > 1
                       ? read_places(arena, doc, c->size, &planned, &err)
                       : 0;
    job_agree(c, rc, AP_BAD_INPUT, &err);
    if (c->rank == 0 && planned)
        compare_places(host, planned, c->size);
    else if (c->rank == 0)
        check_neighbours(host, c->size);
    free(host);
}
