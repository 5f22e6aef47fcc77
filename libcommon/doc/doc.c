/*
 * The document as text: one scan finds the top-level members and checks that the rest is
 * JSON, so that sections can be passed on without being parsed; jansson parses the ones
 * that are asked for. Linear in the input.
 */
#include "doc/doc.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json_scan.h"
#include "doc/fast_json.h"

/* ---- scanning ---- */

struct scan {
    struct ap_json json;
    const char *file, *text; /* json stands in text */
    struct ap_err *err;
};

static size_t scan_pos(const struct scan *s)
{
    return (size_t)(s->json.at - s->text);
}

/* FILE:LINE:COLUMN: of byte pos, and the message. */
static int text_err(const char *file, const char *text, size_t pos, struct ap_err *err,
                    const char *msg)
{
    size_t line = 1, start = 0;

    for (size_t i = 0; i < pos; i++)
        if (text[i] == '\n') {
            line++;
            start = i + 1;
        }
    return ap_err_set(err, "%s:%zu:%zu: %s", file, line, pos - start + 1, msg);
}

/* Refuses the text at hand, for json.why unless msg is given. */
static int scan_err(struct scan *s, const char *msg)
{
    msg = msg ? msg : s->json.why;
    if (s->json.at >= s->json.end) {
        char whole[200];
        snprintf(whole, sizeof(whole), "%s, but the input ends", msg);
        return text_err(s->file, s->text, scan_pos(s), s->err, whole);
    }
    return text_err(s->file, s->text, scan_pos(s), s->err, msg);
}

/* ---- sections ---- */

/* The name between the quotes at [start, end), with its escapes decoded. */
static const char *section_name(struct ap_arena *arena, const struct scan *s,
                                size_t start, size_t end)
{
    if (!memchr(s->text + start, '\\', end - start))
        return ap_arena_strndup(arena, s->text + start, end - start);
    json_t *name =
        json_loadb(s->text + start - 1, end - start + 2, JSON_DECODE_ANY, NULL);
    const char *copy = name ? ap_arena_strdup(arena, json_string_value(name)) : NULL;
    json_decref(name);
    return copy;
}

static int scan_section(struct ap_arena *arena, struct scan *s,
                        struct ap_section *section)
{
    if (ap_json_next(&s->json) != '"')
        return scan_err(s, "expected a section name in quotes");
    size_t start = scan_pos(s);
    if (ap_json_string(&s->json, NULL, 0))
        return scan_err(s, NULL);
    section->name = section_name(arena, s, start + 1, scan_pos(s) - 1);
    if (!section->name)
        return text_err(s->file, s->text, start, s->err, "malformed section name");
    if (!ap_json_take(&s->json, ':'))
        return scan_err(s, "expected ':'");
    ap_json_next(&s->json);
    section->offset = scan_pos(s);
    section->text = s->json.at;
    if (ap_json_skip(&s->json, 1))
        return scan_err(s, NULL);
    section->len = scan_pos(s) - section->offset;
    return 0;
}

static int scan_document(struct ap_arena *arena, struct scan *s, struct ap_buf *sections)
{
    int more = 1;

    if (ap_json_next(&s->json) < 0)
        return ap_err_set(s->err, "%s: the input is empty", s->file);
    if (!ap_json_take(&s->json, '{'))
        return scan_err(s, "expected a JSON object");
    if (ap_json_take(&s->json, '}'))
        more = 0;
    while (more > 0) {
        struct ap_section section = {0};
        if (scan_section(arena, s, &section))
            return -1;
        ap_buf_put(sections, &section, sizeof(section));
        more = ap_json_more(&s->json, '}');
    }
    if (more < 0)
        return scan_err(s, NULL);
    if (ap_json_next(&s->json) >= 0)
        return scan_err(s, "something follows the document's end");
    return 0;
}

static int by_name(const void *a, const void *b)
{
    const struct ap_section *x = a, *y = b;
    int c = strcmp(x->name, y->name);
    return c ? c : (x->offset > y->offset) - (x->offset < y->offset);
}

static int check_unique(struct ap_arena *arena, const struct ap_doc *doc,
                        struct ap_err *err)
{
    struct ap_mark mark = ap_arena_mark(arena);
    size_t n = (size_t)doc->n_sections;
    struct ap_section *sorted =
        ap_arena_dup(arena, doc->sections, n * sizeof(doc->sections[0]));
    int rc = 0;

    qsort(sorted, n, sizeof(sorted[0]), by_name);
    for (size_t i = 1; i < n && !rc; i++) {
        if (strcmp(sorted[i - 1].name, sorted[i].name))
            continue;
        char msg[200];
        snprintf(msg, sizeof(msg), "section \"%s\" occurs twice", sorted[i].name);
        rc = text_err(doc->file, doc->text, sorted[i].offset, err, msg);
    }
    ap_arena_rewind(arena, mark);
    return rc;
}

/* Puts "autopar" first and checks it, and that "history" is an array. */
static int check_version(const struct ap_doc *doc, struct ap_err *err)
{
    int at = 0;

    while (at < doc->n_sections && strcmp(doc->sections[at].name, "autopar"))
        at++;
    if (at == doc->n_sections)
        return ap_err_set(err, "%s: no member \"autopar\": not an autopar document",
                          doc->file);
    struct ap_section version = doc->sections[at];
    memmove(doc->sections + 1, doc->sections, (size_t)at * sizeof(version));
    doc->sections[0] = version;
    if (version.len == 1 && version.text[0] == '0' + AP_DOC_VERSION)
        return 0;
    char msg[120];
    if (version.len > 18 || strspn(version.text, "0123456789") < version.len)
        snprintf(msg, sizeof(msg),
                 "\"autopar\" is not a format version (a whole number)");
    else
        snprintf(msg, sizeof(msg), "format version %.*s, this autopar reads version %d",
                 (int)version.len, version.text, AP_DOC_VERSION);
    return text_err(doc->file, doc->text, version.offset, err, msg);
}

int ap_doc_parse(struct ap_arena *arena, const char *file, const char *text, size_t len,
                 struct ap_doc *doc, struct ap_err *err)
{
    struct scan s = {
        .json = {.at = text, .end = text + len}, .file = file, .text = text, .err = err};
    struct ap_buf sections = {0};

    int rc = scan_document(arena, &s, &sections);
    *doc = (struct ap_doc){.file = file, .text = text, .len = len};
    doc->n_sections = (int)(sections.len / sizeof(struct ap_section));
    doc->sections = ap_arena_dup(arena, sections.data, sections.len);
    ap_buf_free(&sections);
    if (rc || check_unique(arena, doc, err) || check_version(doc, err))
        return -1;
    const struct ap_section *history = ap_doc_find(doc, "history");
    if (history && history->text[0] != '[')
        return text_err(doc->file, doc->text, history->offset, err,
                        "\"history\" is no array");
    return 0;
}

int ap_doc_read(struct ap_arena *arena, const char *path, struct ap_doc *doc,
                struct ap_err *err)
{
    bool is_stdin = !path || !strcmp(path, "-");
    const char *file = is_stdin ? "<stdin>" : ap_arena_strdup(arena, path);
    char *text;
    size_t len;

    if (ap_read_file(arena, is_stdin ? "-" : file, false, &text, &len, err))
        return -1;
    return ap_doc_parse(arena, file, text, len, doc, err);
}

const struct ap_section *ap_doc_find(const struct ap_doc *doc, const char *name)
{
    for (int i = 0; i < doc->n_sections; i++)
        if (!strcmp(doc->sections[i].name, name))
            return &doc->sections[i];
    return NULL;
}

/* Where the token starts that jansson's message ends with: ... near 'token'. */
static size_t token_start(const char *text, size_t pos, const char *msg)
{
    const char *near = strstr(msg, " near '");
    size_t len = near ? strlen(near + 7) - 1 : 0; /* without the closing quote */

    if (!near || len > pos || memcmp(text + pos - len, near + 7, len))
        return pos;
    return pos - len;
}

/* Parses text in which `cut` bytes of the document are left out after `keep` bytes. */
static json_t *load_text(const struct ap_doc *doc, size_t offset, const char *text,
                         size_t len, size_t keep, size_t cut, struct ap_err *err)
{
    json_error_t why;
    json_t *value = ap_fast_json_value(text, len);

    if (!value)
        value = json_loadb(text, len, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &why);
    if (value)
        return value;
    size_t pos = why.position > 0 ? (size_t)why.position : 0;
    if (pos > len)
        pos = len;
    pos = token_start(text, pos, why.text);
    text_err(doc->file, doc->text, offset + pos + (pos >= keep ? cut : 0), err, why.text);
    return NULL;
}

json_t *ap_doc_load(const struct ap_doc *doc, const struct ap_section *section,
                    struct ap_err *err)
{
    return load_text(doc, section->offset, section->text, section->len, section->len, 0,
                     err);
}

/* Moves past the '[' of member key of the object that json stands at. */
static bool find_array(struct ap_json *json, const char *key)
{
    char name[64];

    if (!ap_json_take(json, '{'))
        return false;
    do {
        if (ap_json_key(json, name, sizeof name))
            return false;
        if (!strcmp(name, key) && ap_json_take(json, '['))
            return true;
        if (ap_json_skip(json, 2))
            return false;
    } while (ap_json_take(json, ','));
    return false;
}

/* From after the '[' to the ']'. */
static int scan_elements(struct ap_json *json, const char *text, struct ap_buf *elements)
{
    if (ap_json_next(json) == ']')
        return 0;
    do {
        ap_json_next(json);
        struct ap_item e = {.offset = (size_t)(json->at - text)};
        if (ap_json_skip(json, 3))
            return -1;
        e.len = (size_t)(json->at - text) - e.offset;
        ap_buf_put(elements, &e, sizeof(e));
    } while (ap_json_take(json, ','));
    return 0;
}

json_t *ap_doc_load_but(struct ap_arena *arena, const struct ap_doc *doc,
                        const struct ap_section *section, const char *key,
                        const struct ap_item **elements, int *n, struct ap_err *err)
{
    const char *start = doc->text + section->offset; /* ap_doc_parse has scanned it */
    struct ap_json json = {.at = start, .end = start + section->len};
    struct ap_buf list = {0}, rest = {0};

    *n = -1;
    if (!find_array(&json, key))
        return ap_doc_load(doc, section, err);
    size_t keep = (size_t)(json.at - start);
    if (scan_elements(&json, doc->text, &list)) {
        ap_buf_free(&list);
        return ap_doc_load(doc, section, err);
    }
    *n = (int)(list.len / sizeof(struct ap_item));
    *elements = ap_arena_dup(arena, list.data, list.len);
    ap_buf_free(&list);
    size_t cut = (size_t)(json.at - start) - keep;
    ap_buf_put(&rest, section->text, keep);
    ap_buf_put(&rest, section->text + keep + cut, section->len - keep - cut);
    json_t *value = load_text(doc, section->offset, rest.data, rest.len, keep, cut, err);
    ap_buf_free(&rest);
    return value;
}

/* ---- writing ---- */

static void put_value(FILE *out, const char *text, size_t len)
{
    if (len > 0)
        fwrite(text, 1, len, out);
}

/* The history array of the input with one more entry. */
static void write_history(const struct ap_doc *doc, const char *entry, FILE *out)
{
    const struct ap_section *old = ap_doc_find(doc, "history");
    size_t len = 0;

    if (!old && !entry)
        return;
    fputs(",\n\"history\":", out);
    if (old && entry) { /* without its closing bracket and the blanks before it */
        for (len = old->len - 1; strchr(" \t\r\n", old->text[len - 1]);)
            len--;
        put_value(out, old->text, len);
        fputs(len > 1 ? "," : "", out);
    } else if (old) {
        put_value(out, old->text, old->len);
    } else {
        fputc('[', out);
    }
    if (entry)
        fprintf(out, "%s]", entry);
}

static void write_name(FILE *out, const char *name)
{
    struct ap_buf quoted = {0};

    ap_json_str(&quoted, name);
    fprintf(out, ",\n%s:", quoted.data);
    ap_buf_free(&quoted);
}

static bool is_dropped(const struct ap_new_section *s)
{
    return s->json.len == 0 && !s->graph;
}

static void write_new(FILE *out, const struct ap_new_section *s)
{
    write_name(out, s->name);
    if (s->graph)
        ap_graph_write(s->graph, out);
    else
        put_value(out, s->json.data, s->json.len);
}

void ap_doc_write(const struct ap_doc *doc, const struct ap_new_section *sections, int n,
                  const char *history, FILE *out)
{
    fprintf(out, "{\"autopar\":%d", AP_DOC_VERSION);
    for (int i = 0; i < doc->n_sections; i++) {
        const struct ap_section *old = &doc->sections[i];
        const struct ap_new_section *new = NULL;
        if (!strcmp(old->name, "autopar") || !strcmp(old->name, "history"))
            continue;
        for (int k = 0; k < n && !new; k++)
            if (!strcmp(sections[k].name, old->name))
                new = &sections[k];
        if (new && !is_dropped(new)) {
            write_new(out, new);
        } else if (!new) {
            write_name(out, old->name);
            put_value(out, old->text, old->len);
        }
    }
    for (int k = 0; k < n; k++)
        if (!is_dropped(&sections[k]) && !ap_doc_find(doc, sections[k].name))
            write_new(out, &sections[k]);
    write_history(doc, history, out);
    fputs("}\n", out);
}
