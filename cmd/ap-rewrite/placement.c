/*
 * Planners number the cluster's devices host by host and price links so; a launcher
 * numbers ranks as it likes. The section "placement" says which ranks are priced as ranks
 * of one host; a rankfile makes the launcher start them there.
 *
 * Open MPI's (mpirun --rankfile) binds ranks to cores by number, so each rank gets cores
 * of its own; Slurm's list (SLURM_HOSTFILE of srun --distribution=arbitrary) has a line
 * for each rank.
 */
#include "placement.h"

#include <ctype.h>
#include <string.h>

/* Compact numbers of the hosts of the devices; how many. */
static int find_hosts(const struct ap_cluster *c, const int *devices, int n, int *host)
{
    const int64_t size = ap_cluster_host_devices(c);
    int n_hosts = 0;

    for (int r = 0; r < n; r++) {
        const bool same = r > 0 && devices[r] / size == devices[r - 1] / size;
        host[r] = same ? n_hosts - 1 : n_hosts++;
    }
    return n_hosts;
}

/* Names between commas; dies if one is invalid, or comes twice. */
static int split_names(struct ap_arena *arena, const char *list, const char ***out)
{
    int n = 1;
    for (const char *p = list; *p; p++)
        n += *p == ',';
    const char **names = AP_NEW_N(arena, n, const char *);

    for (int i = 0; i < n; i++) {
        const size_t len = strcspn(list, ",");
        names[i] = ap_arena_printf(arena, "%.*s", (int)len, list);
        bool good = len > 0 && len < 256;
        for (size_t k = 0; k < len; k++)
            good &= isalnum((unsigned char)list[k]) || strchr("-._:", list[k]);
        if (!good)
            ap_die_usage("--hosts: expected names of hosts with commas between them, got "
                         "\"%s\"",
                         names[i]);
        for (int k = 0; k < i; k++)
            if (!strcmp(names[k], names[i]))
                ap_die_usage("--hosts: %s is named twice", names[i]);
        list += len + 1;
    }
    *out = names;
    return n;
}

static void write_rankfile(const struct placement_asked *asked, struct ap_arena *arena,
                           const int *host, int n, int n_hosts)
{
    const char **names;
    const int n_names = split_names(arena, asked->hosts, &names);
    struct ap_buf text = {0};
    int64_t core = 0;

    if (n_names != n_hosts)
        ap_die_usage(
            "--hosts: the plan's %d ranks are priced on %d host%s, got %d name%s", n,
            n_hosts, n_hosts == 1 ? "" : "s", n_names, n_names == 1 ? "" : "s");
    for (int r = 0; r < n; r++) {
        core = r > 0 && host[r] == host[r - 1] ? core + asked->cores : 0;
        if (asked->format == RANKFILE_SLURM)
            ap_buf_printf(&text, "%s\n", names[host[r]]);
        else if (asked->cores == 1)
            ap_buf_printf(&text, "rank %d=%s slot=%lld\n", r, names[host[r]],
                          (long long)core);
        else
            ap_buf_printf(&text, "rank %d=%s slot=%lld-%lld\n", r, names[host[r]],
                          (long long)core, (long long)(core + asked->cores - 1));
    }
    ap_tool_write_file(asked->rankfile, &text);
    ap_buf_free(&text);
}

void placement_write(const struct placement_asked *asked, struct ap_arena *arena,
                     const struct ap_cluster *cluster, const int *devices, int n,
                     struct ap_buf *section)
{
    int *host = AP_NEW_N(arena, n + 1, int);
    const int n_hosts = find_hosts(cluster, devices, n, host);

    if (asked->rankfile)
        write_rankfile(asked, arena, host, n, n_hosts);
    if (n == 1)
        return;
    ap_buf_puts(section, "{\"hosts\":[");
    for (int r = 0; r < n; r++)
        ap_buf_printf(section, "%s%d", r ? "," : "", host[r]);
    ap_buf_puts(section, "]}");
}
