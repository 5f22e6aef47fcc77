/*
 * Problem: a graph is read as hundreds of thousands of small JSON values, and jansson
 * looks at every byte through several calls. Nearly all of these are plain: what makes
 * JSON hard to read does not occur in them. Long text says the same short things again
 * and again, which are one value each. Linear; a quarter of jansson's time.
 */
#include "doc/fast_json.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"

enum { MAX_LEVELS = 64, MAX_DIGITS = 18, MAX_KEY = 63, MAX_REAL = 40 };

/* Values that were met and are handed out again: short strings by a hash, numbers from 0
 * on by themselves. */
enum { N_STRINGS = 128, N_NUMBERS = 256, MAX_MET = 32, MET_FROM = 4096 };
struct met {
    json_t *string[N_STRINGS], *number[N_NUMBERS];
};

struct plain {
    struct ap_fast_json p;
    int level;
    struct met *met; /* NULL: the text is short */
};

int ap_fast_json_string(struct ap_fast_json *p, const char **text)
{
    if (!ap_fast_json_take(p, '"'))
        return -1;
    *text = p->at;
    p->at = ap_fast_json_run(p->at, p->end);
    if (p->at == p->end || *p->at != '"' || p->at - *text > INT32_MAX)
        return -1;
    return (int)(p->at++ - *text);
}

static int take_digits(struct ap_fast_json *p)
{
    const char *start = p->at;

    while (p->at < p->end && *p->at >= '0' && *p->at <= '9')
        p->at++;
    return p->at - start > MAX_REAL ? MAX_REAL : (int)(p->at - start);
}

bool ap_fast_json_int(struct ap_fast_json *p, long long *value)
{
    bool negative = ap_fast_json_take(p, '-');
    const char *digit = p->at;
    int n = take_digits(p);
    char end = p->at < p->end ? *p->at : '\0';

    if (n == 0 || n > MAX_DIGITS || (n > 1 && *digit == '0') || end == '.' ||
        end == 'e' || end == 'E')
        return false;
    *value = 0;
    for (; digit < p->at; digit++)
        *value = 10 * *value + (*digit - '0');
    *value = negative ? -*value : *value;
    return true;
}

bool ap_fast_json_skip(struct ap_fast_json *p)
{
    const char *text;
    int level = 0;
    char c = ap_fast_json_next(p);

    do {
        if (c == '"') {
            if (ap_fast_json_string(p, &text) < 0)
                return false;
        } else if (c == '[' || c == '{') {
            level++;
            p->at++;
        } else if (c == ']' || c == '}') {
            if (level-- == 0)
                return false;
            p->at++;
        } else if (c == '\0') {
            return false;
        } else {
            p->at++;
        }
        c = ap_fast_json_next(p);
    } while (level > 0 || (c != ',' && c != '}' && c != ']'));
    return true;
}

/* The text of a number that is not whole, which is taken; false if it is none. */
static bool take_real(struct ap_fast_json *p)
{
    ap_fast_json_take(p, '-');
    bool leading = p->at < p->end && *p->at == '0';
    int n = take_digits(p);

    if (n == 0 || (n > 1 && leading))
        return false;
    bool whole = true;
    if (p->at < p->end && *p->at == '.') {
        whole = false;
        p->at++;
        if (take_digits(p) == 0)
            return false;
    }
    if (p->at < p->end && (*p->at == 'e' || *p->at == 'E')) {
        whole = false;
        p->at++;
        if (p->at < p->end && (*p->at == '+' || *p->at == '-'))
            p->at++;
        if (take_digits(p) == 0)
            return false;
    }
    return !whole;
}

static json_t *whole_number(struct plain *p, long long value)
{
    if (!p->met || value < 0 || value >= N_NUMBERS)
        return json_integer(value);
    json_t **met = &p->met->number[value];
    if (!*met)
        *met = json_integer(value);
    return json_incref(*met);
}

static json_t *plain_text(struct plain *p)
{
    const char *text;
    int len = ap_fast_json_string(&p->p, &text);
    unsigned h = (unsigned)len;

    if (len < 0 || !p->met || len > MAX_MET)
        return len < 0 ? NULL : json_stringn_nocheck(text, (size_t)len);
    for (int i = 0; i < len; i++)
        h = 31 * h + (unsigned char)text[i];
    json_t **met = &p->met->string[(h ^ h >> 7) % N_STRINGS];
    if (*met && json_string_length(*met) == (size_t)len &&
        !memcmp(json_string_value(*met), text, (size_t)len))
        return json_incref(*met);
    json_decref(*met);
    *met = json_stringn_nocheck(text, (size_t)len);
    return json_incref(*met);
}

static json_t *plain_number(struct plain *all)
{
    char text[MAX_REAL + 1];
    struct ap_fast_json *p = &all->p;
    const char *start = p->at;
    long long whole;

    if (ap_fast_json_int(p, &whole))
        return whole_number(all, whole);
    p->at = start;
    if (!take_real(p) || p->at - start > MAX_REAL)
        return NULL;
    memcpy(text, start, (size_t)(p->at - start));
    text[p->at - start] = '\0';
    char *end;
    double value = strtod(text, &end); /* the tools' locale is C's */
    return *end == '\0' && isfinite(value) ? json_real(value) : NULL;
}

static json_t *plain_word(struct ap_fast_json *p)
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
    int len = ap_fast_json_string(&p->p, &text);

    if (len < 0 || len > MAX_KEY || !ap_fast_json_take(&p->p, ':'))
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

    p->p.at++; /* the bracket */
    if (ok && !ap_fast_json_take(&p->p, close)) {
        do
            ok = add(p, list);
        while (ok && ap_fast_json_take(&p->p, ','));
        ok = ok && ap_fast_json_take(&p->p, close);
    }
    p->level--;
    if (ok)
        return list;
    json_decref(list);
    return NULL;
}

static json_t *plain_value(struct plain *p)
{
    switch (ap_fast_json_next(&p->p)) {
    case '{':
        return plain_list(p, json_object(), '}', add_member);
    case '[':
        return plain_list(p, json_array(), ']', add_element);
    case '"':
        return plain_text(p);
    case 't':
    case 'f':
        return plain_word(&p->p);
    default:
        return plain_number(p);
    }
}

json_t *ap_fast_json_json(const char *text, size_t len)
{
    struct plain p = {.p = {text, text + len}};

    if (len > MET_FROM) {
        p.met = ap_xrealloc(NULL, sizeof *p.met);
        *p.met = (struct met){{NULL}, {NULL}};
    }
    json_t *value = plain_value(&p);
    for (int i = 0; i < N_STRINGS && p.met; i++)
        json_decref(p.met->string[i]);
    for (int i = 0; i < N_NUMBERS && p.met; i++)
        json_decref(p.met->number[i]);
    free(p.met);
    ap_fast_json_next(&p.p); /* blanks */
    if (!value || p.p.at == p.p.end)
        return value;
    json_decref(value);
    return NULL;
}
