/*
 * Problem: the flags that a shell script gives a trainer. Idea: the text is cut into
 * commands of words as a shell cuts it, with the values of variables and arrays that it
 * assigns; nothing is run. What only a run could say (a substitution, a variable from
 * outside, an assignment under a condition) is marked in the text itself, since a text
 * may be cut into words later, and matters only where its word is read.
 * Cost: linear in the text and what it expands to. Source: POSIX.1-2017, XCU 2 (quotes,
 * parameters, word splitting), and bash's arrays.
 */
#include "line/trainer_words.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/names.h"

#define MOST_BYTES (1 << 22) /* that a text expands to */
#define MOST_DEEP  64        /* ifs and loops within others */

struct variable {
    const char *name;
    bool array;
    struct trainer_words value;
};

struct command {
    int first, n; /* of words */
};

/* Whether a command runs, by the conditions that it is under. */
enum runs { RUNS, RUNS_NOT, RUNS_MAYBE };

struct branch {
    enum runs now, before; /* before: whether one of the branches before it runs */
};

struct shell {
    struct ap_arena *arena;
    const char *at;
    int n_vars, cap_vars;
    struct variable *var;
    struct ap_names names;      /* of variables */
    struct trainer_words words; /* of all commands */
    int n_commands, cap_commands;
    struct command *command;
    int depth; /* of if, for, while, case */
    struct branch inside[MOST_DEEP];
    enum runs test, next; /* what the last command was; whether the next one runs */
    int line;             /* command with which a line begins, of several with | */
    int deep;             /* defaults within others */
    int open;             /* brackets of commands */
    char joined;          /* '&' or '|': the next command is behind && or || */
    int64_t left;         /* of MOST_BYTES */
    const char *json;     /* see struct trainer_words */
    bool maybe, either;   /* maybe: it is under a condition */
    int n_why, cap_why;
    const char **why; /* sentences of marks */
};

/* A word while it is read. */
struct draft {
    struct ap_buf text;
    bool any; /* an empty word in quotes is one, too */
    int64_t *left;
};

/* In the text of a word, before the number of a sentence in sh->why: a part without
 * value; text that is there under a condition. */
#define HOLE  '\1'
#define MAYBE '\2'

static void put_mark(struct shell *sh, struct ap_buf *out, char mark, const char *why)
{
    AP_ROOM_IN(sh->arena, sh->why, sh->n_why, sh->cap_why);
    const int i = sh->n_why < 4095 ? sh->n_why++ : sh->n_why;
    sh->why[i] = why;
    ap_buf_putc(out, mark);
    ap_buf_putc(out, (char)(0x80 + (i & 63)));
    ap_buf_putc(out, (char)(0x80 + (i >> 6)));
}

static bool has_mark(const struct trainer_word *word)
{
    return strpbrk(word->text, "\1\2") != NULL;
}

/* The word without marks, and what they say. */
static void take_marks(const struct shell *sh, struct trainer_word *word)
{
    const char *from = word->text;
    char *to = ap_arena_strdup(sh->arena, from);
    const bool starts = *from == MAYBE;
    bool hole = false;

    word->text = to;
    for (; *from; from++) {
        if (*from != HOLE && *from != MAYBE) {
            *to++ = *from;
            continue;
        }
        if (!from[1] || !from[2]) /* cut off by MOST_BYTES */
            break;
        if (!word->unknown || !hole)
            word->unknown = sh->why[((unsigned char)from[1] & 63) +
                                    ((unsigned char)from[2] & 63) * 64];
        hole |= *from == HOLE;
        from += 2;
    }
    *to = '\0';
    word->maybe = word->unknown && starts && !hole;
}

static void add_word(struct trainer_words *to, const char *text, size_t len)
{
    AP_ROOM_IN(to->arena, to->word, to->n, to->cap);
    to->word[to->n++] =
        (struct trainer_word){ap_arena_strndup(to->arena, text, len), NULL, false};
}

static void copy_words(const struct trainer_word *word, int n, struct trainer_words *out)
{
    for (int i = 0; i < n; i++) {
        AP_ROOM_IN(out->arena, out->word, out->n, out->cap);
        out->word[out->n++] = word[i];
    }
}

static void end_word(struct draft *d, struct trainer_words *to)
{
    if (d->any && (*d->left -= 16) > 0)
        add_word(to, d->text.data ? d->text.data : "", d->text.len);
    ap_buf_free(&d->text);
    *d = (struct draft){.left = d->left};
}

static struct variable *find_variable(struct shell *sh, const char *name, size_t len)
{
    const int i = ap_names_get(&sh->names, name, len);

    return i < 0 ? NULL : &sh->var[i];
}

/* "NAME" at s; 0: none. */
static size_t name_length(const char *s)
{
    size_t n = 0;

    while (isalnum((unsigned char)s[n]) || s[n] == '_')
        n++;
    return isdigit((unsigned char)*s) ? 0 : n;
}

/* ---- expansion ---- */

/* The end of what is in brackets from *at on. */
static const char *skip_brackets(const char *at, char open, char close)
{
    int depth = 0;

    for (; *at; at++) {
        depth += *at == open;
        depth -= *at == close;
        if (depth == 0)
            return at + 1;
    }
    return at;
}

static void put_unknown(struct shell *sh, struct draft *d, const char *what, size_t len)
{
    d->any = true;
    put_mark(sh, &d->text, HOLE,
             ap_arena_printf(sh->arena, "nothing in the text gives %s%.*s a value",
                             *what == '$' ? "" : "$", (int)(len < 100 ? len : 100),
                             what));
}

static void put_text(struct draft *d, const char *text, size_t len, bool quoted,
                     struct trainer_words *to)
{
    for (size_t i = 0; i < len; i++) {
        if (!quoted && isspace((unsigned char)text[i])) {
            end_word(d, to);
        } else {
            if (--*d->left > 0)
                ap_buf_putc(&d->text, text[i]);
            d->any = true;
        }
    }
}

/* All words of a variable; of an array each is a word of its own. */
static void put_variable(struct draft *d, const struct variable *v, bool all, bool quoted,
                         struct trainer_words *to)
{
    const int n = all ? v->value.n : v->value.n > 0;

    for (int i = 0; i < n; i++) {
        const char *text = v->value.word[i].text;
        if (i > 0)
            end_word(d, to);
        d->any |= quoted;
        put_text(d, text, strlen(text), quoted, to);
    }
}

static void expand(struct shell *sh, struct draft *d, bool quoted,
                   struct trainer_words *to);
static void assign(struct shell *sh, const char *name, size_t len, bool comes,
                   struct trainer_words *value);

/* Whether a variable has no text. */
static bool is_empty(const struct variable *v)
{
    return v->value.n == 0 || (v->value.n == 1 && !*v->value.word[0].text);
}

/* What is between `from` and `end`, with its own variables. */
static void expand_text(struct shell *sh, struct draft *d, const char *from,
                        const char *end, bool quoted, struct trainer_words *to)
{
    const char *back = sh->at;

    if (++sh->deep > MOST_DEEP) {
        put_unknown(sh, d, from, (size_t)(end - from));
    } else {
        sh->at = ap_arena_strndup(sh->arena, from, (size_t)(end - from));
        while (*sh->at && sh->left > 0)
            if (*sh->at == '$')
                expand(sh, d, quoted, to);
            else if (*sh->at != '"')
                put_text(d, sh->at++, 1, quoted, to);
            else
                sh->at++;
    }
    sh->deep--;
    sh->at = back;
}

/* "NAME:=text" up to the end: what the variable has then, NULL: there is no room. */
static const struct variable *assign_default(struct shell *sh, const char *name,
                                             size_t len, const char *text,
                                             const char *end)
{
    struct trainer_words value = {.arena = sh->arena};
    struct draft own = {.any = true, .left = &sh->left};

    expand_text(sh, &own, text, end, true, &value);
    end_word(&own, &value);
    if (value.n > 0)
        assign(sh, name, len, false, &value);
    return find_variable(sh, name, len);
}

/* "{NAME...}": with the default or the other text that it may have. */
static void expand_braces(struct shell *sh, struct draft *d, bool quoted,
                          struct trainer_words *to)
{
    const char *from = sh->at, *end = skip_brackets(from, '{', '}');
    const char *name = from + 1, *rest = name + strspn(name, "_"
                                                             "abcdefghijklmnopqrstuvwxyz"
                                                             "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                                             "0123456789@*");
    const size_t len = (size_t)(rest - name);
    const struct variable *v = find_variable(sh, name, len);
    const bool all = !strncmp(rest, "[@]", 3) || !strncmp(rest, "[*]", 3);

    sh->at = end;
    rest += all ? 3 : 0;
    const bool colon = *rest == ':' && rest[1] && strchr("-=+?", rest[1]);
    const char how = rest[colon];
    const bool has = v && !(colon && is_empty(v));
    const char *text = rest + colon + 1, *last = end > text ? end - 1 : text;
    if (len == 0 || (!strchr("-=+?", how) && rest + 1 != end))
        put_unknown(sh, d, name, len ? len : (size_t)(end - name)); /* a part of it */
    else if (has && how == '+' && v->value.n && has_mark(&v->value.word[0]))
        put_unknown(sh, d, name, len);
    else if (how == '+' ? has : !has && how == '-')
        expand_text(sh, d, text, last, quoted, to);
    else if (how == '=' && !has && (v = assign_default(sh, name, len, text, last)))
        put_variable(d, v, false, quoted, to);
    else if (has && how != '+')
        put_variable(d, v, all || v->array, quoted, to);
    else if (how != '+')
        put_unknown(sh, d, name, len);
}

static bool number_named(void *ctx, const char *name, size_t len, int64_t *out)
{
    const struct variable *v = find_variable(ctx, name, len);
    char *end = NULL;

    if (v && v->value.n == 1 && !has_mark(&v->value.word[0]))
        *out = strtoll(v->value.word[0].text, &end, 10);
    return end && !*end;
}

/* At '$'. */
static void expand(struct shell *sh, struct draft *d, bool quoted,
                   struct trainer_words *to)
{
    const char *from = sh->at++;
    const size_t len = name_length(sh->at);

    if (!strncmp(sh->at, "((", 2)) {
        const char *at = sh->at + 2;
        int64_t v;
        const bool known =
            trainer_sum(&at, number_named, sh, &v) && !strncmp(at, "))", 2);
        sh->at = skip_brackets(sh->at, '(', ')');
        if (known) {
            char text[32];
            put_text(d, text, (size_t)snprintf(text, sizeof text, "%lld", (long long)v),
                     true, to);
        } else {
            put_unknown(sh, d, from, (size_t)(sh->at - from));
        }
    } else if (*sh->at == '(') {
        sh->at = skip_brackets(sh->at, '(', ')');
        put_unknown(sh, d, from, (size_t)(sh->at - from));
    } else if (*sh->at == '{') {
        expand_braces(sh, d, quoted, to);
    } else if (len) {
        const struct variable *v = find_variable(sh, sh->at, len);
        if (v)
            put_variable(d, v, false, quoted, to);
        else
            put_unknown(sh, d, sh->at, len);
        sh->at += len;
    } else if (*sh->at &&
               (isdigit((unsigned char)*sh->at) || strchr("@*?#$!", *sh->at))) {
        put_unknown(sh, d, sh->at, 1);
        sh->at++;
    } else {
        put_text(d, "$", 1, true, to);
    }
}

static void read_quoted(struct shell *sh, struct draft *d, struct trainer_words *to)
{
    d->any = true;
    for (sh->at++; *sh->at && *sh->at != '"';) {
        if (*sh->at == '\\' && sh->at[1] && strchr("\"\\$`\n", sh->at[1])) {
            if (sh->at[1] != '\n')
                ap_buf_putc(&d->text, sh->at[1]);
            sh->at += 2;
        } else if (*sh->at == '$') {
            expand(sh, d, true, to);
        } else {
            ap_buf_putc(&d->text, *sh->at++);
        }
    }
    sh->at += *sh->at == '"';
}

/* Words of text up to a blank or an operator; split: unquoted values are several. */
static void read_word(struct shell *sh, bool split, struct trainer_words *to)
{
    struct draft d = {.left = &sh->left};

    while (*sh->at && !strchr(" \t\r\n;&|<>()", *sh->at)) {
        const char *at = sh->at;
        if (*at == '\\' && (at[1] == '\n' || (at[1] == '\r' && at[2] == '\n'))) {
            sh->at += at[1] == '\n' ? 2 : 3;
            if (d.any)
                continue;
            break;
        }
        if (*at == '\\' && at[1]) {
            put_text(&d, at + 1, 1, true, to);
            sh->at += 2;
        } else if (*at == '\'') {
            const char *end = strchr(at + 1, '\'');
            end = end ? end : at + strlen(at);
            d.any = true;
            put_text(&d, at + 1, (size_t)(end - at - 1), true, to);
            sh->at = end + (*end == '\'');
        } else if (*at == '"') {
            read_quoted(sh, &d, to);
        } else if (*at == '$') {
            expand(sh, &d, !split, to);
        } else if (*at == '`') {
            const char *end = strchr(at + 1, '`');
            sh->at = end ? end + 1 : at + strlen(at);
            put_unknown(sh, &d, at, (size_t)(sh->at - at));
        } else {
            put_text(&d, at, 1, true, to);
            sh->at++;
        }
    }
    end_word(&d, to);
}

/* ---- commands ---- */

/* Blanks, comments and, in arrays, ends of lines. */
static void skip_blanks(struct shell *sh, bool lines)
{
    for (;;) {
        sh->at += strspn(sh->at, lines ? " \t\r\n" : " \t\r");
        if (*sh->at == '#')
            sh->at += strcspn(sh->at, "\n");
        else if (*sh->at == '\\' && sh->at[1] == '\n')
            sh->at += 2;
        else if (*sh->at == '\\' && sh->at[1] == '\r' && sh->at[2] == '\n')
            sh->at += 3;
        else
            return;
    }
}

static bool same_words(const struct trainer_words *a, const struct trainer_words *b)
{
    bool same = a->n == b->n;

    for (int i = 0; i < a->n && same; i++)
        same = !strcmp(a->word[i].text, b->word[i].text);
    return same;
}

static enum runs runs_now(const struct shell *sh)
{
    enum runs now = sh->next;

    for (int i = 0; i < sh->depth; i++)
        if (now != RUNS_NOT && sh->inside[i].now != RUNS)
            now = sh->inside[i].now;
    return now;
}

/* Marks the value that an assignment under a condition may give: what comes to an array,
 * or takes the place of nothing, may be there; else no one knows which value counts. */
static void doubt(struct shell *sh, const struct variable *v, bool comes,
                  struct trainer_words *value)
{
    const int n = v->value.n;
    const bool none = n == 0 || (n == 1 && !*v->value.word[0].text);

    comes |= none;
    if (same_words(&v->value, value))
        return;
    const char *why = ap_arena_printf(
        sh->arena, "$%.100s depends on a condition: give it one value", v->name);
    for (int i = none ? 0 : comes ? n : 0; i < value->n && (comes || i < 1); i++) {
        struct trainer_word *w = &value->word[i];
        struct ap_buf text = {0};
        bool blank = true;
        if (!comes)
            put_mark(sh, &text, HOLE, why);
        for (const char *c = w->text; *c; c++) {
            if (comes && blank && !isspace((unsigned char)*c)) /* each word of it */
                put_mark(sh, &text, MAYBE, why);
            blank = isspace((unsigned char)*c);
            ap_buf_putc(&text, *c);
        }
        w->text = ap_arena_strdup(sh->arena, text.data ? text.data : "");
        ap_buf_free(&text);
    }
}

/* comes: to what the variable has, which *value begins with. */
static void assign(struct shell *sh, const char *name, size_t len, bool comes,
                   struct trainer_words *value)
{
    struct variable *v = find_variable(sh, name, len);

    if (runs_now(sh) == RUNS_NOT)
        return;
    if (!v) {
        AP_ROOM_IN(sh->arena, sh->var, sh->n_vars, sh->cap_vars);
        v = &sh->var[sh->n_vars];
        *v = (struct variable){.name = ap_arena_strndup(sh->arena, name, len)};
        ap_names_put(&sh->names, v->name, len, sh->n_vars++);
        v->value.arena = sh->arena;
    }
    if (runs_now(sh) == RUNS_MAYBE)
        doubt(sh, v, comes, value);
    v->value = *value;
}

/* "NAME=word", "NAME=(words)", "NAME+=..." */
static void read_assignment(struct shell *sh, size_t len)
{
    const char *name = sh->at;
    const bool more = name[len] == '+';
    struct trainer_words value = {.arena = sh->arena};
    struct variable *v = find_variable(sh, name, len);
    bool array = false;

    sh->at += len + (more ? 2 : 1);
    if (v && more)
        copy_words(v->value.word, v->value.n, &value);
    if (*sh->at == '(') {
        array = true;
        for (sh->at++, skip_blanks(sh, true); *sh->at && *sh->at != ')';
             skip_blanks(sh, true)) {
            const char *from = sh->at;
            read_word(sh, true, &value);
            sh->at += sh->at == from;
        }
        sh->at += *sh->at == ')';
    } else {
        const int n = value.n;
        read_word(sh, false, &value);
        if (n == 1 && value.n == 2) { /* += of a text */
            value.word[0].text = ap_arena_printf(sh->arena, "%s%s", value.word[0].text,
                                                 value.word[1].text);
            value.n = 1;
        } else if (value.n == 0) {
            add_word(&value, "", 0);
        }
    }
    assign(sh, name, len, array && more, &value);
    if (array && (v = find_variable(sh, name, len)))
        v->array = true;
}

/* then, elif, else: whether what follows runs, where `test` is so. */
static void enter_branch(struct shell *sh, enum runs test)
{
    struct branch *b = &sh->inside[sh->depth - 1];

    b->now = b->before == RUNS || test == RUNS_NOT   ? RUNS_NOT
             : b->before == RUNS_NOT && test == RUNS ? RUNS
                                                     : RUNS_MAYBE;
    if (b->now != RUNS_NOT)
        b->before = b->now;
}

/* Words that begin a command and are none of it. */
static bool drop_keyword(struct shell *sh, int first)
{
    const char *word = sh->words.word[first].text;
    const bool inside = sh->depth > 0;

    if (trainer_is_one_of(word, "if for while until case") && sh->depth < MOST_DEEP)
        sh->inside[sh->depth++] =
            (struct branch){*word == 'i' ? RUNS : RUNS_MAYBE, RUNS_NOT};
    else if (trainer_is_one_of(word, "fi done esac"))
        sh->depth -= inside;
    else if (trainer_is_one_of(word, "elif") && inside)
        sh->inside[sh->depth - 1].now = RUNS_MAYBE;
    else if (trainer_is_one_of(word, "then else") && inside)
        enter_branch(sh, *word == 't' ? sh->test : RUNS);
    else if (!trainer_is_one_of(word,
                                "do { } export local declare readonly exec eval time "
                                "nohup"))
        return false;
    sh->words.n = first;
    return true;
}

/* A here-document with the values of its variables, if it is the first with an object. */
static void take_document(struct shell *sh, const char *from, const char *end)
{
    struct draft d = {.left = &sh->left};
    struct trainer_words ignored = {.arena = sh->arena};
    struct ap_buf text = {0};
    const char *back = sh->at;

    if (runs_now(sh) == RUNS_NOT || from[strspn(from, " \t\r\n")] != '{')
        return;
    if (sh->json) {
        sh->either |= sh->maybe;
        return;
    }
    sh->maybe = runs_now(sh) == RUNS_MAYBE;
    sh->at = ap_arena_strndup(sh->arena, from, (size_t)(end - from));
    while (*sh->at && sh->left > 0)
        if (*sh->at == '$')
            expand(sh, &d, true, &ignored);
        else
            put_text(&d, sh->at++, 1, true, &ignored);
    sh->at = back;
    for (size_t i = 0; i < d.text.len; i++) {
        const bool mark = d.text.data[i] == HOLE || d.text.data[i] == MAYBE;
        ap_buf_put(&text, mark ? "null" : &d.text.data[i], mark ? 4 : 1);
        while (mark && i + 1 < d.text.len && /* the mark's number, what may be there */
               (d.text.data[i + 1] & 0x80 || d.text.data[i + 1] < ' ' ||
                isalnum((unsigned char)d.text.data[i + 1])) &&
               d.text.data[i + 1] != '\n')
            i++;
    }
    sh->json = ap_arena_strdup(sh->arena, text.data ? text.data : "");
    ap_buf_free(&text);
    ap_buf_free(&d.text);
}

/* Behind "<<": the lines up to the word alone on its line. */
static void skip_here_document(struct shell *sh)
{
    sh->at += strspn(sh->at, "<- \t'\"");
    const size_t len = name_length(sh->at);
    const char *name = sh->at, *line = strchr(sh->at, '\n'), *body = line;

    while (line && len) {
        const char *text = line + 1 + strspn(line + 1, "\t");
        line = strchr(line + 1, '\n');
        if (!strncmp(text, name, len) && (text[len] == '\n' || !text[len])) {
            take_document(sh, body, text);
            sh->at = line ? line : text + len;
            return;
        }
    }
    sh->at += strlen(sh->at);
}

static void skip_redirection(struct shell *sh, int first)
{
    struct trainer_words file = {.arena = sh->arena};
    const char *before = sh->at;

    if (sh->words.n > first && isdigit((unsigned char)before[-1])) {
        const char *w = sh->words.word[sh->words.n - 1].text;
        sh->words.n -= strspn(w, "0123456789") == strlen(w); /* "2>" */
    }
    if (!strncmp(sh->at, "<<", 2) && sh->at[2] != '<') {
        skip_here_document(sh);
        return;
    }
    sh->at += strspn(sh->at, "<>&|");
    skip_blanks(sh, false);
    read_word(sh, false, &file);
}

/* A command behind && or || runs by what was before it; both together are a test. */
static enum runs join(enum runs before, enum runs test, bool both)
{
    const enum runs decides = both ? RUNS_NOT : RUNS;

    return before == decides || test == decides ? decides
           : before == test                     ? test
                                                : RUNS_MAYBE;
}

/* Behind a command that begins with the word `first`: what it was, and whether the next
 * one runs. joined: it is behind && ('&'), || ('|') or neither. */
static void end_command(struct shell *sh, int first, char joined)
{
    const char *at = sh->at;
    for (int i = first; i < sh->words.n; i++)
        take_marks(sh, &sh->words.word[i]);
    const int is = trainer_test(&sh->words.word[first], sh->words.n - first);
    const enum runs test = is < 0 ? RUNS_MAYBE : is ? RUNS : RUNS_NOT;

    if (*at == ')' && sh->open == 0) { /* a pattern of case */
        sh->n_commands = sh->line;
        sh->words.n = first;
    }
    sh->open += *at == '(' ? 1 : *at == ')' && sh->open > 0 ? -1 : 0;
    if (sh->words.n > first && runs_now(sh) != RUNS_NOT) {
        AP_ROOM_IN(sh->arena, sh->command, sh->n_commands, sh->cap_commands);
        sh->command[sh->n_commands++] = (struct command){first, sh->words.n - first};
    }
    if (sh->words.n > first)
        sh->test = joined ? join(sh->test, test, joined == '&') : test;
    const enum runs was = sh->words.n > first ? sh->test : RUNS;
    const bool both = !strncmp(at, "&&", 2), either = !strncmp(at, "||", 2);
    sh->next = both || was == RUNS_MAYBE ? was : was == RUNS ? RUNS_NOT : RUNS;
    if (!both && !either)
        sh->next = RUNS;
    sh->joined = both || either ? *at : '\0';
    sh->at += *at ? 1 + (both || either) : 0;
    if (*at != '|' || either)
        sh->line = sh->n_commands;
}

/* Up to the end of a line or an operator. */
static void read_command(struct shell *sh)
{
    const int first = sh->words.n;

    skip_blanks(sh, false);
    if (*sh->at == '\n') { /* behind && and || a line may end */
        sh->at++;
        return;
    }
    for (; *sh->at && !strchr("\n;&|()", *sh->at); skip_blanks(sh, false)) {
        const size_t len = name_length(sh->at);
        const char *from = sh->at;
        if (*sh->at == '<' || *sh->at == '>') {
            skip_redirection(sh, first);
        } else if (sh->words.n == first && len &&
                   (from[len] == '=' || (from[len] == '+' && from[len + 1] == '='))) {
            read_assignment(sh, len);
        } else {
            read_word(sh, true, &sh->words);
            if (sh->words.n == first + 1)
                drop_keyword(sh, first);
        }
        if (*sh->at == '&' && sh->at[1] == '>') /* "&> file" */
            skip_redirection(sh, first);
    }
    end_command(sh, first, sh->joined);
}

/* ---- the program's arguments ---- */

static bool has_flags(const struct trainer_word *word, int n)
{
    for (int i = 0; i < n; i++)
        if (!strncmp(word[i].text, "--", 2))
            return true;
    return false;
}

static int64_t number_of(struct shell *sh, const char *name)
{
    int64_t n = 0;

    return number_named(sh, name, strlen(name), &n) && n > 0 && n <= AP_MAX_DEVICES ? n
                                                                                    : 0;
}

/* WORLD_SIZE, the launcher's nodes times processes, or NGPU. */
static int64_t find_world(struct shell *sh, const struct trainer_words *launcher)
{
    static const char *const names[2][2] = {{"--nnodes", "--num-nodes"},
                                            {"--nproc-per-node", "--num-gpus"}};
    struct trainer_flags flags;
    struct ap_err ignored = {""};
    int64_t n[2] = {1, 0};

    trainer_flags_find(launcher, true, &flags, &ignored);
    for (int i = 0; i < 4; i++)
        n[i / 2] = trainer_flag_number(&flags, names[i / 2][i % 2], n[i / 2]);
    int64_t world = ap_mul64(n[0], n[1]);
    if (world < 1 || world > AP_MAX_DEVICES || *ignored.msg)
        world = number_of(sh, "WORLD_SIZE");
    return world ? world : number_of(sh, "NGPU");
}

static int find_arguments(struct shell *sh, struct trainer_words *out, int64_t *world,
                          struct ap_err *err)
{
    struct trainer_words launcher = {.arena = sh->arena};
    const struct command *found = NULL;

    while (*sh->at && sh->left > 0)
        read_command(sh);
    if (sh->left <= 0)
        return ap_err_set(err, "its variables expand to more than %d bytes", MOST_BYTES);
    for (int i = 0; i < sh->n_commands; i++) {
        const struct command *c = &sh->command[i];
        const struct trainer_word *word = &sh->words.word[c->first];
        const int at = trainer_program_find(word, c->n);
        if (at == -2 || !has_flags(word + at + 1, c->n - at - 1))
            continue;
        if (found && at >= 0)
            return ap_err_set(
                err,
                "two commands have arguments of a program, from '%.60s' and "
                "from '%.60s' on: keep one",
                sh->words.word[found->first].text, word->text);
        found = c;
        const bool module = at > 0 && !strcmp(word[at - 1].text, "-m");
        copy_words(word, at > 0 ? at - module : 0, &launcher);
        copy_words(word + at + 1, c->n - at - 1, out);
    }
    for (int i = 0; i < sh->n_vars && !found; i++) {
        for (int k = 0; k < sh->var[i].value.n; k++)
            take_marks(sh, &sh->var[i].value.word[k]);
        if (has_flags(sh->var[i].value.word, sh->var[i].value.n))
            copy_words(sh->var[i].value.word, sh->var[i].value.n, out);
    }
    if (out->n == 0)
        return ap_err_set(err, "it has no flags (--NAME VALUE)");
    *world = find_world(sh, &launcher);
    return 0;
}

int trainer_words_read(struct ap_arena *arena, const char *text,
                       struct trainer_words *out, int64_t *world, struct ap_err *err)
{
    char *own = ap_arena_strdup(arena, text); /* without marks of its own */
    for (char *c = own; *c; c++)
        *c = *c == HOLE || *c == MAYBE ? ' ' : *c;
    struct shell sh = {
        .arena = arena, .at = own, .words = {.arena = arena}, .left = MOST_BYTES};

    *out = (struct trainer_words){.arena = arena};
    const int rc = find_arguments(&sh, out, world, err);
    out->json = sh.json;
    out->either = sh.either;
    ap_names_free(&sh.names);
    return rc;
}
