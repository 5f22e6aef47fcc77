/* Private to ap-stage: its document, and the shard command that reads it, too. */
#ifndef INPUT_H
#define INPUT_H

#include "oracle/coproc.h"
#include "oracle/request.h"

struct input {
    struct ap_arena *arena;
    const struct ap_tool *tool;
    const struct request *r;
    const struct ap_doc *doc; /* when it has been read */
    struct stage_model *model;
    bool has_nests;
    struct coproc_pool *pool; /* NULL: is not started yet */
    int feed;                 /* where it reads what has come; -1: nowhere */
    size_t n_fed;
};

/*
 * Reads the document and the model's graph, or dies (exit 1). Of a long one the command
 * has been started; it ends with the program until stage_input_command.
 */
void stage_input_read(struct input *in, struct ap_tool *tool, struct ap_doc *doc);
/* Starts the command if it does not run; from now on pool is the caller's to end. */
void stage_input_command(struct input *in);
/* Another one, on another cluster. */
struct coproc_pool *stage_input_command_on(const struct input *in,
                                           const struct ap_cluster *c);
/* Removes temporary files, which happens at the end of the program, too. */
void stage_input_end(void);

#endif
