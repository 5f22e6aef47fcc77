#include "hlo/hlo_lex.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LINE_COLUMNS 80

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\f' || c == '\v';
}

/* ---- messages ---- */

/* "FILE:LINE:COL: " of pos; also where its line starts and ends. */
static void print_place(const struct hlo_src *src, size_t pos, struct ap_buf *out,
                        size_t *start, size_t *end)
{
    if (pos > src->len)
        pos = src->len;
    size_t line = 1, bol = 0;
    for (const char *p = src->text, *stop = src->text + pos;
         (p = memchr(p, '\n', (size_t)(stop - p))); p++) {
        line++;
        bol = (size_t)(p - src->text) + 1;
    }
    const char *eol = memchr(src->text + pos, '\n', src->len - pos);
    *start = bol;
    *end = eol ? (size_t)(eol - src->text) : src->len;
    ap_buf_printf(out, "%.300s:%zu:%zu: ", src->file, line, pos - bol + 1);
}

/* The line of pos, cut to LINE_COLUMNS around it, and a caret under it; nothing of a line
 * that is no text. */
static void print_caret(const struct hlo_src *src, size_t pos, size_t start, size_t end,
                        struct ap_buf *out)
{
    if (pos > src->len)
        pos = src->len;
    if (end - start > LINE_COLUMNS) {
        size_t lead = LINE_COLUMNS / 2;
        if (pos - start > lead)
            start = end - pos < lead ? end - LINE_COLUMNS : pos - lead;
        if (end - start > LINE_COLUMNS)
            end = start + LINE_COLUMNS;
    }
    for (size_t i = start; i < end; i++)
        if (iscntrl((unsigned char)src->text[i]) && !is_blank(src->text[i]))
            return;
    ap_buf_putc(out, '\n');
    for (size_t i = start; i < end; i++) {
        unsigned char c = (unsigned char)src->text[i];
        ap_buf_putc(out, c < 0x20 || c == 0x7f ? ' ' : (char)c);
    }
    ap_buf_printf(out, "\n%*s^", (int)(pos - start), "");
}

static void fail_at(struct hlo_src *src, size_t pos, const char *fmt, va_list args)
{
    if (src->err->msg[0])
        return;
    char msg[400];
    vsnprintf(msg, sizeof msg, fmt, args);
    struct ap_buf out = {0};
    size_t start, end;
    print_place(src, pos, &out, &start, &end);
    ap_buf_puts(&out, msg);
    print_caret(src, pos, start, end, &out);
    ap_err_set(src->err, "%s", out.data);
    ap_buf_free(&out);
}

int hlo_fail(struct hlo_src *src, size_t pos, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    fail_at(src, pos, fmt, args);
    va_end(args);
    return -1;
}

int hlo_refuse(struct hlo_src *src, size_t pos, const char *fmt, ...)
{
    src->unsupported |= !src->err->msg[0];
    va_list args;
    va_start(args, fmt);
    fail_at(src, pos, fmt, args);
    va_end(args);
    return -1;
}

void hlo_warn(struct hlo_src *src, size_t pos, const char *fmt, ...)
{
    if (!src->warn)
        return;
    char msg[400];
    va_list args;
    va_start(args, fmt);
    vsnprintf(msg, sizeof msg, fmt, args);
    va_end(args);
    struct ap_buf out = {0};
    size_t start, end;
    print_place(src, pos, &out, &start, &end);
    ap_buf_puts(&out, msg);
    src->warn(src->warn_arg, out.data);
    ap_buf_free(&out);
}

/* ---- characters ---- */

static bool is_word_start(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

static bool is_word_char(char c)
{
    return is_word_start(c) || (c >= '0' && c <= '9') || c == '.' || c == '-';
}

/* After the comment at pos, or pos itself when none starts there or it does not end. */
static size_t skip_comment(const struct hlo_src *src, size_t pos)
{
    if (src->text[pos + 1] == '*') {
        const char *end = strstr(src->text + pos + 2, "*/");
        return end ? (size_t)(end - src->text) + 2 : pos;
    }
    if (src->text[pos + 1] == '/') {
        const char *end = strchr(src->text + pos, '\n');
        return end ? (size_t)(end - src->text) + 1 : src->len;
    }
    return pos;
}

char hlo_skip(struct hlo_src *src)
{
    for (;;) {
        char c = src->text[src->pos];
        if (is_blank(c)) {
            src->pos++;
        } else if (c == '/') {
            size_t next = skip_comment(src, src->pos);
            if (next == src->pos)
                return c;
            src->pos = next;
        } else {
            return c;
        }
    }
}

bool hlo_eat(struct hlo_src *src, char c)
{
    if (hlo_skip(src) != c || src->pos >= src->len)
        return false;
    src->pos++;
    return true;
}

bool hlo_eat_str(struct hlo_src *src, const char *s)
{
    hlo_skip(src);
    size_t len = strlen(s);
    if (src->len - src->pos < len || memcmp(src->text + src->pos, s, len) != 0)
        return false;
    src->pos += len;
    return true;
}

/* What stands at the cursor, for "expected x, got y". */
static const char *found(const struct hlo_src *src, char *buf, size_t size)
{
    if (src->pos >= src->len)
        return "the end of the text";
    char c = src->text[src->pos];
    if (is_word_char(c)) {
        size_t n = 1;
        while (n < 40 && is_word_char(src->text[src->pos + n]))
            n++;
        snprintf(buf, size, "'%.*s'", (int)n, src->text + src->pos);
    } else if (c > 0x20 && c < 0x7f) {
        snprintf(buf, size, "'%c'", c);
    } else {
        snprintf(buf, size, "byte 0x%02x", (unsigned char)c);
    }
    return buf;
}

int hlo_expect(struct hlo_src *src, char c, const char *what)
{
    if (hlo_eat(src, c))
        return 0;
    char buf[64];
    return hlo_fail(src, src->pos, "expected '%c' in %s, got %s", c, what,
                    found(src, buf, sizeof buf));
}

bool hlo_at_word(struct hlo_src *src)
{
    return is_word_start(hlo_skip(src));
}

int hlo_word(struct hlo_src *src, const char *what, struct hlo_span *out)
{
    if (!is_word_start(hlo_skip(src))) {
        char buf[64];
        return hlo_fail(src, src->pos, "expected %s, got %s", what,
                        found(src, buf, sizeof buf));
    }
    const char *s = src->text + src->pos, *p = s;
    while (is_word_char(*p))
        p++;
    *out = (struct hlo_span){s, (size_t)(p - s)};
    src->pos += out->len;
    return 0;
}

int hlo_name(struct hlo_src *src, const char *what, struct hlo_span *out)
{
    if (hlo_skip(src) != '%')
        return hlo_word(src, what, out);
    const char *s = src->text + ++src->pos, *p = s;
    while (is_word_char(*p))
        p++;
    if (p == s)
        return hlo_fail(src, src->pos, "expected %s after '%%'", what);
    *out = (struct hlo_span){s, (size_t)(p - s)};
    src->pos += out->len;
    return 0;
}

int hlo_int(struct hlo_src *src, const char *what, int64_t *out)
{
    char c = hlo_skip(src);
    const char *s = src->text + src->pos;
    if (!isdigit((unsigned char)c) && !(c == '-' && isdigit((unsigned char)s[1]))) {
        char buf[64];
        return hlo_fail(src, src->pos, "expected %s, got %s", what,
                        found(src, buf, sizeof buf));
    }
    char *end;
    errno = 0;
    *out = strtoll(s, &end, 10);
    if (errno)
        return hlo_fail(src, src->pos, "%s is out of range", what);
    src->pos += (size_t)(end - s);
    return 0;
}

/* After the quoted string that starts at pos, or 0 when it does not end. */
static size_t string_end(const struct hlo_src *src, size_t pos)
{
    char quote = src->text[pos++];
    while (pos < src->len && src->text[pos] != quote)
        pos += src->text[pos] == '\\' && pos + 1 < src->len ? 2 : 1;
    return pos < src->len ? pos + 1 : 0;
}

int hlo_string(struct hlo_src *src, const char **out)
{
    char c = hlo_skip(src);
    size_t end = c == '"' || c == '\'' ? string_end(src, src->pos) : 0;
    if (!end)
        return hlo_fail(src, src->pos,
                        c == '"' || c == '\'' ? "this string does not end"
                                              : "expected a string");
    char *buf = ap_arena_alloc(src->arena, end - src->pos);
    size_t n = 0;
    for (size_t i = src->pos + 1; i + 1 < end; i++) {
        char ch = src->text[i];
        if (ch == '\\' && i + 2 < end) {
            ch = src->text[++i];
            ch = ch == 'n' ? '\n' : ch == 't' ? '\t' : ch;
        }
        if (ch)
            buf[n++] = ch;
    }
    buf[n] = '\0';
    src->pos = end;
    *out = buf;
    return 0;
}

/* Moves past one bracketed group at the cursor, brackets and strings inside included.
 */
static int skip_group(struct hlo_src *src)
{
    char stack[HLO_MAX_NESTING];
    int depth = 0;
    size_t first = src->pos;
    do {
        if (src->pos >= src->len)
            return hlo_fail(src, first, "this '%c' is not closed", src->text[first]);
        char c = src->text[src->pos];
        size_t next = src->pos + 1;
        if (c == '{' || c == '[' || c == '(') {
            if (depth == HLO_MAX_NESTING)
                return hlo_fail(src, src->pos, "brackets are nested more than %d deep",
                                HLO_MAX_NESTING);
            stack[depth++] = c == '(' ? ')' : (char)(c + 2);
        } else if (c == '}' || c == ']' || c == ')') {
            if (stack[--depth] != c)
                return hlo_fail(src, src->pos, "expected '%c', got '%c'", stack[depth],
                                c);
        } else if (c == '"' || c == '\'') {
            next = string_end(src, src->pos);
            if (!next)
                return hlo_fail(src, src->pos, "this string does not end");
        } else if (c == '/' && src->text[next] == '*') {
            next = skip_comment(src, src->pos);
            if (next == src->pos)
                return hlo_fail(src, src->pos, "this comment does not end");
        }
        src->pos = next;
    } while (depth > 0);
    return 0;
}

int hlo_value(struct hlo_src *src, struct hlo_span *out)
{
    hlo_skip(src);
    size_t first = src->pos;
    while (src->pos < src->len) {
        char c = src->text[src->pos];
        if (is_blank(c) || c == ',' || c == '}' || c == ')' || c == ']')
            break;
        if (c == '{' || c == '(' || c == '[') {
            if (skip_group(src))
                return -1;
        } else if (c == '"' || c == '\'') {
            size_t end = string_end(src, src->pos);
            if (!end)
                return hlo_fail(src, src->pos, "this string does not end");
            src->pos = end;
        } else {
            src->pos++;
        }
    }
    *out = (struct hlo_span){src->text + first, src->pos - first};
    char buf[64];
    if (!out->len)
        return hlo_fail(src, first, "expected a value, got %s",
                        found(src, buf, sizeof buf));
    return 0;
}

bool hlo_span_is(struct hlo_span a, const char *s)
{
    return strlen(s) == a.len && memcmp(a.s, s, a.len) == 0;
}

char *hlo_span_dup(struct ap_arena *arena, struct hlo_span a)
{
    return ap_arena_strndup(arena, a.s, a.len);
}

size_t hlo_at(const struct hlo_src *src, const char *p)
{
    return (size_t)(p - src->text);
}
