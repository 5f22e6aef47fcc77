/* Plain JSON, read fast. */
#ifndef AP_PLAIN_H
#define AP_PLAIN_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/*
 * What jansson's json_loadb makes of text that is plain: members named once, names of at
 * most 63 bytes, strings of ASCII without escapes, numbers of at most 18 digits, or of at
 * most 40 bytes if they are not whole, 64 levels at most. NULL for all other text, right
 * or wrong: ask jansson. Equal strings and numbers may be one value, which is not to be
 * set. The caller decrefs.
 */
json_t *ap_fast_json_json(const char *text, size_t len);

/* The same text, token by token. Blanks before a token are skipped. */
struct ap_fast_json {
    const char *at, *end;
};
/* The next byte that is no blank, '\0' at the end; it stays. */
static inline char ap_fast_json_next(struct ap_fast_json *p)
{
    while (p->at < p->end && (*p->at == ' ' || *p->at == '\n'))
        p->at++;
    return p->at < p->end ? *p->at : '\0';
}
/* Takes c if it is next. */
static inline bool ap_fast_json_take(struct ap_fast_json *p, char c)
{
    bool is = ap_fast_json_next(p) == c;
    p->at += is;
    return is;
}
/* The first byte from at on that ends a string or is not plain in one, or end: eight at
 * a time, as far as there are as many. */
static inline const char *ap_fast_json_run(const char *at, const char *end)
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
/* The length of the string that is next, which is taken; -1: it is not plain. */
int ap_fast_json_string(struct ap_fast_json *p, const char **text);
/* Takes a value of any kind that stands in valid JSON; false if a string in it is not
 * plain. */
bool ap_fast_json_skip(struct ap_fast_json *p);
/* Takes a whole number; false if it is not plain. */
bool ap_fast_json_int(struct ap_fast_json *p, long long *value);

#endif
