#define _XOPEN_SOURCE 700 /* realpath */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

/* What a compressed file may unpack to: so much, or so many times its own bytes; the
 * golden models' HLO text is up to 12 times as long as its gzip file. Of a pipe the size
 * is not known. */
enum { UNPACK_BYTES = 64 << 20, UNPACK_TIMES = 200 };
static const int64_t UNPACK_PIPE_BYTES = (int64_t)4 << 30;

enum { PIECE = 1 << 18 }; /* bytes of input at a time, that stay in a core's cache */

static int file_err(const char *name, const char *why, struct ap_err *err)
{
    return ap_err_set(err, "%s: %s", name, why);
}

/* Takes fd over. Each piece goes straight to its place: of a pipe what it holds. */
static int read_plain(int fd, const char *name, struct ap_buf *buf, struct ap_err *err)
{
    struct stat st;
    ssize_t n;

    if (!fstat(fd, &st) && S_ISREG(st.st_mode) && st.st_size > 0)
        ap_buf_room(buf, (size_t)st.st_size + PIECE);
    do {
        char *room = ap_buf_room(buf, PIECE);
        while ((n = read(fd, room, PIECE)) < 0 && errno == EINTR)
            ;
        buf->len += n > 0 ? (size_t)n : 0;
    } while (n > 0);
    if (n < 0)
        file_err(name, strerror(errno), err);
    close(fd);
    return (int)n;
}

const char *ap_gzip_why(const char *why)
{
    const char *end = strncmp(why, "<fd:", 4) ? NULL : strstr(why, ">: ");

    return end ? end + 3 : why;
}

/* zlib passes uncompressed input on. Takes fd over. */
static int read_gzip(int fd, const char *name, struct ap_buf *buf, struct ap_err *err)
{
    static char block[1 << 16];
    struct stat st;
    const bool sized = !fstat(fd, &st) && S_ISREG(st.st_mode);
    const int64_t times = sized ? ap_mul64(st.st_size, UNPACK_TIMES) : UNPACK_PIPE_BYTES;
    const int64_t most = times > UNPACK_BYTES ? times : UNPACK_BYTES;
    gzFile gz = gzdopen(fd, "rb");
    int n, code;

    if (!gz) {
        close(fd);
        return file_err(name, "out of memory", err);
    }
    gzbuffer(gz, sizeof(block));
    while ((n = gzread(gz, block, sizeof(block))) > 0) {
        ap_buf_put(buf, block, (size_t)n);
        if ((int64_t)buf->len > most && !gzdirect(gz)) {
            gzclose_r(gz);
            return ap_err_set(err, "%s: unpacks to more than %lld bytes", name,
                              (long long)most);
        }
    }
    if (n < 0) {
        const char *why = gzerror(gz, &code);
        file_err(name, code == Z_ERRNO ? strerror(errno) : ap_gzip_why(why), err);
        gzclose_r(gz);
        return -1;
    }
    if (gzclose_r(gz) != Z_OK)
        return file_err(name, "the compressed data is cut short", err);
    return 0;
}

int ap_read_file(struct ap_arena *arena, const char *path, bool gunzip, char **text,
                 size_t *len, struct ap_err *err)
{
    const bool is_stdin = !strcmp(path, "-");
    const char *name = is_stdin ? "<stdin>" : path;
    struct ap_buf buf = {0};
    int fd = is_stdin ? dup(STDIN_FILENO) : open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return file_err(name, strerror(errno), err);
    if ((gunzip ? read_gzip : read_plain)(fd, name, &buf, err)) {
        ap_buf_free(&buf);
        return -1;
    }
    ap_buf_puts(&buf, ""); /* the NUL */
    *text = buf.data;
    *len = buf.len;
    ap_arena_keep(arena, buf.data);
    return 0;
}

/* The path of a file that does not exist yet, in its folder's own; NULL: no such folder.
 * Caller frees. */
static char *future_path(const char *path)
{
    const char *end = strrchr(path, '/'), *name = end ? end + 1 : path;
    struct ap_buf folder = {0}, whole = {0};
    ap_buf_printf(&folder, "%.*s.", (int)(name - path), path);
    char *real = realpath(folder.data, NULL);
    if (real)
        ap_buf_printf(&whole, "%s/%s", real, name);
    free(real);
    ap_buf_free(&folder);
    return whole.data;
}

bool ap_same_file(const char *a, const char *b)
{
    struct stat s, t;
    if (!strcmp(a, "-") || !strcmp(b, "-"))
        return false;
    if (!strcmp(a, b))
        return true;
    const bool is_a = !stat(a, &s), is_b = !stat(b, &t);
    if (is_a || is_b)
        return is_a && is_b && S_ISREG(s.st_mode) && s.st_dev == t.st_dev &&
               s.st_ino == t.st_ino;
    char *p = future_path(a), *q = future_path(b);
    const bool same = p && q && !strcmp(p, q);
    free(p);
    free(q);
    return same;
}
