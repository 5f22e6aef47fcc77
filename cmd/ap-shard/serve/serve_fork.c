/*
 * Problem: several servers are asked about one document, and reading it and finding its
 * groups and families takes each as long as many answers. Idea: one process prepares all
 * of that and forks the others, so that it is one copy in memory until it is changed.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "serve/serve.h"
#include "serve/server.h"

void serve_fork(const struct shard_pipes *pipes)
{
    int own = 0;

    for (int i = 1; i < pipes->n && own == 0; i++)
        if (fork() == 0) /* if it fails, who waits for answers finds the pipe closed */
            own = i;
    if (dup2(pipes->end[own][0], STDIN_FILENO) < 0 ||
        dup2(pipes->end[own][1], STDOUT_FILENO) < 0)
        ap_die(AP_BAD_INPUT, "dup2: %s", strerror(errno));
    for (int i = 0; i < pipes->n; i++) {
        close(pipes->end[i][0]);
        close(pipes->end[i][1]);
    }
}

void serve_wait(void)
{
    while (wait(NULL) >= 0 || errno == EINTR)
        ;
}

_Noreturn void shard_server_run(const struct shard_server *server, int argc, char **argv,
                                int n, const int (*pipes)[2])
{
    struct ap_arena arena = {0};
    struct shard_job job = {
        .arena = &arena, .graph = *server->graph, .nests = *server->nests};
    const struct shard_pipes ends = {n, pipes};
    struct shard_request req;
    struct ap_tool tool;

    shard_read_options(&arena, &tool, &req, argc, argv);
    req.cluster = server->cluster;
    if (!req.params.no_families)
        shard_job_families(&job, server->doc, false);
    exit(ap_tool_finish(&tool, shard_serve(&job, &req, server->doc, &ends)));
}
