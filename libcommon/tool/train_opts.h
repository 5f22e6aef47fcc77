/* The options of tools that make train steps: types, the optimizer's numbers, freezing.
 */
#ifndef AP_TRAIN_OPTS_H
#define AP_TRAIN_OPTS_H

#include "grad/grad.h"
#include "tool/tool.h"

enum { AP_N_TRAIN_OPTS = 13 };

struct ap_train_opts {
    double lr, beta1, beta2, eps, momentum, weight_decay, loss_scale; /* NaN: default */
    int dtype;                                                        /* row of choices */
    const char *recipe; /* NULL: types as the other options say */
    bool master_weights, cast_weights, low_gradients;
    struct ap_list freeze; /* patterns for names of weights */
    bool freeze_used[AP_MAX_LIST];
};

/* Sets the defaults, and the rows of an option table that fill o. */
void ap_train_opts_init(struct ap_train_opts *o, struct ap_opt rows[AP_N_TRAIN_OPTS]);
/*
 * The parameters of a train step; p refers to o. Dies (exit 2) if options contradict each
 * other or the optimizer, or if the optimizer is unknown.
 */
void ap_train_opts_fill(struct ap_train_opts *o, const struct ap_tool *tool,
                        const char *optimizer, struct ap_grad_params *p);
/* After the train step: -1 with err set when a pattern of --freeze matched no weight. */
int ap_train_opts_check_freeze(const struct ap_train_opts *o, struct ap_err *err);

#endif
