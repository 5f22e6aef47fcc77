/* Private to tool/: the line of progress on a terminal. */
#ifndef AP_TOOL_PROGRESS_H
#define AP_TOOL_PROGRESS_H

#include "base/work.h"

/* NULL: standard error is no terminal. start_sec: of ap_now_sec. */
struct ap_progress *progress_new(const char *name, double start_sec);
/* Takes the line away. */
void progress_clear(void);

#endif
