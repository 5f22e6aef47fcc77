/* Private to ap-stage: its document, and the oracle that prices the document's stages. */
#ifndef INPUT_H
#define INPUT_H

#include "oracle/coproc.h"
#include "options.h"

struct input {
    struct ap_arena *arena;
    const struct ap_tool *tool;
    const struct stage_options *r;
    const struct ap_doc *doc; /* when it has been read */
    struct stage_model *model;
};

/* Reads the document and the model's graph and nests, or dies (exit 1). */
void stage_input_read(struct input *in, struct ap_tool *tool, struct ap_doc *doc);
/* Starts the processes that price stages, [kind of device], arena; the caller ends them.
 */
struct coproc_pool *const *stage_input_commands(const struct input *in);
/* Some more for another cluster, of one kind. */
struct coproc_pool *stage_input_command_on(const struct input *in,
                                           const struct ap_cluster *c);
/* Removes temporary files, which happens at the end of the program, too. */
void stage_input_end(void);

#endif
