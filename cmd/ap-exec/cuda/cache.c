/*
 * The cache of compiled kernels: one file per compilation in $XDG_CACHE_HOME/autopar/cuda
 * (~/.cache/autopar/cuda), named by the hash of the compiled text. A file is written
 * under another name and then renamed, so that readers find all of it or none. A hash of
 * the contents stands after them: a damaged file counts as absent. Ranks of a host need
 * the same kernels at the same time: the rank that compiles holds a lock, and the others
 * find the file.
 */
#include "cuda.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* Bytes that a folder's path may have. */
#define PATH_BYTES 900

/* Makes the folder; false: there is no place for one. */
static bool folder(char path[PATH_BYTES])
{
    const char *base = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int n;
    if (base && *base == '/')
        n = snprintf(path, PATH_BYTES, "%s/autopar/cuda", base);
    else if (home && *home == '/')
        n = snprintf(path, PATH_BYTES, "%s/.cache/autopar/cuda", home);
    else
        return false;
    if (n >= PATH_BYTES)
        return false;
    for (char *p = strchr(path + 1, '/');; p = strchr(p + 1, '/')) {
        if (p)
            *p = 0;
        const bool ok = mkdir(path, 0700) == 0 || errno == EEXIST;
        if (!p)
            return ok;
        *p = '/';
    }
}

int cache_lock(uint64_t key)
{
    char dir[PATH_BYTES], path[PATH_BYTES + 40];
    if (!folder(dir))
        return -1;
    snprintf(path, sizeof path, "%s/%016llx.lock", dir, (unsigned long long)key);
    const int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    while (fd >= 0 && flock(fd, LOCK_EX) && errno == EINTR)
        ;
    return fd;
}

void cache_unlock(uint64_t key, int lock)
{
    char dir[PATH_BYTES], path[PATH_BYTES + 40];
    if (lock < 0 || !folder(dir))
        return;
    snprintf(path, sizeof path, "%s/%016llx.lock", dir, (unsigned long long)key);
    remove(path);
    close(lock);
}

bool cache_read(uint64_t key, struct ap_buf *buf)
{
    char dir[PATH_BYTES], path[PATH_BYTES + 40];
    uint64_t sum = 0;
    if (!folder(dir))
        return false;
    snprintf(path, sizeof path, "%s/%016llx", dir, (unsigned long long)key);
    FILE *f = fopen(path, "rb");
    if (!f)
        return false;
    for (size_t n = 1; n > 0; buf->len += n)
        n = fread(ap_buf_room(buf, 1 << 16), 1, 1 << 16, f);
    const bool ok = !ferror(f) && buf->len > sizeof sum;
    fclose(f);
    if (ok) {
        buf->len -= sizeof sum;
        memcpy(&sum, buf->data + buf->len, sizeof sum);
    }
    if (ok && sum == ap_hash(buf->data, buf->len, key))
        return true;
    ap_buf_free(buf);
    *buf = (struct ap_buf){0};
    return false;
}

void cache_write(uint64_t key, const void *data, size_t len)
{
    char dir[PATH_BYTES], path[PATH_BYTES + 40], temp[PATH_BYTES + 80];
    const uint64_t sum = ap_hash(data, len, key);
    if (!folder(dir))
        return;
    snprintf(path, sizeof path, "%s/%016llx", dir, (unsigned long long)key);
    snprintf(temp, sizeof temp, "%s/%016llx.%ld", dir, (unsigned long long)key,
             (long)getpid());
    FILE *f = fopen(temp, "wb");
    if (!f)
        return;
    bool ok = fwrite(data, 1, len, f) == len && fwrite(&sum, sizeof sum, 1, f) == 1;
    ok &= fclose(f) == 0;
    if (!ok || rename(temp, path))
        remove(temp);
}
