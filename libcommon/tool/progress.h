/* Private to tool/: the line of progress on a terminal. */
#ifndef AP_TOOL_PROGRESS_H
#define AP_TOOL_PROGRESS_H

#include "base/work.h"

/* NULL if standard error is not a terminal. start_sec is a time of ap_now_sec. */
struct ap_progress *progress_new(const char *name, double start_sec);
/* Erases the line. */
void progress_clear(void);

#endif
