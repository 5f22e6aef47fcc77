/*
 * A timeline in the JSON that Perfetto and chrome://tracing read: processes with tracks
 * of slices, counters, and arrows between slices. (Google, "Trace Event Format", 2016)
 */
#ifndef AP_TRACE_H
#define AP_TRACE_H

#include "base/base.h"

#define AP_TRACE_END "\n]}\n"
/* Puts the head of the file. Every event after it, the first one included, begins with a
 * comma. */
void ap_trace_head(struct ap_buf *out);
/* what: "process_name", with tid 0, or "thread_name". */
void ap_trace_name(struct ap_buf *out, int pid, int tid, const char *what,
                   const char *name);
/* Seconds become microseconds; the slice stays open for further members, such as args,
 * and a brace. */
void ap_trace_slice(struct ap_buf *out, int pid, int tid, const char *name,
                    const char *category, double at, double sec);
void ap_trace_memory(struct ap_buf *out, int pid, double at, int64_t bytes);
/* An arrow's start or end. */
void ap_trace_flow(struct ap_buf *out, const char *what, int id, bool start, int pid,
                   int tid, double at);

#endif
