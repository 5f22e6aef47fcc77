/*
 * JSON token by token, over bytes at hand or over a stream: whoever scans a stream gives
 * `more`, which brings the bytes after those at hand. Blanks before a token are skipped.
 * Functions that return int give -1 where the text is no JSON: `why` then says what was
 * expected, or is wrong, at `at`.
 */
#ifndef AP_JSON_SCAN_H
#define AP_JSON_SCAN_H

#include <string.h>

#include "base/base.h"

enum { AP_JSON_LEVELS = 512 }; /* of nested brackets, at most */

struct ap_json {
    const char *at, *end;            /* the next byte, and the end of those at hand */
    bool (*more)(struct ap_json *s); /* sets at and end to what follows; false: nothing
                                        does. NULL: all bytes are at hand */
    void *ctx;                       /* of `more` */
    const char *why;
};

static inline int ap_json_fail(struct ap_json *s, const char *why)
{
    s->why = why;
    return -1;
}
/* The next byte, blanks included; -1 at the end. It stays. */
static inline int ap_json_peek(struct ap_json *s)
{
    return s->at < s->end || (s->more && s->more(s)) ? (unsigned char)*s->at : -1;
}
/* The next byte that is no blank; -1 at the end. It stays. */
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
/* The first byte from at on that ends a string or is not plain in one (no printable
 * ASCII, or an escape), or end: eight at a time, as far as there are as many. */
static inline const char *ap_json_plain(const char *at, const char *end)
{
    const uint64_t ones = UINT64_MAX / 255, tops = ones << 7;
    uint64_t w, quote, escape;

    for (; end - at >= 8; at += 8) {
        memcpy(&w, at, 8);
        quote = w ^ (ones * '"');
        escape = w ^ (ones * '\\');
        /* a top bit is set: no ASCII, below a blank, a quote, a backslash, or 127 */
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
/* A value of any kind, inside of `levels` brackets. */
int ap_json_skip(struct ap_json *s, int levels);
/* After an item: 1 where a comma is next, 0 at the closing bracket; both are taken. */
int ap_json_more(struct ap_json *s, char close);

/* ---- tokens as nearly all are, at hand as a whole ---- */

/* The length of a string of printable ASCII without escapes, and where it is; -1 for any
 * other text. */
int ap_json_plain_string(struct ap_json *s, const char **text);
/* A whole number of at most 18 digits; false for any other text. */
bool ap_json_int(struct ap_json *s, long long *value);
/* The length of a number, -1 for any other text. */
int ap_json_number(struct ap_json *s, const char **text);

#endif
