/*
 * Reverse-mode differentiation of a graph under construction, and train steps made of a
 * forward graph: gradients, an optimizer's update, new weights and states as results.
 */
#ifndef AP_GRAD_H
#define AP_GRAD_H

#include "graph/build.h"

/* A row of the table of optimizers, with its name in --optimizer; a NULL name ends the
 * table. */
struct ap_optimizer {
    const char *name, *help;
};
extern const struct ap_optimizer ap_optimizers[]; /* sgd, ..., adamw, muon */

struct ap_grad_params {
    int loss;              /* node id: a float scalar */
    const char *optimizer; /* a name of ap_optimizers */
    double lr, beta1, beta2, eps, momentum, weight_decay;
    /* Weights that get no gradient, state or update; NULL: none. */
    bool (*frozen)(const char *name, void *ctx); /* asked by name and by path (below) */
    void *ctx;
    /*
     * AP_BF16 or AP_F16: f32 contractions are made in this type, reductions and
     * transcendental functions stay in f32, other operators follow their operands (the
     * wider type wins); weights are stored in it too unless master_weights. Anything else
     * (AP_F32, 0): the graph is not changed.
     */
    enum ap_dtype compute;
    bool master_weights;
    /* With master_weights: cast_weights: all operators, not contractions alone, read
       weights in the type `compute`, so that values between layers have this type;
       low_gradients: gradients keep this type up to the update. */
    bool cast_weights, low_gradients;
    /* In which first and second moments are kept: AP_F32, AP_BF16, AP_F16, AP_F8E4M3FN
       (with an f32 scale for each, a state, opt_state/m_scale/W); 0: each in its
       weight's. The update is computed in the widest of the weight's and these. */
    enum ap_dtype moments[2];
    /* Further node ids that the caller needs: `compute` puts the new ones here. */
    int *keep, n_keep;
    /* Gradients that the graph has: given_grad[k] is that of given_weight[k]; these are
       node ids, and parts of `keep`. n_given 0: the graph is differentiated. */
    const int *given_weight, *given_grad;
    int n_given;
    /*
     * 0: none. Otherwise the first value of a dynamic scale of the loss, a state: halved
     * after a step with a gradient that is not finite (which changes nothing else),
     * doubled after 2000 good steps in a row.
     */
    double loss_scale;
};

/*
 * The optimizer's usual parameters: lr 1e-3 (sgd and momentum: 1e-2), momentum 0.9 (muon:
 * 0.95), beta1 0.9, beta2 0.999, eps 1e-8, weight_decay 0 (adamw, muon: 0.01); nothing
 * frozen, no low precision, no scale; loss -1. -1 with err listing the optimizers if
 * there is no such optimizer.
 */
int ap_grad_defaults(const char *optimizer, struct ap_grad_params *p, struct ap_err *err);
/* Whether the optimizer uses the parameter of this name: "lr", "beta1", ... */
bool ap_grad_uses(const char *optimizer, const char *param);

/*
 * Appends backward pass and update to the forward graph in b. Weights are the parameters
 * of role weight; those that are frozen or do not reach the loss are not changed. New
 * parameters of role state, all zero at the start, are named after the weight W without
 * the frame of its name (params['a']['b'] is a/b): opt_state/m/W and opt_state/v/W and
 * the scalar opt_state/step (adam, adamw), opt_state/momentum/W (momentum; and
 * muon, for matrices); with a scale
 * opt_state/scale (zero means loss_scale) and opt_state/good_steps. *results, in b's
 * arena: the loss, the new weights in the order of their parameters, the new states
 * likewise; all but the loss are aliases of their parameters. With `compute` all nodes of
 * b are replaced: ids that the caller holds are void, but for `keep`.
 *
 * New nodes have phase backward and the scope of the node that they differentiate, or
 * phase update and scope "<optimizer>/<weight>".
 *
 * -1 with err naming the operator that has no derivative, or the error in p.
 */
int ap_grad_train_step(struct ap_build *b, const struct ap_grad_params *p,
                       struct ap_result **results, int *n_results, struct ap_err *err);

/*
 * Appends the gradients of scalar node `loss` by the nodes wrt[0 .. n_wrt): grads[i] is
 * the node of d loss / d wrt[i], of wrt[i]'s shape, or -1 when it is zero. Conventions at
 * kinks are JAX's: maximum and minimum of equals give half to each, reductions to max or
 * min give equal shares, abs and clamp give 0. Linear in the graph.
 */
int ap_grad(struct ap_build *b, int loss, int n_wrt, const int *wrt, int *grads,
            struct ap_err *err);

#endif
