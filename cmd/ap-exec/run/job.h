/* The job: its ranks, how it is started, how it ends. */
#ifndef EXEC_JOB_H
#define EXEC_JOB_H

#include "run/session.h"

#include "tool/tool.h"

/* Whether mpirun or srun started this process. */
bool job_is_started(void);
/* Whether this process speaks for the job: rank 0, or alone. */
bool job_is_first(void);
/* Cores that are this rank's: those that it is bound to, else its share of the host's. */
int job_cores(void);
/* MPI if we are started so, under the watchdog (seconds; 0: none), else one rank without
 * both. */
void job_join(struct comm *c, double watchdog_sec);
/* If rc is not 0 anywhere: the first such rank says why, all ranks end with exit_code. */
void job_agree(struct comm *c, int rc, int exit_code, const struct ap_err *err);
/* Rank 0 reads the document; the others have none. */
void job_read(const char *path, struct ap_arena *arena, struct comm *c,
              struct ap_doc *doc);
/* Rank 0's section "program", or "pipeline" if there is none, fit for this job: each rank
 * gets its own part (ap_pipeline_part). */
void job_program(struct ap_arena *arena, const struct ap_doc *doc, struct comm *c,
                 struct ap_pipeline_program *program);
/* The same without a job, for n_ranks, or with 0 for any number; -1 with err set. */
int job_check(struct ap_arena *arena, const struct ap_doc *doc, int n_ranks,
              struct ap_pipeline_program *program, struct ap_err *err);
/* Warns if ranks are not placed on hosts as the document's "placement" says, or, without
 * it, as planners number devices. Called by all ranks; rank 0 has the document. */
void job_places(struct ap_arena *arena, const struct ap_doc *doc, struct comm *c);

#endif
