/*
 * Problem: several servers are asked about one document, and reading it and finding its
 * groups and families takes each as long as many answers. Idea: whoever starts the first
 * says where the others' pipes are; it forks them when it has read, and what they have
 * read is one copy in memory until it is changed. Where something stands between, such
 * as a filter of the answers or a shell that waits, nothing is forked.
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

#include "serve/serve.h"
#include "tool/tool.h"

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

/* Who is asked to fork: a process, and the inodes of its standard input and output. */
struct self {
    long long pid, in, out;
};

/*
 * "PID:INODE:INODE,IN:OUT,IN:OUT": who is asked, and pairs of descriptors; how many
 * pairs, -1 when it is none.
 */
static int read_pipes(const char *at, struct self *self, int pipes[MOST][2])
{
    self->pid = read_number(&at, ":");
    if (self->pid < 0)
        return -1;
    at++;
    for (int n = -1; n < MOST; n++) {
        long long in = read_number(&at, ":"), out;
        if (in < 0 || *at++ != ':')
            return -1;
        out = read_number(&at, ",");
        if (out < 0)
            return -1;
        if (n < 0) {
            self->in = in;
            self->out = out;
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

static bool is_own(int fd, long long inode)
{
    struct stat st;

    return fstat(fd, &st) == 0 && (long long)st.st_ino == inode;
}

/*
 * Whether nothing stands between this process and who made the pipes: no filter, and no
 * parent that would hold the others' pipes open when they have died.
 */
static bool is_self(const struct self *self)
{
    return self->pid == (long long)getpid() && is_own(STDIN_FILENO, self->in) &&
           is_own(STDOUT_FILENO, self->out);
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
    struct self self = {-1, -1, -1};
    int n = text ? read_pipes(text, &self, pipes) : 0;

    if (n < 0)
        ap_die_usage("%s: expected PID:INODE:INODE,IN:OUT..., got %.100s", PIPES, text);
    unsetenv(PIPES);
    if (!is_self(&self))
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
