/* External data: bytes of initialisers in files in the model's folder, which are mapped,
 * not read. */
#include "onnx/onnx_read.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Relative, and inside of the model's folder. */
static bool is_beside(const char *location)
{
    const char *p = location;
    if (!*p || *p == '/')
        return false;
    while (p) {
        p += *p == '/';
        if (strncmp(p, "..", 2) == 0 && (!p[2] || p[2] == '/'))
            return false;
        p = strchr(p, '/');
    }
    return true;
}

/* len bytes at offset of a file, mapped until the program ends. */
static const void *map_part(const char *path, int64_t offset, int64_t len)
{
    const int64_t page = sysconf(_SC_PAGESIZE);
    int fd = open(path, O_RDONLY);
    if (fd < 0)
        return NULL;
    int64_t skip = offset % page;
    void *p = mmap(NULL, (size_t)(len + skip), PROT_READ, MAP_PRIVATE, fd,
                   (off_t)(offset - skip));
    close(fd);
    return p == MAP_FAILED ? NULL : (const char *)p + skip;
}

int onnx_map_external(struct onnx_file *f, struct onnx_tensor *t)
{
    struct stat st;
    int64_t want = ap_shape_bytes(&t->shape);
    if (!t->external || t->data)
        return 0;
    if (!t->location || !is_beside(t->location))
        return onnx_fail(f,
                         "initialiser '%s': its data are said to be in '%s', which is "
                         "not a file in the model's folder",
                         t->name, t->location ? t->location : "");
    const char *slash = strrchr(f->path, '/');
    const char *path = ap_arena_printf(
        f->arena, "%.*s%s", slash ? (int)(slash + 1 - f->path) : 0, f->path, t->location);
    if (stat(path, &st))
        return onnx_fail(f, "initialiser '%s': external data '%s': %s", t->name, path,
                         strerror(errno));
    if (t->offset < 0 || t->offset > st.st_size || st.st_size - t->offset < want ||
        (t->length >= 0 && t->length != want) || !S_ISREG(st.st_mode))
        return onnx_fail(f,
                         "initialiser '%s': external data '%s' does not hold the %lld "
                         "bytes that it needs",
                         t->name, path, (long long)want);
    t->data = want ? map_part(path, t->offset, want) : "";
    t->bytes = want;
    if (!t->data)
        return onnx_fail(f, "initialiser '%s': external data '%s': %s", t->name, path,
                         strerror(errno));
    return 0;
}
