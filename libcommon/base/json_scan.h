/*
 * JSON token by token, from bytes in memory or from a stream: the reader of a stream sets
 * `more`, which fetches the next bytes. Blanks before a token are skipped. Functions that
 * return int give -1 if the text is not JSON; `why` then has the error at `at`.
 */
#ifndef AP_JSON_SCAN_H
#define AP_JSON_SCAN_H

#include <string.h>

#include "base/base.h"

enum { AP_JSON_LEVELS = 512 }; /* of nested brackets, at most */

struct ap_json {
    const char *at, *end; /* the next byte, and the end of the bytes in memory */
    bool (*more)(struct ap_json *s); /* sets at and end to the next bytes; false if there
                                        are none. NULL: all bytes are in memory */
    void *ctx;                       /* of `more` */
    const char *why;
};

static inline int ap_json_fail(struct ap_json *s, const char *why)
{
    s->why = why;
    return -1;
}
/* The next byte, blanks included, without taking it; -1 at the end. */
static inline int ap_json_peek(struct ap_json *s)
{
    return s->at < s->end || (s->more && s->more(s)) ? (unsigned char)*s->at : -1;
}
/* The next byte that is not a blank, without taking it; -1 at the end. */
static inline int ap_json_next(struct ap_json *s)
{
    int c;

    while ((c = ap_json_peek(s)) == ' ' || c == '\n' || c == '\t' || c == '\r')
        s->at++;
    return c;
}
/* Takes c if it is next. */
static inline bool ap_json_take(struct ap_json *s, char c)
{
    bool is = ap_json_next(s) == c;
    s->at += is;
    return is;
}
/* The first byte from `at` on that ends a string or is not plain (not printable ASCII, or
 * an escape), or `end`. Looks at eight bytes at a time. */
static inline const char *ap_json_plain(const char *at, const char *end)
{
    const uint64_t ones = UINT64_MAX / 255, tops = ones << 7;
    uint64_t w, quote, escape;

    for (; end - at >= 8; at += 8) {
        memcpy(&w, at, 8);
        quote = w ^ (ones * '"');
        escape = w ^ (ones * '\\');
        /* a byte has its top bit set if it is not ASCII, is below a blank, or is a quote,
         * a backslash or 127 */
        if ((w | ((w - ones * ' ') & ~w) | ((quote - ones) & ~quote) |
             ((escape - ones) & ~escape) | (w + ones)) &
            tops)
            break;
    }
    while (at < end && *at >= ' ' && *at <= '~' && *at != '"' && *at != '\\')
        at++; /* char may be signed or not */
    return at;
}

/* ---- tokens, checked ---- */

/*
 * A string. Its bytes between the quotes, escapes unchanged, go to text, cut at
 * cap - 1 and NUL-terminated; NULL: nowhere.
 */
int ap_json_string(struct ap_json *s, char *text, size_t cap);
/* A string and the colon after it, as ap_json_string. */
int ap_json_key(struct ap_json *s, char *text, size_t cap);
/* Skips a value of any kind that is inside of `levels` brackets. */
int ap_json_skip(struct ap_json *s, int levels);
/*
 * After an item: takes a comma and returns 1, or takes the closing bracket and returns 0.
 */
int ap_json_more(struct ap_json *s, char close);

/* ---- the usual tokens, which lie in memory as a whole ---- */

/* The length of a string of printable ASCII without escapes, and where it is; -1 for any
 * other text. */
int ap_json_plain_string(struct ap_json *s, const char **text);
/* A whole number of at most 18 digits; false for any other text. */
bool ap_json_int(struct ap_json *s, long long *value);
/* The length of a number, -1 for any other text. */
int ap_json_number(struct ap_json *s, const char **text);

#endif
