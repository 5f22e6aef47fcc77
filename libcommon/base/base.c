#include "base/base.h"

#include "base/poison.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- errors ---- */

int ap_err_set(struct ap_err *err, const char *fmt, ...)
{
    if (err->msg[0])
        return -1;
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(err->msg, sizeof(err->msg), fmt, args);
    va_end(args);
    if (n < 0)
        snprintf(err->msg, sizeof(err->msg), "error (its message cannot be formatted)");
    else if ((size_t)n >= sizeof(err->msg))
        memcpy(err->msg + sizeof(err->msg) - 4, "...", 4);
    return -1;
}

_Noreturn static void out_of_memory(size_t size)
{
    fprintf(stderr, "out of memory (wanted %zu bytes)\n", size);
    exit(1);
}

/* ---- arena ---- */

enum { ARENA_ALIGN = 16, ARENA_FIRST = 16 << 10, ARENA_MOST = 1 << 20 };

/* Between two allocations, and what is not allocated is poisoned: with AddressSanitizer
 * an overflow is seen as in malloc's memory. */
enum { ARENA_GAP = AP_POISONS ? ARENA_ALIGN : 0 };

struct ap_arena_chunk {
    struct ap_arena_chunk *up; /* made before this one */
    size_t size, used;         /* bytes of data */
    void *kept;                /* freed with the chunk */
    max_align_t data[];
};

static void arena_grow(struct ap_arena *arena, size_t size)
{
    size_t want = arena->head ? arena->head->size * 2 : ARENA_FIRST;
    if (want > ARENA_MOST)
        want = ARENA_MOST;
    if (want < size)
        want = size;
    if (want > SIZE_MAX - sizeof(struct ap_arena_chunk))
        out_of_memory(size);
    struct ap_arena_chunk *chunk = malloc(sizeof(*chunk) + want);
    if (!chunk)
        out_of_memory(size);
    chunk->up = arena->head;
    chunk->size = want;
    chunk->used = 0;
    chunk->kept = NULL;
    arena->head = chunk;
    ap_poison(chunk->data, want);
}

/* room: size and up to ARENA_ALIGN - 1 bytes more, not zeroed; with gaps, size. */
static char *arena_take(struct ap_arena *arena, size_t size, size_t *room)
{
    if (size > SIZE_MAX - ARENA_ALIGN - ARENA_GAP)
        out_of_memory(size);
    const size_t step = (size + ARENA_GAP + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
    if (!arena->head || arena->head->size - arena->head->used < step)
        arena_grow(arena, step);
    char *p = (char *)arena->head->data + arena->head->used;
    arena->head->used += step;
    *room = ARENA_GAP ? size : step;
    ap_unpoison(p, *room);
    return p;
}

void *ap_arena_alloc(struct ap_arena *arena, size_t size)
{
    size_t room;
    char *p = arena_take(arena, size, &room);
    return memset(p, 0, room);
}

void *ap_arena_alloc_n(struct ap_arena *arena, size_t n, size_t size)
{
    if (size && n > SIZE_MAX / size)
        out_of_memory(SIZE_MAX);
    return ap_arena_alloc(arena, n * size);
}

void *ap_arena_dup(struct ap_arena *arena, const void *src, size_t size)
{
    size_t room;
    char *p = arena_take(arena, size, &room);
    if (size)
        memcpy(p, src, size);
    memset(p + size, 0, room - size);
    return p;
}

char *ap_arena_strndup(struct ap_arena *arena, const char *s, size_t len)
{
    if (len == SIZE_MAX)
        out_of_memory(len);
    size_t room;
    char *p = arena_take(arena, len + 1, &room);
    if (len)
        memcpy(p, s, len);
    memset(p + len, 0, room - len);
    return p;
}

char *ap_arena_strdup(struct ap_arena *arena, const char *s)
{
    return ap_arena_strndup(arena, s, strlen(s));
}

char *ap_arena_printf(struct ap_arena *arena, const char *fmt, ...)
{
    va_list args, again;
    va_start(args, fmt);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    char *p = ap_arena_alloc(arena, n < 0 ? 1 : (size_t)n + 1);
    if (n > 0)
        vsnprintf(p, (size_t)n + 1, fmt, again);
    va_end(again);
    return p;
}

void ap_arena_keep(struct ap_arena *arena, void *p)
{
    arena_grow(arena, 0);
    arena->head->kept = p;
}

void ap_arena_join(struct ap_arena *arena, struct ap_arena *other)
{
    struct ap_arena_chunk *last = other->head;
    if (!last)
        return;
    while (last->up)
        last = last->up;
    last->up = arena->head;
    arena->head = other->head;
    other->head = NULL;
}

struct ap_mark ap_arena_mark(struct ap_arena *arena)
{
    return (struct ap_mark){arena->head, arena->head ? arena->head->used : 0};
}

void ap_arena_rewind(struct ap_arena *arena, struct ap_mark mark)
{
    while (arena->head != mark.chunk) {
        struct ap_arena_chunk *up = arena->head->up;
        free(arena->head->kept);
        free(arena->head);
        arena->head = up;
    }
    if (!arena->head)
        return;
    ap_poison((char *)arena->head->data + mark.used, arena->head->used - mark.used);
    arena->head->used = mark.used;
}

void ap_arena_free(struct ap_arena *arena)
{
    ap_arena_rewind(arena, (struct ap_mark){NULL, 0});
}

/* ---- byte buffer ---- */

void *ap_xrealloc(void *p, size_t size)
{
    void *q = realloc(p, size ? size : 1);
    if (!q)
        out_of_memory(size);
    return q;
}

/* Room for len more bytes and a NUL. */
static void buf_reserve(struct ap_buf *buf, size_t len)
{
    if (len < buf->cap - buf->len)
        return;
    if (len > SIZE_MAX / 2 - buf->len - 1)
        out_of_memory(len);
    size_t cap = buf->cap ? buf->cap * 2 : 256;
    if (cap < buf->len + len + 1)
        cap = buf->len + len + 1;
    buf->data = ap_xrealloc(buf->data, cap);
    buf->cap = cap;
}

void ap_buf_put(struct ap_buf *buf, const void *data, size_t len)
{
    buf_reserve(buf, len);
    if (len)
        memcpy(buf->data + buf->len, data, len);
    buf->len += len;
    buf->data[buf->len] = '\0';
}

char *ap_buf_room(struct ap_buf *buf, size_t len)
{
    buf_reserve(buf, len);
    return buf->data + buf->len;
}

void ap_buf_puts(struct ap_buf *buf, const char *s)
{
    ap_buf_put(buf, s, strlen(s));
}

void ap_buf_putc(struct ap_buf *buf, char c)
{
    buf_reserve(buf, 1);
    buf->data[buf->len++] = c;
    buf->data[buf->len] = '\0';
}

void ap_buf_int(struct ap_buf *buf, int64_t v)
{
    char text[24];
    char *p = text + sizeof(text);
    uint64_t u = v < 0 ? 0 - (uint64_t)v : (uint64_t)v;

    do
        *--p = (char)('0' + u % 10);
    while (u /= 10);
    if (v < 0)
        *--p = '-';
    ap_buf_put(buf, p, (size_t)(text + sizeof(text) - p));
}

void ap_buf_printf(struct ap_buf *buf, const char *fmt, ...)
{
    va_list args, again;
    va_start(args, fmt);
    va_copy(again, args);
    buf_reserve(buf, 127);
    int n = vsnprintf(buf->data + buf->len, buf->cap - buf->len, fmt, args);
    va_end(args);
    if (n > 0 && (size_t)n >= buf->cap - buf->len) {
        buf_reserve(buf, (size_t)n);
        vsnprintf(buf->data + buf->len, buf->cap - buf->len, fmt, again);
    }
    va_end(again);
    if (n > 0)
        buf->len += (size_t)n;
    buf->data[buf->len] = '\0';
}

void ap_buf_free(struct ap_buf *buf)
{
    free(buf->data);
    *buf = (struct ap_buf){0};
}

/* ---- numbers ---- */

int64_t ap_mul64(int64_t a, int64_t b)
{
    int64_t r;
    return __builtin_mul_overflow(a, b, &r) ? INT64_MAX : r;
}

int64_t ap_add64(int64_t a, int64_t b)
{
    int64_t r;
    return __builtin_add_overflow(a, b, &r) ? INT64_MAX : r;
}

/* The first of eight bytes lowest; a single load where machines store it so. */
static inline uint64_t word_at(const unsigned char *p)
{
    return (uint64_t)p[0] | (uint64_t)p[1] << 8 | (uint64_t)p[2] << 16 |
           (uint64_t)p[3] << 24 | (uint64_t)p[4] << 32 | (uint64_t)p[5] << 40 |
           (uint64_t)p[6] << 48 | (uint64_t)p[7] << 56;
}

uint64_t ap_hash(const void *data, size_t len, uint64_t seed)
{
    const unsigned char *p = data;
    uint64_t h = ap_hash_mix(0, seed + len);

    size_t i = 0;
    for (; i + 8 <= len; i += 8)
        h = ap_hash_mix(h, word_at(p + i));
    if (i < len) {
        uint64_t word = 0;
        for (size_t k = 0; i + k < len; k++)
            word |= (uint64_t)p[i + k] << (8 * k);
        h = ap_hash_mix(h, word);
    }
    return h;
}

bool ap_glob(const char *glob, const char *s)
{
    const char *star = NULL, *back = NULL;
    while (*s) {
        if (*glob == '*') {
            star = glob++;
            back = s;
        } else if (*glob == '?' || *glob == *s) {
            glob++;
            s++;
        } else if (star) {
            glob = star + 1;
            s = ++back;
        } else {
            return false;
        }
    }
    while (*glob == '*')
        glob++;
    return !*glob;
}

int ap_compare_int(const void *a, const void *b)
{
    int x = *(const int *)a, y = *(const int *)b;

    return (x > y) - (x < y);
}

double ap_now_sec(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
