/*
 * Problem: is a JSON value right by a schema? Idea: walk schema and value together, one
 * function per kind of keyword; the walk ends at the first error. Where no alternative of
 * a value is right, the error reported is the one deepest in the value: it comes from the
 * alternative that was meant. A keyword that is not known here is an error in the schema,
 * so that none is skipped. Cost: the
 * schema's keywords for each value; patterns are compiled once. After "JSON Schema: A
 * Media Type for Describing JSON Documents", draft 2020-12.
 */
#include "schema.h"

#include <math.h>
#include <regex.h>
#include <stdlib.h>
#include <string.h>

extern const char check_schemas_text[]; /* {"blocks.json":{...},...}: the Makefile's */

enum { MAX_PATTERNS = 32 };

struct schemas {
    json_t *all;
    int n_patterns;
    struct {
        const char *text;
        regex_t compiled;
    } pattern[MAX_PATTERNS];
};

/* A schema, and the file that it stands in, for "#/..." in references. */
struct rule {
    struct schemas *s;
    const char *file;
    json_t *schema;
};

static int check(const struct rule *r, json_t *v, const struct ap_at *at,
                 struct ap_err *err);

static int check_sub(const struct rule *r, json_t *schema, json_t *v,
                     const struct ap_at *at, struct ap_err *err)
{
    const struct rule sub = {r->s, r->file, schema};
    return check(&sub, v, at, err);
}

static bool holds(const struct rule *r, json_t *schema, json_t *v)
{
    struct ap_err ignored = {{0}};
    return check_sub(r, schema, v, NULL, &ignored) == 0;
}

/* ---- scalars ---- */

static bool has_type(json_t *v, const char *type)
{
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        return !strcmp(type, "object");
    case JSON_ARRAY:
        return !strcmp(type, "array");
    case JSON_STRING:
        return !strcmp(type, "string");
    case JSON_INTEGER:
        return !strcmp(type, "integer") || !strcmp(type, "number");
    case JSON_REAL:
        return !strcmp(type, "number") ||
               (!strcmp(type, "integer") &&
                floor(json_real_value(v)) == json_real_value(v));
    case JSON_TRUE:
    case JSON_FALSE:
        return !strcmp(type, "boolean");
    case JSON_NULL:
        return !strcmp(type, "null");
    }
    return false;
}

/* Equal as JSON Schema has it: 1 and 1.0 are. */
static bool same(const json_t *a, const json_t *b)
{
    return json_is_number(a) && json_is_number(b)
               ? json_number_value(a) == json_number_value(b)
               : json_equal(a, b);
}

static int check_type(const json_t *arg, json_t *v, const struct ap_at *at,
                      struct ap_err *err)
{
    struct ap_buf names = {0};
    const json_t *t;
    size_t i;
    bool has = json_is_string(arg) && has_type(v, json_string_value(arg));

    json_array_foreach(arg, i, t)
    {
        has |= has_type(v, json_string_value(t));
        ap_buf_printf(&names, "%s%s", i ? " or " : "", json_string_value(t));
    }
    if (json_is_string(arg))
        ap_buf_puts(&names, json_string_value(arg));
    int rc = has ? 0 : ap_at_err(at, err, "expected %s", names.data);
    ap_buf_free(&names);
    return rc;
}

static int check_enum(const json_t *arg, json_t *v, const struct ap_at *at,
                      struct ap_err *err)
{
    const json_t *one;
    size_t i;

    json_array_foreach(arg, i, one)
    {
        if (same(one, v))
            return 0;
    }
    char *list = json_dumps(arg, JSON_COMPACT);
    ap_at_err(at, err, "expected one of %.300s", list);
    free(list);
    return -1;
}

static int check_pattern(struct schemas *s, const char *text, const char *v,
                         const struct ap_at *at, struct ap_err *err)
{
    int i = 0;

    while (i < s->n_patterns && s->pattern[i].text != text)
        i++;
    if (i == s->n_patterns) {
        if (i == MAX_PATTERNS ||
            regcomp(&s->pattern[i].compiled, text, REG_EXTENDED | REG_NOSUB))
            return ap_at_err(at, err, "the schema's pattern %s cannot be read", text);
        s->pattern[s->n_patterns++].text = text;
    }
    return regexec(&s->pattern[i].compiled, v, 0, NULL, 0)
               ? ap_at_err(at, err, "'%.80s' does not have the form %s", v, text)
               : 0;
}

/* A number keyword of a schema and the number of a value that it bounds. */
static int check_bound(double value, double bound, bool least, const char *what,
                       const struct ap_at *at, struct ap_err *err)
{
    if (least ? value >= bound : value <= bound)
        return 0;
    return ap_at_err(at, err, "expected %s %s %.17g, got %.17g", what,
                     least ? ">=" : "<=", bound, value);
}

/* ---- arrays and objects ---- */

static int check_items(const struct rule *r, json_t *v, const struct ap_at *at,
                       struct ap_err *err)
{
    json_t *prefix = json_object_get(r->schema, "prefixItems");
    json_t *items = json_object_get(r->schema, "items"), *x;
    const bool unique = json_is_true(json_object_get(r->schema, "uniqueItems"));
    size_t i;

    json_array_foreach(v, i, x)
    {
        const struct ap_at here = {at, NULL, (long)i};
        json_t *of = i < json_array_size(prefix) ? json_array_get(prefix, i) : items;
        if (of && check_sub(r, of, x, &here, err))
            return -1;
        for (size_t k = 0; unique && k < i; k++)
            if (same(json_array_get(v, k), x))
                return ap_at_err(&here, err, "is there twice");
    }
    return 0;
}

static int check_required(const json_t *names, json_t *v, const struct ap_at *at,
                          struct ap_err *err)
{
    const json_t *name;
    size_t i;

    json_array_foreach(names, i, name)
    {
        if (!json_object_get(v, json_string_value(name)))
            return ap_at_err(at, err, "has no member \"%s\"", json_string_value(name));
    }
    return 0;
}

static int check_dependent(json_t *arg, json_t *v, const struct ap_at *at,
                           struct ap_err *err)
{
    const char *key;
    json_t *names;

    json_object_foreach(arg, key, names)
    {
        if (json_object_get(v, key) && check_required(names, v, at, err))
            return -1;
    }
    return 0;
}

static int check_members(const struct rule *r, json_t *v, const struct ap_at *at,
                         struct ap_err *err)
{
    json_t *known = json_object_get(r->schema, "properties");
    json_t *more = json_object_get(r->schema, "additionalProperties");
    json_t *names = json_object_get(r->schema, "propertyNames");
    const char *key;
    json_t *x;

    json_object_foreach(v, key, x)
    {
        const struct ap_at here = {at, key, 0};
        json_t *of = json_object_get(known, key);
        json_t *name = names ? json_string(key) : NULL;
        int rc = names ? check_sub(r, names, name, &here, err) : 0;
        json_decref(name);
        if (rc || (of ? check_sub(r, of, x, &here, err)
                      : more && check_sub(r, more, x, &here, err)))
            return -1;
    }
    return 0;
}

/* ---- combinations ---- */

static size_t depth_of(const struct ap_err *err)
{
    return strcspn(err->msg, ":");
}

/* oneOf and anyOf; the deepest error is reported. */
static int check_alternatives(const struct rule *r, json_t *list, bool only_one,
                              json_t *v, const struct ap_at *at, struct ap_err *err)
{
    struct ap_err deepest = {{0}};
    json_t *sub;
    int n = 0;
    size_t i;

    json_array_foreach(list, i, sub)
    {
        struct ap_err why = {{0}};
        if (!check_sub(r, sub, v, at, &why))
            n++;
        else if (!deepest.msg[0] || depth_of(&why) > depth_of(&deepest))
            deepest = why;
    }
    if (n == 0)
        return ap_err_set(err, "%s", deepest.msg);
    return only_one && n > 1 ? ap_at_err(at, err, "has members of %d forms at once", n)
                             : 0;
}

static int check_all(const struct rule *r, json_t *list, json_t *v,
                     const struct ap_at *at, struct ap_err *err)
{
    json_t *sub;
    size_t i;

    json_array_foreach(list, i, sub)
    {
        if (check_sub(r, sub, v, at, err))
            return -1;
    }
    return 0;
}

/* "sharding.json#/$defs/mesh", "#/$defs/mesh" or "graph.json". */
static int check_ref(const struct rule *r, const char *ref, json_t *v,
                     const struct ap_at *at, struct ap_err *err)
{
    const char *hash = strchr(ref, '#');
    char file[64];
    size_t len = hash ? (size_t)(hash - ref) : strlen(ref);
    struct rule to = *r;

    snprintf(file, sizeof file, "%.*s", (int)len, ref);
    json_t *own = json_object_get(r->s->all, len ? file : r->file);
    void *place = len ? json_object_iter_at(r->s->all, file) : NULL;
    to.file = place ? json_object_iter_key(place) : r->file; /* outlives the call */
    to.schema = own;
    if (hash && !strncmp(hash, "#/$defs/", 8))
        to.schema = json_object_get(json_object_get(own, "$defs"), hash + 8);
    if (!to.schema || (hash && strncmp(hash, "#/$defs/", 8) != 0))
        return ap_at_err(at, err, "the schema's reference %s leads nowhere", ref);
    return check(&to, v, at, err);
}

/* ---- one keyword ---- */

static int check_logic(const struct rule *r, const char *key, json_t *arg, json_t *v,
                       const struct ap_at *at, struct ap_err *err)
{
    if (!strcmp(key, "$ref"))
        return check_ref(r, json_string_value(arg), v, at, err);
    if (!strcmp(key, "oneOf") || !strcmp(key, "anyOf"))
        return check_alternatives(r, arg, key[0] == 'o', v, at, err);
    if (!strcmp(key, "allOf"))
        return check_all(r, arg, v, at, err);
    if (!strcmp(key, "not"))
        return holds(r, arg, v) ? ap_at_err(at, err, "has a form that is excluded") : 0;
    if (!strcmp(key, "if")) {
        json_t *next = json_object_get(r->schema, holds(r, arg, v) ? "then" : "else");
        return next ? check_sub(r, next, v, at, err) : 0;
    }
    static const char *const others[] = {"then",
                                         "else",
                                         "$schema",
                                         "$defs",
                                         "title",
                                         "description",
                                         "default",
                                         "items",
                                         "prefixItems",
                                         "uniqueItems",
                                         "properties",
                                         "propertyNames",
                                         "additionalProperties"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (!strcmp(key, others[i]))
            return 0;
    return ap_at_err(at, err, "the schema's keyword %s is not known", key);
}

static int check_keyword(const struct rule *r, const char *key, json_t *arg, json_t *v,
                         const struct ap_at *at, struct ap_err *err)
{
    const double n = json_number_value(arg);

    if (!strcmp(key, "type"))
        return check_type(arg, v, at, err);
    if (!strcmp(key, "enum"))
        return check_enum(arg, v, at, err);
    if (!strcmp(key, "const"))
        return same(arg, v) ? 0 : ap_at_err(at, err, "is not the value that it must be");
    if (!strcmp(key, "minimum") || !strcmp(key, "maximum"))
        return json_is_number(v) ? check_bound(json_number_value(v), n, key[1] == 'i',
                                               "a number", at, err)
                                 : 0;
    if (!strcmp(key, "minItems") || !strcmp(key, "maxItems"))
        return json_is_array(v)
                   ? check_bound((double)json_array_size(v), n, key[1] == 'i',
                                 "a number of elements", at, err)
                   : 0;
    if (!strcmp(key, "minLength"))
        return json_is_string(v) ? check_bound((double)strlen(json_string_value(v)), n,
                                               true, "a length", at, err)
                                 : 0;
    if (!strcmp(key, "pattern"))
        return json_is_string(v) ? check_pattern(r->s, json_string_value(arg),
                                                 json_string_value(v), at, err)
                                 : 0;
    if (!strcmp(key, "required"))
        return json_is_object(v) ? check_required(arg, v, at, err) : 0;
    if (!strcmp(key, "dependentRequired"))
        return check_dependent(arg, v, at, err);
    return check_logic(r, key, arg, v, at, err);
}

static int check(const struct rule *r, json_t *v, const struct ap_at *at,
                 struct ap_err *err)
{
    json_t *schema = json_incref(r->schema), *arg;
    const char *key;
    int rc = 0;

    if (json_is_false(schema))
        rc = ap_at_err(at, err, "there is no such member");
    json_object_foreach(schema, key, arg)
    {
        if (!rc)
            rc = check_keyword(r, key, arg, v, at, err);
    }
    if (!rc && json_is_array(v))
        rc = check_items(r, v, at, err);
    if (!rc && json_is_object(v))
        rc = check_members(r, v, at, err);
    json_decref(schema);
    return rc ? -1 : 0;
}

/* ---- all of them ---- */

struct schemas *schemas_load(void)
{
    struct schemas *s = ap_xrealloc(NULL, sizeof *s);

    s->n_patterns = 0;
    s->all = json_loads(check_schemas_text, 0, NULL);
    return s;
}

void schemas_free(struct schemas *s)
{
    for (int i = 0; i < s->n_patterns; i++)
        regfree(&s->pattern[i].compiled);
    json_decref(s->all);
    free(s);
}

int schemas_check(struct schemas *s, const char *section, json_t *value,
                  struct ap_err *err)
{
    const char *file = "document.json";
    const json_t *document = json_object_get(s->all, file);
    json_t *of = json_object_get(json_object_get(document, "properties"), section);
    const struct rule r = {s, file, of};
    const struct ap_at at = {.key = section};

    return of ? check(&r, value, &at, err) : 1;
}
