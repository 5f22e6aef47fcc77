/* The file of a checkpoint: safetensors, see checkpoint.h. */
#include "run/checkpoint.h"

#include "doc/doc.h"
#include "graph/part.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FORMAT       "autopar checkpoint 1"
#define HEADER_ALIGN 64
#define MAX_HEADER   (100 << 20) /* that of the reference implementation */

static const struct {
    enum ap_dtype dtype;
    const char *name;
} types[] = {
    {AP_PRED, "BOOL"},        {AP_S8, "I8"},          {AP_S16, "I16"},   {AP_S32, "I32"},
    {AP_S64, "I64"},          {AP_U8, "U8"},          {AP_U16, "U16"},   {AP_U32, "U32"},
    {AP_U64, "U64"},          {AP_F16, "F16"},        {AP_BF16, "BF16"}, {AP_F32, "F32"},
    {AP_F8E4M3FN, "F8_E4M3"}, {AP_F8E5M2, "F8_E5M2"}, {AP_F64, "F64"},   {AP_C64, "C64"},
};

/* NULL: the format has none. */
static const char *type_name(enum ap_dtype dtype)
{
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (types[i].dtype == dtype)
            return types[i].name;
    return NULL;
}

/* ---- what a step changes ---- */

static int index_of(const struct ap_node *param, int k)
{
    return param->attrs->argument ? param->attrs->argument->index : k;
}

static int by_index(const void *a, const void *b)
{
    return ap_compare_int(&((const struct checkpoint_tensor *)a)->index,
                          &((const struct checkpoint_tensor *)b)->index);
}

static const struct checkpoint_tensor *find(const struct checkpoint *c, int index)
{
    const struct checkpoint_tensor key = {.index = index};
    return c->n ? bsearch(&key, c->tensor, (size_t)c->n, sizeof key, by_index) : NULL;
}

int checkpoint_list(struct ap_arena *arena, const struct ap_graph *g,
                    struct checkpoint *c, struct ap_err *err)
{
    int64_t at = 0;
    bool *changes = AP_NEW_N(arena, g->n_nodes + 1, bool);
    c->tensor = AP_NEW_N(arena, g->n_params + 1, struct checkpoint_tensor);
    c->n = 0;
    for (int r = 0; r < g->n_results; r++)
        if (g->results[r].alias >= 0)
            changes[g->results[r].alias] = true;
    for (int k = 0; k < g->n_params; k++) {
        const struct ap_node *v = &g->nodes[g->params[k]];
        const struct placement place = exec_placement(v);
        const struct checkpoint_tensor t = {
            .index = index_of(v, k),
            .name = v->name,
            .whole = ap_part_whole(arena, &place.global, v->attrs->argument)};
        bool listed = false;
        if (!changes[g->params[k]])
            continue;
        for (int i = 0; i < c->n && !listed; i++)
            listed = c->tensor[i].index == t.index;
        if (!listed && !type_name(t.whole.dtype))
            return ap_err_set(err,
                              "parameter %d (%s): checkpoints (safetensors) have no %s",
                              k, v->name, ap_dtype_name(t.whole.dtype));
        if (!listed)
            c->tensor[c->n++] = t;
    }
    qsort(c->tensor, (size_t)c->n, sizeof *c->tensor, by_index);
    for (int i = 0; i < c->n; i++) {
        c->tensor[i].at = at;
        at += ap_shape_bytes(&c->tensor[i].whole);
    }
    return 0;
}

int64_t checkpoint_bytes(const struct checkpoint *c)
{
    const struct checkpoint_tensor *last = &c->tensor[c->n - 1];
    return c->n ? last->at + ap_shape_bytes(&last->whole) : 0;
}

/* ---- writing ---- */

void checkpoint_header(struct checkpoint *c, struct ap_buf *out)
{
    struct ap_buf text = {0};
    ap_buf_printf(&text, "{\"__metadata__\":{\"format\":\"" FORMAT "\",\"step\":\"%lld\"",
                  (long long)c->step);
    for (int i = 0; i < c->n; i++) {
        ap_buf_printf(&text, ",\"%d.name\":", c->tensor[i].index);
        ap_json_str(&text, c->tensor[i].name);
        ap_buf_printf(&text, ",\"%d.hash\":\"%016" PRIx64 "\"", c->tensor[i].index,
                      c->tensor[i].hash);
    }
    ap_buf_putc(&text, '}');
    for (int i = 0; i < c->n; i++) {
        const struct checkpoint_tensor *t = &c->tensor[i];
        ap_buf_printf(&text, ",\"%d\":{\"dtype\":\"%s\",\"shape\":[", t->index,
                      type_name(t->whole.dtype));
        for (int d = 0; d < t->whole.rank; d++)
            ap_buf_printf(&text, "%s%lld", d ? "," : "", (long long)t->whole.dims[d]);
        ap_buf_printf(&text, "],\"data_offsets\":[%lld,%lld]}", (long long)t->at,
                      (long long)(t->at + ap_shape_bytes(&t->whole)));
    }
    ap_buf_putc(&text, '}');
    while ((8 + text.len) % HEADER_ALIGN)
        ap_buf_putc(&text, ' ');
    for (int i = 0; i < 8; i++)
        ap_buf_putc(out, (char)((uint64_t)text.len >> 8 * i & 255));
    ap_buf_put(out, text.data, text.len);
    c->data_at = 8 + (int64_t)text.len;
    ap_buf_free(&text);
}

/* ---- reading ---- */

static int read_all(int fd, char *to, int64_t bytes, int64_t at)
{
    while (bytes > 0) {
        const ssize_t n = pread(fd, to, (size_t)bytes, (off_t)at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return -1;
        to += n;
        at += n;
        bytes -= n;
    }
    return 0;
}

/* A string under __metadata__; NULL if there is none. */
static const char *meta(const json_t *header, int index, const char *what)
{
    char key[64];
    if (index < 0)
        snprintf(key, sizeof key, "%s", what);
    else
        snprintf(key, sizeof key, "%d.%s", index, what);
    return json_string_value(
        json_object_get(json_object_get(header, "__metadata__"), key));
}

static bool read_number(const char *text, int base, int64_t most, uint64_t *out)
{
    char *end;
    errno = 0;
    if (!text || !*text || strspn(text, "0123456789abcdef") != strlen(text))
        return false;
    *out = strtoull(text, &end, base);
    return !*end && !errno && (most < 0 || *out <= (uint64_t)most);
}

/* One tensor of the header. */
static int read_tensor(struct ap_arena *arena, const json_t *header, const char *key,
                       const json_t *o, struct checkpoint_tensor *t)
{
    const char *dtype = json_string_value(json_object_get(o, "dtype"));
    const json_t *shape = json_object_get(o, "shape");
    const json_t *ends = json_object_get(o, "data_offsets");
    uint64_t index;
    *t = (struct checkpoint_tensor){.whole = {.dtype = AP_N_DTYPES}};
    for (size_t i = 0; dtype && i < sizeof types / sizeof *types; i++)
        if (!strcmp(dtype, types[i].name))
            t->whole.dtype = types[i].dtype;
    if (!read_number(key, 10, INT32_MAX, &index) || t->whole.dtype == AP_N_DTYPES ||
        !json_is_array(shape) || json_array_size(shape) > AP_MAX_RANK ||
        json_array_size(ends) != 2)
        return -1;
    int64_t *dims = AP_NEW_N(arena, AP_MAX_RANK, int64_t);
    t->index = (int)index;
    t->whole.rank = (int)json_array_size(shape);
    t->whole.dims = dims;
    for (int d = 0; d < t->whole.rank; d++) {
        const json_t *v = json_array_get(shape, (size_t)d);
        dims[d] = json_is_integer(v) ? json_integer_value(v) : -1;
        if (dims[d] < 0)
            return -1;
    }
    t->at = json_integer_value(json_array_get(ends, 0));
    const int64_t end = json_integer_value(json_array_get(ends, 1));
    const char *name = meta(header, t->index, "name");
    if (t->at < 0 || t->at > end || end - t->at != ap_shape_bytes(&t->whole) || !name ||
        !read_number(meta(header, t->index, "hash"), 16, -1, &t->hash))
        return -1;
    t->name = ap_arena_strdup(arena, name);
    return 0;
}

static int read_header(struct ap_arena *arena, const json_t *header, struct checkpoint *c,
                       struct ap_err *err)
{
    const char *format = meta(header, -1, "format"), *key;
    json_t *o;
    uint64_t step;
    if (!format || strcmp(format, FORMAT))
        return ap_err_set(err, "%s: not a checkpoint of ap-exec (format %s)", c->path,
                          format ? format : "unknown");
    if (!read_number(meta(header, -1, "step"), 10, INT64_MAX / 2, &step))
        return ap_err_set(err, "%s: the header does not say the step", c->path);
    c->step = (int64_t)step;
    c->tensor = AP_NEW_N(arena, json_object_size(header) + 1, struct checkpoint_tensor);
    json_t *all = (json_t *)(uintptr_t)header; /* jansson's iteration has no const */
    json_object_foreach(all, key, o)
    {
        if (!strcmp(key, "__metadata__"))
            continue;
        if (read_tensor(arena, header, key, o, &c->tensor[c->n++]))
            return ap_err_set(err, "%s: malformed entry of tensor %s", c->path, key);
    }
    qsort(c->tensor, (size_t)c->n, sizeof *c->tensor, by_index);
    return 0;
}

static int read_file(struct ap_arena *arena, struct checkpoint *c, struct ap_err *err)
{
    struct stat st;
    unsigned char word[8];
    json_error_t why;
    uint64_t len = 0;
    if (fstat(c->fd, &st))
        return ap_err_set(err, "%s: %s", c->path, strerror(errno));
    if (st.st_size < 8 || read_all(c->fd, (char *)word, 8, 0))
        return ap_err_set(err, "%s: cut short: %lld bytes", c->path,
                          (long long)st.st_size);
    for (int i = 0; i < 8; i++)
        len |= (uint64_t)word[i] << 8 * i;
    if (len > MAX_HEADER)
        return ap_err_set(err, "%s: not a safetensors file", c->path);
    c->data_at = 8 + (int64_t)len;
    if (c->data_at > st.st_size)
        return ap_err_set(err, "%s: cut short in the header", c->path);
    char *text = ap_xrealloc(NULL, (size_t)len + 1);
    json_t *header = NULL;
    if (!read_all(c->fd, text, (int64_t)len, 8))
        header = json_loadb(text, (size_t)len, JSON_REJECT_DUPLICATES, &why);
    free(text);
    if (!json_is_object(header)) {
        json_decref(header);
        return ap_err_set(err, "%s: the header is not a JSON object", c->path);
    }
    int rc = read_header(arena, header, c, err);
    json_decref(header);
    int64_t end = 0;
    for (int i = 0; i < c->n && !rc; i++) {
        const int64_t stop = c->tensor[i].at + ap_shape_bytes(&c->tensor[i].whole);
        end = stop > end ? stop : end;
    }
    if (!rc && end != st.st_size - c->data_at)
        rc = ap_err_set(err, "%s: %lld bytes of tensors, the header has %lld", c->path,
                        (long long)(st.st_size - c->data_at), (long long)end);
    return rc;
}

int checkpoint_open(struct ap_arena *arena, const char *dir, struct checkpoint *c,
                    struct ap_err *err)
{
    *c = (struct checkpoint){.path = ap_arena_printf(arena, "%s/" CHECKPOINT_NAME, dir)};
    c->fd = open(c->path, O_RDONLY | O_CLOEXEC);
    if (c->fd < 0)
        return ap_err_set(err, "%s: %s", c->path, strerror(errno));
    const int rc = read_file(arena, c, err);
    if (rc) {
        close(c->fd);
        c->fd = -1;
    }
    return rc;
}

int checkpoint_match(struct ap_arena *arena, const struct ap_graph *g,
                     struct checkpoint *c, struct ap_err *err)
{
    struct checkpoint want = {0};
    if (checkpoint_list(arena, g, &want, err))
        return -1;
    for (int i = 0; i < want.n; i++) {
        const struct checkpoint_tensor *t = &want.tensor[i], *has = find(c, t->index);
        if (!has)
            return ap_err_set(err, "%s: has no tensor %d (%s)", c->path, t->index,
                              t->name);
        if (strcmp(has->name, t->name))
            return ap_err_set(err, "%s: tensor %d is %s, in the program it is %s",
                              c->path, t->index, has->name, t->name);
        if (ap_shape_equal(&has->whole, &t->whole))
            continue;
        struct ap_buf a = {0}, b = {0};
        ap_shape_print(&t->whole, &a);
        ap_shape_print(&has->whole, &b);
        ap_err_set(err, "%s: tensor %d (%s): expected %s, got %s", c->path, t->index,
                   t->name, a.data, b.data);
        ap_buf_free(&a);
        ap_buf_free(&b);
        return -1;
    }
    for (int i = 0; i < c->n; i++)
        if (!find(&want, c->tensor[i].index))
            return ap_err_set(err,
                              "%s: tensor %d (%s) is not one that the program changes",
                              c->path, c->tensor[i].index, c->tensor[i].name);
    return 0;
}
