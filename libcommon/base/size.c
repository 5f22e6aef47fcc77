/* Sizes of memory as people write them. */
#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"

static const struct unit {
    const char *name;
    double bytes;
} units[] = {
    {"TiB", 1099511627776.0},
    {"GiB", 1073741824.0},
    {"MiB", 1048576.0},
    {"KiB", 1024.0},
    {"TB", 1e12},
    {"GB", 1e9},
    {"MB", 1e6},
    {"kB", 1e3},
    {"B", 1},
};

const char *ap_size_text(struct ap_arena *arena, int64_t bytes)
{
    for (int i = 0; i < 4; i++)
        if ((double)bytes >= units[i].bytes)
            return ap_arena_printf(arena, "%.4g %s", (double)bytes / units[i].bytes,
                                   units[i].name);
    return ap_arena_printf(arena, "%lld B", (long long)bytes);
}

int64_t ap_size_parse(const char *text)
{
    char *end;

    if (!isdigit((unsigned char)*text))
        return -1;
    double x = strtod(text, &end);
    if (*end == '\0')
        x = floor(x) == x ? x : -1;
    else {
        size_t u = 0;
        while (u < sizeof units / sizeof *units && strcmp(units[u].name, end) != 0)
            u++;
        x = u < sizeof units / sizeof *units ? x * units[u].bytes : -1;
    }
    return x >= 1 && x < 9e18 ? (int64_t)x : -1;
}
