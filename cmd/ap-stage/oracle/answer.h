/* Private to ap-stage: a line that the shard command answers with. */
#ifndef ANSWER_H
#define ANSWER_H

#include "doc/doc.h"

struct answer_point {
    double forward_sec, backward_sec, sync_sec, update_sec;
    int64_t stage_bytes, passing_bytes, microbatch_bytes;
    bool recompute;
    float slack_sec; /* so much longer the plan itself may take; small: there are many */
};

struct answer {
    int64_t id;
    const char *error; /* NULL: answered */
    int n_points;
    struct answer_point *points;
    char *sharding;  /* its text, which may be invalid inside; malloc; NULL if there is
                        none */
    bool names_only; /* it has no groups */
};

/* -1: the line is not what ap-shard(1) says of answers; err says where. Memory in the
 * arena. */
int answer_parse(struct ap_arena *arena, const char *line, size_t len, struct answer *a,
                 struct ap_err *err);

#endif
