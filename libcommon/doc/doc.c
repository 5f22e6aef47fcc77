/*
 * The document as text: one scan finds the top-level members and checks that the rest is
 * JSON, so that sections can be handed on without being parsed; jansson parses the ones
 * that are asked for. Linear in the input.
 */
#include "doc/doc.h"

#include <stdlib.h>
#include <string.h>

#include "doc/fast_json.h"
#include "base/file.h"

/* ---- scanning ---- */

enum { MAX_DEPTH = 512 };

/* Objects that are the elements of one array. */
struct items {
    size_t start, end; /* behind the '[', at the ']' */
    bool mixed;        /* there are others */
    struct ap_buf at;  /* struct ap_item */
};

struct scan {
    const char *file, *text;
    size_t len, pos;
    struct ap_err *err;
    struct ap_source *source; /* of more text; NULL: that is all */
    struct ap_buf input;      /* what the source has given */
    /* of the arrays that are members of a section: this one, and the longest yet */
    struct items now, most;
    bool broken;                      /* the source; err says why */
    const struct ap_doc_watch *watch; /* NULL: nobody */
    struct ap_buf sections;           /* struct ap_section, those that are whole */
};

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

/* Tells who watches what there is. */
static void tell(struct scan *s)
{
    struct ap_section *done = (void *)s->sections.data;
    struct ap_doc doc = {.file = s->file,
                         .text = s->text,
                         .len = s->pos,
                         .n_sections = (int)(s->sections.len / sizeof *done),
                         .sections = done};

    for (int i = 0; i < doc.n_sections; i++)
        done[i].text = s->text + done[i].offset;
    s->watch->came(s->watch->ctx, &doc);
}

/* More text behind what is there; false: that was all. */
static bool more_text(struct scan *s)
{
    if (s->source && s->watch)
        tell(s);
    int64_t n = s->source ? ap_source_read(s->source, &s->input, s->err) : 0;

    s->broken |= n < 0;
    if (n <= 0)
        s->source = NULL;
    s->text = s->input.data ? s->input.data : s->text;
    s->len = s->input.data ? s->input.len : s->len;
    return n > 0;
}

static int scan_err(struct scan *s, const char *msg)
{
    if (s->broken) /* reading says why */
        return -1;
    if (s->pos >= s->len) {
        char whole[200];
        snprintf(whole, sizeof(whole), "%s, but the input ends", msg);
        return text_err(s->file, s->text, s->len, s->err, whole);
    }
    return text_err(s->file, s->text, s->pos, s->err, msg);
}

/* The next byte, -1 at the end. */
static int peek(struct scan *s)
{
    return s->pos < s->len || more_text(s) ? (unsigned char)s->text[s->pos] : -1;
}

static void skip_space(struct scan *s)
{
    for (int c = peek(s); c == ' ' || c == '\n' || c == '\t' || c == '\r'; c = peek(s))
        s->pos++;
}

static bool is_hex(int c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

static int scan_escape(struct scan *s)
{
    s->pos++; /* the backslash */
    int c = peek(s);
    if (c == 'u') {
        for (int i = 0; i < 4; i++) {
            s->pos++;
            if (!is_hex(peek(s)))
                return scan_err(s, "expected four hexadecimal digits");
        }
    } else if (c <= 0 || !strchr("\"\\/bfnrt", c)) {
        return scan_err(s, "expected an escape sequence");
    }
    s->pos++;
    return 0;
}

static int scan_string(struct scan *s)
{
    if (peek(s) != '"')
        return scan_err(s, "expected a string");
    for (s->pos++;;) {
        s->pos = (size_t)(ap_fast_json_run(s->text + s->pos, s->text + s->len) - s->text);
        int c = peek(s);
        if (c == '"')
            break;
        if (c < ' ')
            return scan_err(s, c < 0 ? "expected '\"'" : "control character in a string");
        if (c == '\\' && scan_escape(s))
            return -1;
        s->pos += c >= 127; /* another one: more text has come */
    }
    s->pos++;
    return 0;
}

static int scan_digits(struct scan *s)
{
    int c = peek(s);
    if (c < '0' || c > '9')
        return scan_err(s, "expected a digit");
    while (c >= '0' && c <= '9') {
        s->pos++;
        c = peek(s);
    }
    return 0;
}

static int scan_number(struct scan *s)
{
    if (peek(s) == '-')
        s->pos++;
    if (peek(s) == '0')
        s->pos++;
    else if (scan_digits(s))
        return -1;
    if (peek(s) == '.') {
        s->pos++;
        if (scan_digits(s))
            return -1;
    }
    if (peek(s) == 'e' || peek(s) == 'E') {
        s->pos++;
        if (peek(s) == '+' || peek(s) == '-')
            s->pos++;
        if (scan_digits(s))
            return -1;
    }
    return 0;
}

static bool scan_word(struct scan *s, const char *word)
{
    size_t len = strlen(word);
    while (s->len - s->pos < len && more_text(s))
        ;
    if (s->len - s->pos < len || memcmp(s->text + s->pos, word, len))
        return false;
    s->pos += len;
    return true;
}

static int scan_scalar(struct scan *s)
{
    int c = peek(s);
    if (c == '"')
        return scan_string(s);
    if (c == '-' || (c >= '0' && c <= '9'))
        return scan_number(s);
    if (scan_word(s, "true") || scan_word(s, "false") || scan_word(s, "null"))
        return 0;
    size_t start = s->pos;
    if (scan_word(s, "NaN") || scan_word(s, "nan") || scan_word(s, "Infinity")) {
        s->pos = start;
        return scan_err(s, "NaN and infinities are no JSON numbers");
    }
    return scan_err(s, "expected a value");
}

static int scan_key(struct scan *s)
{
    skip_space(s);
    if (peek(s) != '"')
        return scan_err(s, "expected a member name in quotes");
    if (scan_string(s))
        return -1;
    skip_space(s);
    if (peek(s) != ':')
        return scan_err(s, "expected ':'");
    s->pos++;
    return 0;
}

/* An element of an array that is a member of the section starts with c. */
static void item_starts(struct scan *s, int c)
{
    struct ap_item item = {.offset = s->pos};

    if (c == '{')
        ap_buf_put(&s->now.at, &item, sizeof item);
    else
        s->now.mixed = true;
}

static void item_ends(struct scan *s)
{
    struct ap_item item;
    char *last = s->now.at.data + s->now.at.len - sizeof item;

    memcpy(&item, last, sizeof item);
    item.len = s->pos - item.offset;
    memcpy(last, &item, sizeof item);
}

/* The array ends at the bracket behind which the scan is. */
static void items_end(struct scan *s)
{
    struct items last = s->most;

    s->now.end = s->pos - 1;
    if (!s->now.mixed && s->now.at.len > last.at.len) {
        s->most = s->now;
        s->now = last;
    }
}

static bool in_items(const char *open, int depth)
{
    return depth == 2 && open[0] == '{' && open[1] == '[';
}

/*
 * Consumes what may stand between two values: closing brackets, then a comma and a key.
 * *depth is 0 behind the outermost bracket.
 */
static int scan_between(struct scan *s, const char *open, int *depth)
{
    while (*depth) {
        skip_space(s);
        bool object = open[*depth - 1] == '{';
        int c = peek(s);
        if (c == ',') {
            s->pos++;
            return object ? scan_key(s) : 0;
        }
        if (c != (object ? '}' : ']'))
            return scan_err(s, object ? "expected ',' or '}'" : "expected ',' or ']'");
        s->pos++;
        bool items = in_items(open, *depth);
        --*depth;
        if (items)
            items_end(s);
        else if (c == '}' && in_items(open, *depth))
            item_ends(s);
    }
    return 0;
}

/* One value of any depth, without recursion; the top-level object counts as one level. */
static int scan_value(struct scan *s)
{
    char open[MAX_DEPTH];
    int depth = 0;

    do {
        skip_space(s);
        int c = peek(s);
        if (in_items(open, depth))
            item_starts(s, c);
        if (c != '{' && c != '[') {
            if (scan_scalar(s))
                return -1;
        } else {
            if (depth + 1 == MAX_DEPTH)
                return scan_err(s, "nested deeper than 512 levels");
            open[depth++] = (char)c;
            s->pos++;
            if (in_items(open, depth)) {
                s->now.start = s->pos;
                s->now.mixed = false;
                s->now.at.len = 0;
            }
            skip_space(s);
            if (peek(s) != (c == '{' ? '}' : ']')) {
                if (c == '{' && scan_key(s))
                    return -1;
                continue;
            }
        }
        if (scan_between(s, open, &depth))
            return -1;
    } while (depth);
    return 0;
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
    skip_space(s);
    size_t start = s->pos;
    if (peek(s) != '"')
        return scan_err(s, "expected a section name in quotes");
    if (scan_string(s))
        return -1;
    section->name = section_name(arena, s, start + 1, s->pos - 1);
    if (!section->name)
        return text_err(s->file, s->text, start, s->err, "malformed section name");
    skip_space(s);
    if (peek(s) != ':')
        return scan_err(s, "expected ':'");
    s->pos++;
    skip_space(s);
    section->offset = s->pos;
    s->most.at.len = 0;
    if (scan_value(s))
        return -1;
    section->len = s->pos - section->offset;
    section->items_start = s->most.start;
    section->items_end = s->most.end;
    section->n_items = s->most.at.len / sizeof(struct ap_item);
    section->items = ap_arena_dup(arena, s->most.at.data, s->most.at.len);
    return 0;
}

static int scan_document(struct ap_arena *arena, struct scan *s)
{
    skip_space(s);
    if (s->pos == s->len)
        return ap_err_set(s->err, "%s: the input is empty", s->file);
    if (peek(s) != '{')
        return scan_err(s, "expected a JSON object");
    s->pos++;
    skip_space(s);
    for (bool more = peek(s) != '}'; more;) {
        struct ap_section section = {0};
        if (scan_section(arena, s, &section))
            return -1;
        ap_buf_put(&s->sections, &section, sizeof(section));
        if (s->watch)
            tell(s);
        skip_space(s);
        more = peek(s) == ',';
        if (more)
            s->pos++;
        else if (peek(s) != '}')
            return scan_err(s, "expected ',' or '}'");
    }
    s->pos++;
    skip_space(s);
    if (s->pos < s->len)
        return scan_err(s, "something follows the document's end");
    return s->broken ? -1 : 0;
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
        snprintf(msg, sizeof(msg), "\"autopar\" is no format version (a whole number)");
    else
        snprintf(msg, sizeof(msg), "format version %.*s, this autopar reads version %d",
                 (int)version.len, version.text, AP_DOC_VERSION);
    return text_err(doc->file, doc->text, version.offset, err, msg);
}

/* Scans the text, or what the source gives. */
static int parse(struct ap_arena *arena, struct scan *s, struct ap_doc *doc)
{
    int rc = scan_document(arena, s);
    s->watch = NULL;     /* of what is behind an error nothing is known */
    while (more_text(s)) /* whoever writes it shall get rid of it */
        ;
    if (s->input.data) {
        ap_buf_puts(&s->input, ""); /* the NUL */
        s->text = s->input.data;
        ap_arena_keep(arena, s->input.data);
    }
    *doc = (struct ap_doc){.file = s->file, .text = s->text, .len = s->len};
    doc->n_sections = (int)(s->sections.len / sizeof(struct ap_section));
    doc->sections = ap_arena_dup(arena, s->sections.data, s->sections.len);
    for (int i = 0; i < doc->n_sections; i++)
        doc->sections[i].text = s->text + doc->sections[i].offset;
    ap_buf_free(&s->sections);
    ap_buf_free(&s->now.at);
    ap_buf_free(&s->most.at);
    if (rc || check_unique(arena, doc, s->err) || check_version(doc, s->err))
        return -1;
    const struct ap_section *history = ap_doc_find(doc, "history");
    if (history && history->text[0] != '[')
        return text_err(doc->file, doc->text, history->offset, s->err,
                        "\"history\" is no array");
    return 0;
}

int ap_doc_parse(struct ap_arena *arena, const char *file, const char *text, size_t len,
                 struct ap_doc *doc, struct ap_err *err)
{
    struct scan s = {.file = file, .text = text, .len = len, .err = err};

    return parse(arena, &s, doc);
}

int ap_doc_read(struct ap_arena *arena, const char *path, struct ap_doc *doc,
                struct ap_err *err)
{
    return ap_doc_read_watched(arena, path, NULL, doc, err);
}

int ap_doc_read_watched(struct ap_arena *arena, const char *path,
                        const struct ap_doc_watch *watch, struct ap_doc *doc,
                        struct ap_err *err)
{
    bool is_stdin = !path || !strcmp(path, "-");
    struct ap_source source;
    struct scan s = {.file = is_stdin ? "<stdin>" : ap_arena_strdup(arena, path),
                     .text = "",
                     .source = &source,
                     .watch = watch,
                     .err = err};

    if (ap_source_open(&source, is_stdin ? "-" : s.file, &s.input, err))
        return -1;
    int rc = parse(arena, &s, doc);
    ap_source_close(&source);
    return rc;
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
    json_t *value = ap_fast_json_json(text, len);

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

/* Moves s behind the '[' of member key of the object that s stands at. */
static bool find_array(struct scan *s, const char *key)
{
    size_t len = strlen(key);

    if (peek(s) != '{')
        return false;
    do {
        s->pos++; /* '{' or ',' */
        skip_space(s);
        size_t name = s->pos + 1;
        if (scan_key(s))
            return false;
        skip_space(s);
        bool found = !memcmp(s->text + name, key, len) && s->text[name + len] == '"';
        if (found && peek(s) == '[') {
            s->pos++;
            return true;
        }
        if (scan_value(s))
            return false;
        skip_space(s);
    } while (peek(s) == ',');
    return false;
}

/* From behind the '[' to the ']'. */
static int scan_elements(struct scan *s, struct ap_buf *elements)
{
    skip_space(s);
    while (peek(s) != ']') {
        struct ap_item e = {.offset = s->pos};
        if (scan_value(s))
            return -1;
        e.len = s->pos - e.offset;
        ap_buf_put(elements, &e, sizeof(e));
        skip_space(s);
        if (peek(s) == ',')
            s->pos++;
        skip_space(s);
    }
    return 0;
}

json_t *ap_doc_load_but(struct ap_arena *arena, const struct ap_doc *doc,
                        const struct ap_section *section, const char *key,
                        const struct ap_item **elements, int *n, struct ap_err *err)
{
    struct ap_err ignored = {""}; /* ap_doc_parse has scanned the text before */
    struct scan s = {.file = doc->file,
                     .text = doc->text,
                     .len = section->offset + section->len,
                     .pos = section->offset,
                     .err = &ignored};
    struct ap_buf list = {0}, rest = {0};

    *n = -1;
    if (!find_array(&s, key))
        return ap_doc_load(doc, section, err);
    size_t keep = s.pos - section->offset;
    if (section->n_items > 0 && section->items_start == s.pos) { /* the scan has them */
        s.pos = section->items_end;
        *n = (int)section->n_items;
        *elements = section->items;
    } else if (scan_elements(&s, &list)) {
        ap_buf_free(&list);
        return ap_doc_load(doc, section, err);
    } else {
        *n = (int)(list.len / sizeof(struct ap_item));
        *elements = ap_arena_dup(arena, list.data, list.len);
        ap_buf_free(&list);
    }
    size_t cut = s.pos - section->offset - keep;
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

static void write_begin(FILE *out)
{
    fprintf(out, "{\"autopar\":%d", AP_DOC_VERSION);
}

void ap_doc_hand_on(const struct ap_section *graph, FILE *out)
{
    write_begin(out);
    write_name(out, graph->name);
    put_value(out, graph->text, graph->len);
}

void ap_doc_write(const struct ap_doc *doc, const struct ap_new_section *sections, int n,
                  const char *history, FILE *out)
{
    if (!doc->is_handed)
        write_begin(out);
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
        } else if (!new && !(doc->is_handed && !strcmp(old->name, "graph"))) {
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
