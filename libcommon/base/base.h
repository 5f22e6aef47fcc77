/* Errors, arenas, byte buffers and checked arithmetic. Everything else stands on this. */
#ifndef AP_BASE_H
#define AP_BASE_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- errors ---- */

/* A message for a person, without a full stop; empty while nothing went wrong. */
struct ap_err {
    char msg[1024];
};

/* Formats a message into err unless one is there already; always returns -1. */
int ap_err_set(struct ap_err *err, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* ---- arena ---- */

struct ap_arena_chunk;

/* Zero-initialise ({0}) before the first use. Memory is freed whole by ap_arena_free. */
struct ap_arena {
    struct ap_arena_chunk *head;
};

struct ap_mark {
    struct ap_arena_chunk *chunk;
    size_t used;
};

/* Zeroed memory, 16-byte aligned. Running out of memory ends the program (exit 1). */
void *ap_arena_alloc(struct ap_arena *arena, size_t size);
/* As ap_arena_alloc for n items of size bytes; an overflow counts as out of memory. */
void *ap_arena_alloc_n(struct ap_arena *arena, size_t n, size_t size);
void *ap_arena_dup(struct ap_arena *arena, const void *src, size_t size);
char *ap_arena_strdup(struct ap_arena *arena, const char *s);
char *ap_arena_strndup(struct ap_arena *arena, const char *s, size_t len);
char *ap_arena_printf(struct ap_arena *arena, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* Takes over memory of malloc, which is freed as if it had been allocated here now. */
void ap_arena_keep(struct ap_arena *arena, void *p);
/* Moves all memory of `other` to this arena, as if it had been allocated now; `other` is
 * empty afterwards. */
void ap_arena_join(struct ap_arena *arena, struct ap_arena *other);
struct ap_mark ap_arena_mark(struct ap_arena *arena);
void ap_arena_rewind(struct ap_arena *arena, struct ap_mark mark);
void ap_arena_free(struct ap_arena *arena);

#define AP_NEW(arena, type) ((type *)ap_arena_alloc((arena), sizeof(type)))
#define AP_NEW_N(arena, n, type) \
    ((type *)ap_arena_alloc_n((arena), (size_t)(n), sizeof(type)))

/* ---- growable byte buffer (malloc; the owner calls ap_buf_free) ---- */

struct ap_buf {
    char *data; /* NUL-terminated once something was put */
    size_t len, cap;
};

void ap_buf_put(struct ap_buf *buf, const void *data, size_t len);
/* The place of the next len bytes, uninitialised; the caller fills them and adds them to
 * buf->len. */
char *ap_buf_room(struct ap_buf *buf, size_t len);
void ap_buf_puts(struct ap_buf *buf, const char *s);
void ap_buf_putc(struct ap_buf *buf, char c);
void ap_buf_int(struct ap_buf *buf, int64_t v);
void ap_buf_printf(struct ap_buf *buf, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
void ap_buf_free(struct ap_buf *buf);

/* malloc and realloc that end the program (exit 1) when memory runs out; caller frees. */
void *ap_xrealloc(void *p, size_t size);

/* ---- numbers ---- */

/* a * b for a, b >= 0, INT64_MAX when that does not fit. */
int64_t ap_mul64(int64_t a, int64_t b);
/* a + b for a, b >= 0, INT64_MAX when that does not fit. */
int64_t ap_add64(int64_t a, int64_t b);
static inline int64_t ap_ceil_div(int64_t a, int64_t b)
{
    return a / b + (a % b != 0);
}

/* 64-bit mix of n bytes; the same on every machine. seed chains calls. */
uint64_t ap_hash(const void *data, size_t len, uint64_t seed);
/*
 * Mixes one more number into a hash; the result is the same on every machine. A step and
 * the finaliser of splitmix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number
 * generators").
 */
static inline uint64_t ap_hash_mix(uint64_t hash, uint64_t word)
{
    uint64_t x = (hash ^ word) + 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}
/* Compares two ints, for qsort. */
int ap_compare_int(const void *a, const void *b);

/* The text of a size in memory: "16.0 GiB". */
const char *ap_size_text(struct ap_arena *arena, int64_t bytes);
/* Parses a number of bytes, or a number with kB, MB, GB, KiB, MiB, GiB, TB or TiB; -1 if
 * the text is neither. */
int64_t ap_size_parse(const char *text);

/* Monotonic seconds, for --stats and --time-limit only. */
double ap_now_sec(void);

/* Whether s matches a pattern in which * stands for any bytes and ? for one. */
bool ap_glob(const char *glob, const char *s);

#endif
