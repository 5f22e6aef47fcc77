/*
 * Problem: bound a large selection problem from its pieces (pieces.h). Idea: Lagrangian
 * decomposition. Multipliers start from messages between the pieces
 * (solve_pieces_start.c). Each piece is solved exactly under them; its solutions are cuts
 * of a linear program in the multipliers, whose optimum in a box around the best point is
 * the next trial (Kelley's cutting planes with a trust region; Lemarechal, "Lagrangian
 * relaxation", 2001). The box grows with success and shrinks with failure; rounds end
 * when the bound stalls. The target price may be found during the rounds, from the
 * choices of the pieces; the cheapest known choice of a piece limits its next solve.
 * Cost: per round one solve of each distinct piece, already reduced, and a linear program
 * with one row per solution.
 */
#include "solve/solve_pieces.h"

#include <glpk.h>
#include <pthread.h>
#include <string.h>

#define PROVEN       1e-9
#define PATIENCE     6    /* rounds in a row without progress */
#define PROGRESS     1e-2 /* of the gap */
#define FIRST_BOX    0.25
#define LEAST_SHRUNK 0.05 /* a box after a failure, of the one before */
#define MOST_SHRUNK  0.4
#define LOOK_WORK    4 /* for a first look at a piece */
#define LOOK_REFINED 2
#define START_SHARE  0.1  /* of the budget of work left: for multipliers */
#define LOOK_SHARE   0.15 /* for a first look */
#define MORE_SHARE   0.2  /* for better multipliers */
#define WHOLE_SHARE  0.6  /* for the whole, if the first look's bound is far off */
#define MOST_SHARE   0.85 /* for the whole, if it is not */
#define ROUND_SHARE  0.5  /* for a round of the bound */
#define NEAR         0.05 /* a gap below which more multipliers are worth it */
#define FAR          0.2
#define LOOK_ROUNDS  4    /* before the whole is solved */
#define FAR_OFF      5e-3 /* a gap */

struct bounder {
    struct ap_arena *arena;
    const struct ap_pieces *pieces;
    struct pieces_core *core;
    int *first, n_phi;
    double n_pieces; /* weights counted */
    struct ap_work *work;
    bool solved; /* the objective is known: it was given, or the whole was solved */
    bool fresh;  /* what a first look found is as good as a trial */
    double gap;
};

/* Runs it for all pieces, side by side, each within its share of the budget. */
static void with_each(const struct bounder *b, void *(*run)(void *piece))
{
    int n = b->pieces->n;

    for (int i = 0; i < n; i++)
        b->core[i].work = ap_work_share(b->work, b->core[i].share);
    for (int i = 1; i < n; i++) /* the first is this thread's */
        b->core[i].work.progress = NULL;
    pthread_t *thread = AP_NEW_N(b->arena, n + 1, pthread_t);
    bool *runs = AP_NEW_N(b->arena, n + 1, bool);

    for (int i = n - 1; i >= 0; i--) {
        runs[i] = i > 0 && pthread_create(&thread[i], NULL, run, &b->core[i]) == 0;
        if (!runs[i])
            run(&b->core[i]);
    }
    for (int i = 0; i < n; i++)
        if (runs[i])
            pthread_join(thread[i], NULL);
    for (int i = 0; i < n; i++)
        ap_work_add(b->work, b->core[i].work.done);
}

/* The bound under phi, within a share of the budget; the pieces keep their solutions. */
static int evaluate(struct bounder *b, const double *phi, int64_t work_limit,
                    double share, double *bound, struct ap_err *err)
{
    struct ap_work *all = b->work, part = ap_work_share(all, share);
    bool failed = false;

    for (int i = 0; i < b->pieces->n; i++) {
        b->core[i].phi = phi;
        b->core[i].work_limit = work_limit;
    }
    b->work = &part;
    with_each(b, pieces_core_solve);
    b->work = all;
    ap_work_add(all, part.done);
    *bound = 0;
    for (int i = 0; i < b->pieces->n; i++) {
        failed |= b->core[i].failed;
        *bound += b->pieces->piece[i].weight * b->core[i].bound;
    }
    return failed ? ap_err_set(err, "no solution: a part of the graph has none") : 0;
}

/* ---- the next trial: a linear program of cuts ---- */

struct master {
    glp_prob *lp; /* columns: phi, then a value per piece; rows: cuts */
    int *index;
    double *value, *at;
};

static void master_open(struct master *m, const struct bounder *b)
{
    int n = b->pieces->n;

    m->lp = glp_create_prob();
    glp_set_obj_dir(m->lp, GLP_MAX);
    glp_add_cols(m->lp, b->n_phi + n);
    for (int i = 0; i < n; i++) {
        glp_set_col_bnds(m->lp, b->n_phi + i + 1, GLP_FR, 0, 0);
        glp_set_obj_coef(m->lp, b->n_phi + i + 1, b->pieces->piece[i].weight);
    }
    m->index = AP_NEW_N(b->arena, b->n_phi + n + 1, int);
    m->value = AP_NEW_N(b->arena, b->n_phi + n + 1, double);
    m->at = AP_NEW_N(b->arena, b->n_phi + 1, double);
}

/* value of the piece <= cost of its solution under any multipliers. */
static void add_cut(struct master *m, const struct bounder *b, int i, const double *phi,
                    double scale)
{
    const struct ap_subproblem *piece = &b->pieces->piece[i];
    const struct pieces_core *p = &b->core[i];
    double fixed = p->cost;
    int n = 0;

    memset(m->at, 0, (size_t)b->n_phi * sizeof(double));
    for (int t = 0; t < piece->n_terms; t++)
        m->at[b->first[piece->term[t].multiplier] + p->choice[t]] += piece->term[t].sign;
    for (int k = 0; k < b->n_phi; k++) {
        if (m->at[k] == 0)
            continue;
        fixed -= m->at[k] * phi[k];
        m->index[++n] = k + 1;
        m->value[n] = -m->at[k];
    }
    m->index[++n] = b->n_phi + i + 1;
    m->value[n] = 1;
    int row = glp_add_rows(m->lp, 1);
    glp_set_row_bnds(m->lp, row, GLP_UP, 0, fixed * scale);
    glp_set_mat_row(m->lp, row, n, m->index, m->value);
}

/* The best point of the model within the box; its value, -INFINITY if GLPK fails. */
static double next_trial(struct master *m, const struct bounder *b, const double *centre,
                         double box, double *phi, double scale)
{
    glp_smcp params;

    for (int i = 0; i < b->n_phi; i++)
        glp_set_col_bnds(m->lp, i + 1, GLP_DB, (centre[i] - box) * scale,
                         (centre[i] + box) * scale);
    glp_init_smcp(&params);
    params.msg_lev = GLP_MSG_OFF;
    params.meth = GLP_DUALP;
    params.it_lim = 20000;
    if (glp_simplex(m->lp, &params) != 0 || glp_get_status(m->lp) != GLP_OPT)
        return -INFINITY;
    for (int i = 0; i < b->n_phi; i++)
        phi[i] = glp_get_col_prim(m->lp, i + 1) / scale;
    return glp_get_obj_val(m->lp) / scale;
}

/*
 * Where a parabola through the best point and the failed trial, with the slope that was
 * hoped for, is highest.
 */
static double shrunk(double hoped, double best, double found)
{
    double gain = hoped - best, part = gain / (2 * (gain + best - found));

    return fmin(fmax(part, LEAST_SHRUNK), MOST_SHRUNK);
}

static bool is_proven(const struct bounder *b, const struct ap_pieces_answer *out)
{
    return out->bound >= out->objective * (1 - fmax(PROVEN, b->gap));
}

/* The price of what the pieces chose last, if it is the lowest so far. */
static void price(struct bounder *b, const struct ap_pieces_search *search,
                  struct ap_pieces_answer *out)
{
    int **choice = AP_NEW_N(b->arena, b->pieces->n + 1, int *);

    for (int i = 0; i < b->pieces->n; i++)
        choice[i] = b->core[i].solution;
    out->objective = fmin(out->objective, search->price(search->arg, choice));
}

static int solve_whole(struct bounder *b, const struct ap_pieces_search *search,
                       struct ap_pieces_answer *out, struct ap_err *err)
{
    const int **start = AP_NEW_N(b->arena, b->pieces->n + 1, const int *);
    const double share =
        out->bound > out->objective * (1 - FAR) ? MOST_SHARE : WHOLE_SHARE;
    int rc = search->solve(search->arg, share, &out->objective, start, err);
    b->solved = true;
    for (int i = 0; i < b->pieces->n && rc == 0; i++)
        if (start[i])
            pieces_core_start(&b->core[i], start[i]);
    return rc;
}

/* The last trial of all pieces was as exact as can be. */
static bool settled(const struct bounder *b)
{
    for (int i = 0; i < b->pieces->n; i++)
        if (!b->core[i].settled)
            return false;
    return true;
}

/* Cells of a problem's tables. */
static double cells_of(const struct ap_problem *p)
{
    double n = 1;

    for (int e = 0; e < p->n_edges; e++)
        n += (double)p->n_strategies[p->edges[e].a] * p->n_strategies[p->edges[e].b];
    return n;
}

static int open_pieces(struct bounder *b, struct ap_err *err)
{
    bool failed = false;
    double all = 0;

    for (int i = 0; i < b->pieces->n; i++)
        all += cells_of(&b->pieces->piece[i].problem);
    for (int i = 0; i < b->pieces->n; i++)
        b->core[i] =
            (struct pieces_core){.piece = &b->pieces->piece[i],
                                 .first = b->first,
                                 .n_phi = b->n_phi,
                                 .gap = b->gap,
                                 .share = cells_of(&b->pieces->piece[i].problem) / all,
                                 .max_refined = -1};
    with_each(b, pieces_core_open);
    for (int i = 0; i < b->pieces->n; i++)
        failed |= b->core[i].failed;
    return failed ? ap_err_set(err, "no solution: a part of the graph has none") : 0;
}

static void close_pieces(struct bounder *b)
{
    for (int i = 0; i < b->pieces->n; i++)
        pieces_core_close(&b->core[i]);
}

/*
 * A first look at the pieces, which finds an objective. Where it is not as good as a
 * trial, the whole's solution tells the pieces' solvers what is too expensive; better
 * multipliers come first where the bound is near.
 */
static int look(struct bounder *b, const struct ap_pieces_params *params, double *phi,
                struct ap_pieces_answer *out, struct ap_err *err)
{
    out->objective = INFINITY;
    for (int i = 0; i < b->pieces->n; i++)
        b->core[i].max_refined = LOOK_REFINED;
    if (evaluate(b, phi, LOOK_WORK, LOOK_SHARE, &out->bound, err))
        return -1;
    for (int i = 0; i < b->pieces->n; i++)
        b->core[i].max_refined = -1;
    price(b, params->search, out);
    b->fresh = settled(b) && out->bound >= out->objective * (1 - FAR_OFF);
    if (b->fresh)
        return 0;
    if (params->search->at_hand)
        out->objective =
            fmin(out->objective, params->search->at_hand(params->search->arg));
    if (b->n_phi > 0 && out->bound > out->objective * (1 - NEAR)) {
        close_pieces(b);
        if (open_pieces(b, err))
            return -1;
        memset(phi, 0, (size_t)b->n_phi * sizeof *phi);
        struct ap_work part = ap_work_share(b->work, MORE_SHARE);
        pieces_start(b->pieces, b->core, b->first, true, &part, phi);
        ap_work_add(b->work, part.done);
    }
    return solve_whole(b, params->search, out, err);
}

static int climb(struct bounder *b, const struct ap_pieces_params *params, double *best,
                 struct ap_pieces_answer *out, struct ap_err *err)
{
    double *phi = ap_arena_dup(b->arena, best, (size_t)(b->n_phi + 1) * sizeof(double));
    double box = 0, bound, hoped = 0, looked = out->bound;
    double scale = out->objective > 0 ? 1e3 / out->objective : 1;
    struct master m;
    int rc = 0, n_idle = 0;

    glp_term_out(GLP_OFF);
    master_open(&m, b);
    out->bound = -INFINITY;
    while (out->n_rounds < params->max_rounds &&
           (out->n_rounds == 0 || !ap_work_over(params->work))) {
        out->n_rounds++;
        if (out->n_rounds == 1 && b->fresh)
            bound = looked;
        else
            rc = evaluate(b, phi, params->work_limit, ROUND_SHARE, &bound, err);
        if (rc)
            break;
        if (out->n_rounds == 1)
            bound = fmax(bound, looked);
        for (int i = 0; i < b->pieces->n; i++)
            add_cut(&m, b, i, phi, scale);
        double gap = out->objective - out->bound;
        bool better = bound > out->bound;
        ap_work_tell(b->work, "lower bound", out->objective, fmax(bound, out->bound));
        n_idle = bound > out->bound + PROGRESS * gap ? 0 : n_idle + 1;
        if (better) {
            out->bound = bound;
            memcpy(best, phi, (size_t)b->n_phi * sizeof *phi);
        }
        if (!b->solved && !is_proven(b, out))
            price(b, params->search, out);
        if (is_proven(b, out))
            break;
        bool stalls = b->n_phi == 0 || n_idle >= PATIENCE;
        if (!b->solved && (stalls || out->n_rounds == LOOK_ROUNDS))
            rc = solve_whole(b, params->search, out, err);
        if (rc || stalls || is_proven(b, out))
            break;
        box = out->n_rounds == 1 ? FIRST_BOX * (out->objective - bound) / b->n_pieces
                                 : box * (better ? 2 : shrunk(hoped, out->bound, bound));
        hoped = next_trial(&m, b, best, box, phi, scale);
        if (hoped <= out->bound)
            break;
    }
    glp_delete_prob(m.lp);
    glp_free_env();
    return rc;
}

int ap_pieces_bound(struct ap_arena *arena, const struct ap_pieces *pieces,
                    const struct ap_pieces_params *params, struct ap_pieces_answer *out,
                    struct ap_err *err)
{
    struct bounder b = {
        .arena = arena, .pieces = pieces, .work = params->work, .gap = params->gap};
    int rc = 0;

    *out = (struct ap_pieces_answer){.objective = params->objective};
    b.first = AP_NEW_N(arena, pieces->n_multipliers + 1, int);
    for (int k = 0; k < pieces->n_multipliers; k++) {
        b.first[k] = b.n_phi;
        b.n_phi += pieces->n_strategies[k];
    }
    b.core = AP_NEW_N(arena, pieces->n + 1, struct pieces_core);
    for (int i = 0; i < pieces->n; i++)
        b.n_pieces += pieces->piece[i].weight;
    rc = open_pieces(&b, err);
    double *best = AP_NEW_N(arena, b.n_phi + 1, double);
    if (rc == 0 && params->max_rounds > 0) {
        struct ap_work part = ap_work_share(b.work, START_SHARE);
        if (b.n_phi > 0)
            pieces_start(pieces, b.core, b.first, false, &part, best);
        ap_work_add(b.work, part.done);
        b.solved = !params->search;
        if (params->search)
            rc = look(&b, params, best, out, err);
        if (rc == 0 && is_proven(&b, out))
            out->n_rounds = 1;
        else if (rc == 0)
            rc = climb(&b, params, best, out, err);
        if (rc == 0 && !b.solved && !is_proven(&b, out))
            rc = solve_whole(&b, params->search, out, err);
        out->bound = fmax(out->bound, 0);
    }
    close_pieces(&b);
    return rc;
}
