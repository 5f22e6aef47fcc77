/*
 * Characters to words: the lowest layer of the HLO reader. There is no separate scanner:
 * the parser asks for the text that may come next, so that `0_1x0_1` or `b01f_01io->b01f`
 * need no tokens.
 */
#ifndef HLO_LEX_H
#define HLO_LEX_H

#include "base/names.h"
#include "base/base.h"

#define HLO_MAX_NESTING 512 /* brackets inside one another in a skipped value */

/* Called for things worth a word on stderr; msg is complete with its place. */
typedef void hlo_warn_fn(void *arg, const char *msg);

/* A text that is being read, with its place for messages. */
struct hlo_src {
    struct ap_arena *arena;
    const char *file; /* for messages */
    const char *text; /* text[len] is NUL; outlives everything made from it */
    size_t len;
    size_t pos; /* the cursor */
    struct ap_err *err;
    bool unsupported;  /* the error is about legal HLO that is not supported (exit 2) */
    hlo_warn_fn *warn; /* may be NULL */
    void *warn_arg;
};

/* len bytes of the text at s. */
struct hlo_span {
    const char *s;
    size_t len;
};

/*
 * "FILE:LINE:COL: message", the source line (cut to 80 columns) and a caret, into
 * src->err unless there is an error already. Both return -1; the second marks it as
 * unsupported.
 */
int hlo_fail(struct hlo_src *src, size_t pos, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
int hlo_refuse(struct hlo_src *src, size_t pos, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* The same place before a warning, which goes to src->warn. */
void hlo_warn(struct hlo_src *src, size_t pos, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Moves past blanks and comments, and returns the character there (0 at the end). */
char hlo_skip(struct hlo_src *src);
/* Skips blanks; true and moves on if c stands there. */
bool hlo_eat(struct hlo_src *src, char c);
/* As hlo_eat for a string of punctuation such as "->". */
bool hlo_eat_str(struct hlo_src *src, const char *s);
/* As hlo_eat, but an error if the text differs; `what` is the part that is being read,
 * for the message. */
int hlo_expect(struct hlo_src *src, char c, const char *what);
/* True if a word starts at the cursor (after blanks). */
bool hlo_at_word(struct hlo_src *src);
/* The word [A-Za-z_][A-Za-z0-9_.-]* at the cursor; `what` is the part that is being read,
 * for the message. */
int hlo_word(struct hlo_src *src, const char *what, struct hlo_span *out);
/* A word that may follow a '%', in which case it may start with a digit. */
int hlo_name(struct hlo_src *src, const char *what, struct hlo_span *out);
int hlo_int(struct hlo_src *src, const char *what, int64_t *out);
/* A quoted string, with its escapes resolved, into the arena. */
int hlo_string(struct hlo_src *src, const char **out);
/*
 * One attribute value: a quoted string, or everything up to a blank, ',' or closing
 * bracket outside brackets and quotes. Empty values are errors.
 */
int hlo_value(struct hlo_src *src, struct hlo_span *out);

bool hlo_span_is(struct hlo_span a, const char *s);
char *hlo_span_dup(struct ap_arena *arena, struct hlo_span a);
/* Position of a span (or of p inside one) in the text. */
size_t hlo_at(const struct hlo_src *src, const char *p);

#endif
