/*
 * Problem: a graph is read as hundreds of thousands of small JSON values, and jansson
 * looks at every byte through several calls. Nearly all of these are plain: they have
 * none of the features that make JSON hard to read. Long text says the same short things
 * again and again, which are one value each. Linear; a quarter of jansson's time.
 */
#include "doc/fast_json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_scan.h"

enum { MAX_LEVELS = 64, MAX_KEY = 63, MAX_REAL = 40 };

/* Values that were met and are handed out again: short strings by a hash, numbers from 0
 * on by themselves. */
enum { N_STRINGS = 128, N_NUMBERS = 256, MAX_MET = 32, MET_FROM = 4096 };
struct met {
    json_t *string[N_STRINGS], *number[N_NUMBERS];
};

struct plain {
    struct ap_json p;
    int level;
    struct met *met; /* NULL: the text is short */
};

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
    int len = ap_json_plain_string(&p->p, &text);
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
    const char *number, *start = all->p.at;
    long long whole;

    if (ap_json_int(&all->p, &whole))
        return whole_number(all, whole);
    all->p.at = start;
    int len = ap_json_number(&all->p, &number);
    if (len < 0 || len > MAX_REAL)
        return NULL;
    memcpy(text, number, (size_t)len);
    text[len] = '\0';
    if (!strpbrk(text, ".eE")) /* too many digits */
        return NULL;
    double value = strtod(text, NULL); /* the tools' locale is C's */
    return isfinite(value) ? json_real(value) : NULL;
}

static json_t *plain_word(struct ap_json *p)
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
    int len = ap_json_plain_string(&p->p, &text);

    if (len < 0 || len > MAX_KEY || !ap_json_take(&p->p, ':'))
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
    if (ok && !ap_json_take(&p->p, close)) {
        do
            ok = add(p, list);
        while (ok && ap_json_take(&p->p, ','));
        ok = ok && ap_json_take(&p->p, close);
    }
    p->level--;
    if (ok)
        return list;
    json_decref(list);
    return NULL;
}

static json_t *plain_value(struct plain *p)
{
    switch (ap_json_next(&p->p)) {
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

json_t *ap_fast_json_value(const char *text, size_t len)
{
    struct plain p = {.p = {.at = text, .end = text + len}};

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
    ap_json_next(&p.p); /* blanks */
    if (!value || p.p.at == p.p.end)
        return value;
    json_decref(value);
    return NULL;
}
