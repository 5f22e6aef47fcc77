/*
 * Linux counts the resident pages of a process and keeps their highest number; a 5 in
 * /proc/self/clear_refs makes that the present one (proc_pid_clear_refs(5)). Memory that
 * was freed is given back first, so that it does not hide later allocations.
 */
#include "run/memory.h"

#include <malloc.h>
#include <stdio.h>
#include <string.h>

/* A line of /proc/self/status, in bytes. */
static int64_t status(const char *name)
{
    FILE *f = fopen("/proc/self/status", "r");
    char line[256];
    long long kb = -1;

    while (f && kb < 0 && fgets(line, sizeof line, f))
        if (!strncmp(line, name, strlen(name)))
            sscanf(line + strlen(name), ":%lld", &kb);
    if (f)
        fclose(f);
    return kb < 0 ? -1 : (int64_t)kb * 1024;
}

int64_t memory_start(void)
{
    malloc_trim(0);
    FILE *f = fopen("/proc/self/clear_refs", "w");
    int written = f ? fputs("5", f) : EOF;

    if (f && fclose(f))
        written = EOF;
    return written == EOF ? -1 : status("VmRSS");
}

int64_t memory_grown(int64_t start)
{
    const int64_t most = start < 0 ? -1 : status("VmHWM");
    return most < 0 ? -1 : most > start ? most - start : 0;
}
