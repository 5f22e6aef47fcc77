/*
 * Problem: several servers are asked about one document, and reading it and finding its
 * groups and families takes each as long as many answers. Idea: whoever starts the first
 * says where the others' pipes are; it forks them when it has read, and what they have
 * read is one copy in memory until it is changed. Where something stands between, such
 * as a filter of the answers, nothing is forked.
 */
#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "serve.h"
#include "tool.h"

#define PIPES "AP_SERVE_PIPES"
#define MOST  1024

/* A number that ends with one of the characters, or the text; -1: none. */
static long long read_number(const char **at, const char *ends)
{
    char *end;
    long long v = isdigit((unsigned char)**at) ? strtoll(*at, &end, 10) : -1;

    if (v < 0 || !strchr(ends, *end))
        return -1;
    *at = end;
    return v;
}

/*
 * "INODE:INODE,IN:OUT,IN:OUT": of standard input and output, and pairs of descriptors;
 * how many pairs, -1 when it is none.
 */
static int read_pipes(const char *at, long long own[2], int pipes[MOST][2])
{
    for (int n = -1; n < MOST; n++) {
        long long in = read_number(&at, ":"), out;
        if (in < 0 || *at++ != ':')
            return -1;
        out = read_number(&at, ",");
        if (out < 0)
            return -1;
        if (n < 0) {
            own[0] = in;
            own[1] = out;
        } else {
            if (in <= STDERR_FILENO || in > INT_MAX || out <= STDERR_FILENO ||
                out > INT_MAX)
                return -1;
            pipes[n][0] = (int)in;
            pipes[n][1] = (int)out;
        }
        if (*at++ == '\0')
            return n + 1;
    }
    return -1;
}

/* Whether nothing stands between this process and who made the pipes. */
static bool is_own(int fd, long long inode)
{
    struct stat st;

    return fstat(fd, &st) == 0 && (long long)st.st_ino == inode;
}

static void close_all(int pipes[MOST][2], int n)
{
    for (int i = 0; i < n; i++) {
        close(pipes[i][0]);
        close(pipes[i][1]);
    }
}

void serve_fork(void)
{
    const char *text = getenv(PIPES);
    static int pipes[MOST][2];
    long long own[2] = {0, 0};
    int n = text ? read_pipes(text, own, pipes) : 0;

    if (n < 0)
        ap_die_usage("%s: expected INODE:INODE,IN:OUT..., got %.100s", PIPES, text);
    unsetenv(PIPES);
    if (!is_own(STDIN_FILENO, own[0]) || !is_own(STDOUT_FILENO, own[1]))
        return; /* nor are these numbers ours to close */
    for (int i = 0; i < n; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            bool all = dup2(pipes[i][0], STDIN_FILENO) >= 0 &&
                       dup2(pipes[i][1], STDOUT_FILENO) >= 0;
            close_all(pipes, n);
            if (!all)
                ap_die(AP_BAD_INPUT, "%s: %s", PIPES, strerror(errno));
            return;
        }
        if (pid > 0) /* if it fails, whoever waits finds the pipe closed */
            dprintf(pipes[i][1], "{\"pid\":%ld}\n", (long)pid);
    }
    close_all(pipes, n);
}

void serve_wait(void)
{
    while (wait(NULL) >= 0 || errno == EINTR)
        ;
}
