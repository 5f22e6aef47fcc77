/*
 * Problem: the flags that a shell script gives a trainer. Idea: the text is cut into
 * commands of words as a shell cuts it, with the values of variables and arrays that it
 * assigns; nothing is run. What only a run could say (a substitution, a variable from
 * outside, an assignment under a condition) is marked, and matters only where it is read.
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
#define MOST_DEEP  64        /* brackets of a sum */

struct variable {
    const char *name;
    bool array;
    struct trainer_words value;
};

struct command {
    int first, n; /* of words */
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
    int depth;    /* of if, for, while, case */
    bool unsure;  /* behind && or || */
    int64_t left; /* of MOST_BYTES */
};

/* A word while it is read. */
struct draft {
    struct ap_buf text;
    const char *unknown;
    bool any; /* an empty word in quotes is one, too */
    int64_t *left;
};

static void add_word(struct trainer_words *to, const char *text, size_t len,
                     const char *unknown)
{
    AP_ROOM_IN(to->arena, to->word, to->n, to->cap);
    to->word[to->n++] =
        (struct trainer_word){ap_arena_strndup(to->arena, text, len), unknown};
}

static void end_word(struct draft *d, struct trainer_words *to)
{
    if (d->any && (*d->left -= 16) > 0)
        add_word(to, d->text.data ? d->text.data : "", d->text.len, d->unknown);
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

/* ---- arithmetic ---- */

struct sum {
    struct shell *sh;
    const char *at;
    bool known;
    int depth;
};
static int64_t read_sum(struct sum *s);

static int64_t read_factor(struct sum *s)
{
    int64_t v = 0;

    s->at += strspn(s->at, " \t\n${}"); /* "$N" and "${N}" are N */
    const size_t len = name_length(s->at);
    if (*s->at == '(') {
        s->at++;
        s->known &= ++s->depth < MOST_DEEP;
        v = s->known ? read_sum(s) : 0;
        s->depth--;
        s->known &= *s->at == ')';
        s->at += *s->at == ')';
    } else if (len) {
        const struct variable *var = find_variable(s->sh, s->at, len);
        char *end = NULL;
        s->known &= var && var->value.n == 1 && !var->value.word[0].unknown;
        v = s->known ? strtoll(var->value.word[0].text, &end, 10) : 0;
        s->known &= end && !*end;
        s->at += len;
    } else {
        char *end;
        v = strtoll(s->at, &end, 10);
        s->known &= end > s->at;
        s->at = end;
    }
    s->at += strspn(s->at, " \t\n}");
    return v;
}

static int64_t read_product(struct sum *s)
{
    int64_t v = read_factor(s);

    while (s->known && *s->at && strchr("*/%", *s->at)) {
        const char op = *s->at++;
        const int64_t by = read_factor(s);
        s->known &= op == '*' || by > 0;
        if (s->known)
            v = op == '*' ? ap_mul64(v, by) : op == '/' ? v / by : v % by;
    }
    return v;
}

static int64_t read_sum(struct sum *s)
{
    int64_t v = read_product(s);

    while (s->known && (*s->at == '+' || *s->at == '-')) {
        const bool minus = *s->at++ == '-';
        const int64_t by = read_product(s);
        s->known &= by != INT64_MIN;
        v = s->known ? ap_add64(v, minus ? -by : by) : 0;
    }
    return v;
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
    if (!d->unknown)
        d->unknown =
            ap_arena_printf(sh->arena, "nothing in the text gives %s%.*s a value",
                            *what == '$' ? "" : "$", (int)(len < 100 ? len : 100), what);
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
        const struct trainer_word *w = &v->value.word[i];
        if (i > 0)
            end_word(d, to);
        d->any |= quoted;
        if (w->unknown) {
            d->any = true;
            d->unknown = w->unknown;
        }
        put_text(d, w->text, strlen(w->text), quoted, to);
    }
}

/* "{NAME...}": with the default that it may have. */
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
    if (v && (rest + 1 == end || *rest == ':' || *rest == '-')) {
        put_variable(d, v, all || v->array, quoted, to);
    } else if (len &&
               (*rest == '-' || (*rest == ':' && (rest[1] == '-' || rest[1] == '=')))) {
        bool known = true;
        for (const char *c = rest + (*rest == ':' ? 2 : 1); c + 1 < end; c++) {
            known &= *c != '$';
            if (known && *c != '"')
                put_text(d, c, 1, quoted, to);
        }
        if (!known)
            put_unknown(sh, d, from, (size_t)(end - from));
    } else {
        put_unknown(sh, d, name, len ? len : (size_t)(end - name));
    }
}

/* At '$'. */
static void expand(struct shell *sh, struct draft *d, bool quoted,
                   struct trainer_words *to)
{
    const char *from = sh->at++;
    const size_t len = name_length(sh->at);

    if (!strncmp(sh->at, "((", 2)) {
        struct sum s = {.sh = sh, .at = sh->at + 2, .known = true};
        const int64_t v = read_sum(&s);
        sh->at = skip_brackets(sh->at, '(', ')');
        if (s.known && !strncmp(s.at, "))", 2)) {
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
        same = !a->word[i].unknown && !b->word[i].unknown &&
               !strcmp(a->word[i].text, b->word[i].text);
    return same;
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
        for (int i = 0; i < v->value.n; i++)
            add_word(&value, v->value.word[i].text, strlen(v->value.word[i].text),
                     v->value.word[i].unknown);
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
            value.word[0].unknown =
                value.word[0].unknown ? value.word[0].unknown : value.word[1].unknown;
            value.n = 1;
        } else if (value.n == 0) {
            add_word(&value, "", 0, NULL);
        }
    }
    if (!v) {
        AP_ROOM_IN(sh->arena, sh->var, sh->n_vars, sh->cap_vars);
        v = &sh->var[sh->n_vars];
        *v = (struct variable){.name = ap_arena_strndup(sh->arena, name, len)};
        ap_names_put(&sh->names, v->name, len, sh->n_vars++);
        v->value.arena = sh->arena;
    }
    if ((sh->depth > 0 || sh->unsure) && !same_words(&v->value, &value) && value.n > 0)
        value.word[0].unknown = ap_arena_printf(
            sh->arena, "$%.100s depends on a condition: give it one value", v->name);
    v->value = value;
    v->array |= array;
}

static bool is_one_of(const char *word, const char *list)
{
    const size_t len = strlen(word);
    const char *at = strstr(list, word);

    return len && at && (at == list || at[-1] == ' ') &&
           (at[len] == ' ' || at[len] == '\0');
}

/* Words that begin a command and are none of it. */
static bool drop_keyword(struct shell *sh, int first)
{
    const char *word = sh->words.word[first].text;

    if (is_one_of(word, "if for while until case"))
        sh->depth++;
    else if (is_one_of(word, "fi done esac"))
        sh->depth -= sh->depth > 0;
    else if (!is_one_of(word,
                        "then else elif do { } ! export local declare readonly exec "
                        "eval time nohup"))
        return false;
    sh->words.n = first;
    return true;
}

/* Behind "<<": the lines up to the word alone on its line. */
static void skip_here_document(struct shell *sh)
{
    sh->at += strspn(sh->at, "<- \t'\"");
    const size_t len = name_length(sh->at);
    const char *name = sh->at, *line = strchr(sh->at, '\n');

    while (line && len) {
        const char *text = line + 1 + strspn(line + 1, "\t");
        line = strchr(line + 1, '\n');
        if (!strncmp(text, name, len) && (text[len] == '\n' || !text[len])) {
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

/* Up to the end of a line or an operator. */
static void read_command(struct shell *sh)
{
    const int first = sh->words.n;

    for (skip_blanks(sh, false); *sh->at && !strchr("\n;&|()", *sh->at);
         skip_blanks(sh, false)) {
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
    }
    if (sh->words.n > first) {
        AP_ROOM_IN(sh->arena, sh->command, sh->n_commands, sh->cap_commands);
        sh->command[sh->n_commands++] = (struct command){first, sh->words.n - first};
    }
    if (*sh->at == '&' && sh->at[1] == '>') { /* "&> file" */
        skip_redirection(sh, first);
        return;
    }
    sh->unsure = !strncmp(sh->at, "&&", 2) || !strncmp(sh->at, "||", 2);
    sh->at += *sh->at ? 1 + sh->unsure : 0;
}

/* ---- the program's arguments ---- */

static bool ends_with(const char *text, const char *end)
{
    const size_t n = strlen(text), len = strlen(end);

    return n >= len && !strcmp(text + n - len, end);
}

/* The word behind which a command's arguments are those of a trainer; -1: all are
 * arguments (lines that nothing continues, too), -2: it runs none. */
static int find_program(const struct trainer_word *word, int n)
{
    int script = -2;

    if (n && !strncmp(word[0].text, "--", 2))
        return -1;
    for (int i = 0; i < n; i++) {
        if (ends_with(word[i].text, ".py"))
            return i;
        if (!strcmp(word[i].text, "-m") && i + 1 < n &&
            strncmp(word[i + 1].text, "torch.distributed", 17) != 0)
            return i + 1;
        if (script == -2 && ends_with(word[i].text, ".sh"))
            script = i;
    }
    return script;
}

static bool has_flags(const struct trainer_word *word, int n)
{
    for (int i = 0; i < n; i++)
        if (!strncmp(word[i].text, "--", 2))
            return true;
    return false;
}

static int64_t number_of(struct shell *sh, const char *name)
{
    const struct variable *v = find_variable(sh, name, strlen(name));
    char *end = NULL;
    const int64_t n = v && v->value.n == 1 && !v->value.word[0].unknown
                          ? strtoll(v->value.word[0].text, &end, 10)
                          : 0;

    return end && !*end && n > 0 && n <= AP_MAX_DEVICES ? n : 0;
}

/* WORLD_SIZE, the launcher's nodes times processes, or NGPU. */
static int64_t find_world(struct shell *sh, const struct trainer_words *launcher)
{
    static const char *const names[2] = {"--nnodes", "--nproc-per-node"};
    struct trainer_flags flags;
    struct ap_err ignored = {""};
    int64_t n[2] = {1, 0};

    trainer_flags_find(launcher, true, &flags, &ignored);
    for (int i = 0; i < 2; i++)
        n[i] = trainer_flag_number(&flags, names[i], n[i]);
    int64_t world = ap_mul64(n[0], n[1]);
    if (world < 1 || world > AP_MAX_DEVICES || *ignored.msg)
        world = number_of(sh, "WORLD_SIZE");
    return world ? world : number_of(sh, "NGPU");
}

static void copy_words(const struct trainer_word *word, int n, struct trainer_words *out)
{
    for (int i = 0; i < n; i++)
        add_word(out, word[i].text, strlen(word[i].text), word[i].unknown);
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
        const int at = find_program(word, c->n);
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
    for (int i = 0; i < sh->n_vars && !found; i++)
        if (has_flags(sh->var[i].value.word, sh->var[i].value.n))
            copy_words(sh->var[i].value.word, sh->var[i].value.n, out);
    if (out->n == 0)
        return ap_err_set(err, "it has no flags (--NAME VALUE)");
    *world = find_world(sh, &launcher);
    return 0;
}

int trainer_words_read(struct ap_arena *arena, const char *text,
                       struct trainer_words *out, int64_t *world, struct ap_err *err)
{
    struct shell sh = {
        .arena = arena, .at = text, .words = {.arena = arena}, .left = MOST_BYTES};

    *out = (struct trainer_words){.arena = arena};
    const int rc = find_arguments(&sh, out, world, err);
    ap_names_free(&sh.names);
    return rc;
}
