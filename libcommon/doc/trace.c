#include "doc/trace.h"

#include "doc/doc.h"

#define MICROSEC 1e6

void ap_trace_head(struct ap_buf *out)
{
    ap_buf_puts(out, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n"
                     "{\"ph\":\"M\",\"pid\":1,\"tid\":0,\"name\":\"process_sort_index\","
                     "\"args\":{\"sort_index\":0}}");
}

static void begin_event(struct ap_buf *out, const char *phase, int pid, int tid,
                        double at)
{
    ap_buf_printf(out, ",\n{\"ph\":\"%s\",\"pid\":%d,\"tid\":%d,\"ts\":", phase, pid,
                  tid);
    ap_json_num(out, at * MICROSEC);
}

void ap_trace_name(struct ap_buf *out, int pid, int tid, const char *what,
                   const char *name)
{
    ap_buf_printf(out,
                  ",\n{\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"name\":\"%s\","
                  "\"args\":{\"name\":",
                  pid, tid, what);
    ap_json_str(out, name);
    ap_buf_puts(out, "}}");
}

void ap_trace_slice(struct ap_buf *out, int pid, int tid, const char *name,
                    const char *category, double at, double sec)
{
    begin_event(out, "X", pid, tid, at);
    ap_buf_puts(out, ",\"dur\":");
    ap_json_num(out, sec * MICROSEC);
    ap_put_str(out, "name", name);
    ap_put_str(out, "cat", category);
}

void ap_trace_memory(struct ap_buf *out, int pid, double at, int64_t bytes)
{
    begin_event(out, "C", pid, 0, at);
    ap_buf_printf(out, ",\"name\":\"memory\",\"args\":{\"bytes\":%lld}}",
                  (long long)bytes);
}

void ap_trace_flow(struct ap_buf *out, const char *what, int id, bool start, int pid,
                   int tid, double at)
{
    begin_event(out, start ? "s" : "f", pid, tid, at);
    ap_buf_printf(out, ",\"id\":%d,\"name\":\"%s\",\"cat\":\"%s\"%s}", id, what, what,
                  start ? "" : ",\"bp\":\"e\"");
}
