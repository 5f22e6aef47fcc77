/*
 * The document that the filters exchange: one JSON object whose members are sections. A
 * tool parses the sections that it needs; all others keep their bytes.
 */
#ifndef AP_DOC_H
#define AP_DOC_H

#include <jansson.h>
#include <stdio.h>

#include "graph/graph.h"

#define AP_DOC_VERSION 1

struct ap_item {
    size_t offset, len; /* in the input */
};

struct ap_section {
    const char *name;
    const char
        *text; /* the member's value as it stood in the input; not NUL-terminated */
    size_t len;
    size_t offset; /* of text in the input */
};

struct ap_doc {
    const char *file; /* for messages: "mlp.json" or "<stdin>" */
    const char *text; /* whole input */
    size_t len;
    int n_sections;
    struct ap_section *sections; /* in input order, "autopar" first and included */
};

/*
 * Reads a whole document from path ("-" or NULL: stdin) into the arena, checks that it is
 * one JSON object with unique members, well-nested (depth limit 512, no recursion), valid
 * to its end, and that "autopar" is AP_DOC_VERSION. Messages: "FILE:LINE:COLUMN: ...".
 * Empty input says so.
 */
int ap_doc_read(struct ap_arena *arena, const char *path, struct ap_doc *doc,
                struct ap_err *err);
/* As ap_doc_read for bytes in memory, which must outlive the document. */
int ap_doc_parse(struct ap_arena *arena, const char *file, const char *text, size_t len,
                 struct ap_doc *doc, struct ap_err *err);

/* NULL when the document has no such section. */
const struct ap_section *ap_doc_find(const struct ap_doc *doc, const char *name);

/*
 * Parses one section; the caller owns the value (json_decref). NaN, infinities and
 * duplicate members are errors; messages name FILE:LINE:COLUMN.
 */
json_t *ap_doc_load(const struct ap_doc *doc, const struct ap_section *section,
                    struct ap_err *err);

/* An element as a section without a name. */
static inline struct ap_section ap_doc_item(const struct ap_doc *doc,
                                            const struct ap_item *item)
{
    return (struct ap_section){.name = "",
                               .text = doc->text + item->offset,
                               .len = item->len,
                               .offset = item->offset};
}

/*
 * As ap_doc_load, but the array that is member `key` of the section is empty in the
 * result, and *elements has the places of its elements, to be loaded one at a time: as
 * values, the elements together would take ten times the memory of their text. *n is -1
 * if there is no such array.
 */
json_t *ap_doc_load_but(struct ap_arena *arena, const struct ap_doc *doc,
                        const struct ap_section *section, const char *key,
                        const struct ap_item **elements, int *n, struct ap_err *err);

/* ---- reading values: errors name a JSON pointer ---- */

/* Where a value stands, as a linked list that costs nothing unless a message is made. */
struct ap_at {
    const struct ap_at *up; /* NULL at the top */
    const char *key;        /* member name, or NULL */
    long index;             /* array position when key is NULL */
};
/* Sets err to "<pointer>: <message>"; returns -1. */
int ap_at_err(const struct ap_at *at, struct ap_err *err, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* The JSON pointer of a place, "" for the top. */
void ap_at_print(const struct ap_at *at, struct ap_buf *out);
/* Puts "<file>: " before a message that names a JSON pointer; returns -1. */
int ap_doc_err(const struct ap_doc *doc, struct ap_err *err);

/* Typed members of object o; absent or wrong type is an error naming the place. */
int ap_get_int(const json_t *o, const struct ap_at *at, const char *key, int64_t lo,
               int64_t hi, int64_t *out, struct ap_err *err);
int ap_get_num(const json_t *o, const struct ap_at *at, const char *key, double *out,
               struct ap_err *err); /* finite */
int ap_get_str(const json_t *o, const struct ap_at *at, const char *key, const char **out,
               struct ap_err *err); /* owned by o */
int ap_get_arr(const json_t *o, const struct ap_at *at, const char *key, json_t **out,
               struct ap_err *err); /* borrowed */
/* Array member of integers into the arena; an absent member gives n = 0. */
int ap_get_ints(struct ap_arena *arena, const json_t *o, const struct ap_at *at,
                const char *key, struct ap_ints *out, struct ap_err *err);
/* What ids are legal: n of them (below 0: any number), each from lo to hi. */
struct ap_id_range {
    int n, lo, hi;
};
/* Array member of integers into the arena. Returns their number, or -1. */
int ap_get_ids(struct ap_arena *arena, const json_t *o, const struct ap_at *at,
               const char *key, struct ap_id_range legal, const int **ids,
               struct ap_err *err);

/* Optional members: *out keeps its value when o has none. lo: least value allowed. */
int ap_opt_str(const json_t *o, const struct ap_at *at, const char *key, const char **out,
               struct ap_err *err);
int ap_opt_int(const json_t *o, const struct ap_at *at, const char *key, int lo, int *out,
               struct ap_err *err);
/* A string that is one of n names; *out gets its number. */
int ap_opt_name(const json_t *o, const struct ap_at *at, const char *key,
                const char *const *names, int n, int *out, struct ap_err *err);

/* ---- writing ---- */

/* Puts a string, quoted and escaped; bytes that are not UTF-8 become U+FFFD. */
void ap_json_str(struct ap_buf *out, const char *s);
void ap_json_num(struct ap_buf *out, double v); /* shortest that reads back equal */

/* Put one more member of an object that is not empty: ,"key": and the value. */
void ap_put_key(struct ap_buf *out, const char *key);
void ap_put_str(struct ap_buf *out, const char *key, const char *value);
void ap_put_int(struct ap_buf *out, const char *key, int64_t value);
void ap_put_ids(struct ap_buf *out, const char *key, const int *ids, int n);
void ap_put_shape(struct ap_buf *out, const char *key, const struct ap_shape *shape);

/*
 * A section to write: replaces the one of the same name or is appended. Empty json drops
 * the section, since a section that was derived from an older one must not outlive it.
 */
struct ap_new_section {
    const char *name;
    struct ap_buf json;
    const struct ap_graph
        *graph; /* written instead of json, which would be as large as the graph's text */
};

/*
 * Writes the document with the new sections; other sections keep their places and bytes,
 * "autopar" is first, and "history" last, with `history` (one JSON object) appended
 * unless it is NULL. The output is a stream, since a copy of all sections would be as
 * large as the document; ferror tells whether writing failed.
 */
void ap_doc_write(const struct ap_doc *doc, const struct ap_new_section *sections, int n,
                  const char *history, FILE *out);

/* ---- graphs as JSON ---- */

/*
 * Reads a graph (section "graph", or "/program/modules/0" of a program) and indexes and
 * checks it (ap_graph_index, ap_graph_check_shapes). at names the place of o.
 */
int ap_graph_from_json(struct ap_arena *arena, const json_t *o, const struct ap_at *at,
                       struct ap_graph *g, struct ap_err *err);
void ap_graph_to_json(const struct ap_graph *g, struct ap_buf *out);
/* Writes the same text piece by piece, so that a reader need not wait for the end. */
void ap_graph_write(const struct ap_graph *g, FILE *out);

/* Section `name` of doc as a graph; a missing section is an error that says what to run.
 */
int ap_doc_graph(struct ap_arena *arena, const struct ap_doc *doc, struct ap_graph *g,
                 struct ap_err *err);

#endif
