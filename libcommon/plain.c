/*
 * Problem: a graph is read as hundreds of thousands of small JSON values, and jansson
 * looks at every byte through several calls. Nearly all of these are plain: what makes
 * JSON hard to read does not occur in them. Linear; a quarter of jansson's time.
 */
#include "plain.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum { MAX_LEVELS = 64, MAX_DIGITS = 18, MAX_KEY = 63 };

struct plain {
    const char *at, *end;
    int level;
};

static char next(struct plain *p)
{
    while (p->at < p->end && (*p->at == ' ' || *p->at == '\n'))
        p->at++;
    return p->at < p->end ? *p->at : '\0';
}

static bool take(struct plain *p, char c)
{
    bool is = next(p) == c;
    p->at += is;
    return is;
}

/* The length of the string's text, which p->at is moved behind; -1: it is not plain. */
static int take_string(struct plain *p, const char **text)
{
    if (!take(p, '"'))
        return -1;
    *text = p->at;
    for (; p->at < p->end && *p->at != '"'; p->at++)
        if (*p->at < ' ' || *p->at == '\\' ||
            *p->at > '~') /* char may be signed or not */
            return -1;
    if (p->at == p->end || p->at - *text > INT32_MAX)
        return -1;
    return (int)(p->at++ - *text);
}

static json_t *plain_number(struct plain *p)
{
    bool negative = take(p, '-');
    json_int_t value = 0;
    int n = 0;

    for (; p->at < p->end && *p->at >= '0' && *p->at <= '9'; p->at++, n++) {
        if (n == MAX_DIGITS)
            return NULL;
        value = 10 * value + (*p->at - '0');
    }
    char end = p->at < p->end ? *p->at : '\0';
    bool leading = n > 1 && p->at[-n] == '0',
         real = end == '.' || end == 'e' || end == 'E';
    return n == 0 || leading || real ? NULL : json_integer(negative ? -value : value);
}

static json_t *plain_word(struct plain *p)
{
    size_t left = (size_t)(p->end - p->at);

    if (left >= 4 && memcmp(p->at, "true", 4) == 0) {
        p->at += 4;
        return json_true();
    }
    if (left >= 5 && memcmp(p->at, "false", 5) == 0) {
        p->at += 5;
        return json_false();
    }
    return NULL;
}

static json_t *plain_value(struct plain *p);

static bool add_member(struct plain *p, json_t *object)
{
    char key[MAX_KEY + 1];
    const char *text;
    int len = take_string(p, &text);

    if (len < 0 || len > MAX_KEY || !take(p, ':'))
        return false;
    memcpy(key, text, (size_t)len);
    key[len] = '\0';
    json_t *value = plain_value(p);
    size_t n = json_object_size(object);
    return value && json_object_set_new_nocheck(object, key, value) == 0 &&
           json_object_size(object) == n + 1; /* else there was one of this name */
}

static bool add_element(struct plain *p, json_t *array)
{
    json_t *value = plain_value(p);
    return value && json_array_append_new(array, value) == 0;
}

static json_t *plain_list(struct plain *p, json_t *list, char close,
                          bool (*add)(struct plain *p, json_t *list))
{
    bool ok = p->level++ < MAX_LEVELS;

    p->at++; /* the bracket */
    if (ok && !take(p, close)) {
        do
            ok = add(p, list);
        while (ok && take(p, ','));
        ok = ok && take(p, close);
    }
    p->level--;
    if (ok)
        return list;
    json_decref(list);
    return NULL;
}

static json_t *plain_value(struct plain *p)
{
    const char *text;
    int len;

    switch (next(p)) {
    case '{':
        return plain_list(p, json_object(), '}', add_member);
    case '[':
        return plain_list(p, json_array(), ']', add_element);
    case '"':
        len = take_string(p, &text);
        return len < 0 ? NULL : json_stringn_nocheck(text, (size_t)len);
    case 't':
    case 'f':
        return plain_word(p);
    default:
        return plain_number(p);
    }
}

json_t *ap_plain_json(const char *text, size_t len)
{
    struct plain p = {.at = text, .end = text + len};
    json_t *value = plain_value(&p);

    next(&p); /* blanks */
    if (!value || p.at == p.end)
        return value;
    json_decref(value);
    return NULL;
}
