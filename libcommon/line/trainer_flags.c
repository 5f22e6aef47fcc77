/*
 * Problem: flags as a trainer's parser takes them: which are there, with which values,
 * and which nobody has read. Idea: a flag is a word that begins with dashes, its values
 * follow; what is read is marked, and each flag that is left is refused, noted or passed
 * over by a table, or refused since its name is nearly one that is known. Cost: flags
 * times names that are known.
 */
#include "line/trainer_words.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"

void trainer_flags_find(const struct trainer_words *words, bool dashes,
                        struct trainer_flags *out, struct ap_err *err)
{
    *out = (struct trainer_flags){.arena = words->arena, .dashes = dashes, .err = err};
    out->flag = AP_NEW_N(words->arena, words->n + 1, struct trainer_flag);
    for (int i = 0; i < words->n; i++) {
        const struct trainer_word *w = &words->word[i];
        const bool flag = !strncmp(w->text, "--", 2) && w->text[2];
        if (out->n > 0 && !flag && !strstr(w->text, "checkpoint:")) {
            struct trainer_flag *f = &out->flag[out->n - 1];
            const bool more = w->unknown && !*w->text; /* perhaps flags */
            if (f->n == 0 || (!more && f->value == &words->word[i - f->n])) {
                f->value = f->n ? f->value : w;
                f->n++;
                continue;
            }
        }
        struct trainer_flag *f = &out->flag[out->n++];
        const char *value = flag ? strchr(w->text, '=') : NULL;
        const size_t len = value ? (size_t)(value - w->text) : strlen(w->text);
        char *name = ap_arena_strndup(words->arena, w->text, len);
        for (char *c = name + 2; flag && dashes && *c; c++)
            *c = *c == '_' ? '-' : *c;
        *f = (struct trainer_flag){.name = name, .maybe = w->maybe ? w->unknown : NULL};
        if (value) {
            struct trainer_word *own = AP_NEW(words->arena, struct trainer_word);
            *own = (struct trainer_word){value + 1, w->unknown, w->maybe};
            f->value = own;
            f->n = 1;
        } else if (w->unknown && !w->maybe) { /* "$MORE": no one knows what it adds */
            f->name = ap_arena_printf(words->arena, "$%s", w->unknown);
        }
    }
}

static bool same_letter(char a, char b, bool dashes)
{
    return a == b || (dashes && strchr("-_", a) && strchr("-_", b) && a && b);
}

/* Whether names differ by up to that many letters, added, left out or another. */
static bool is_near(const char *a, const char *b, size_t most, bool dashes)
{
    size_t n = strlen(a), m = strlen(b), i = 0;

    while (a[i] && same_letter(a[i], b[i], dashes))
        i++;
    for (; n > i && m > i && same_letter(a[n - 1], b[m - 1], dashes); n--)
        m--;
    return n - i <= most && m - i <= most;
}

struct trainer_flag *trainer_flag_find(struct trainer_flags *flags, const char *name)
{
    struct trainer_flag *found = NULL;

    AP_ROOM_IN(flags->arena, flags->asked, flags->n_asked, flags->cap_asked);
    flags->asked[flags->n_asked++] = name;
    for (int i = 0; i < flags->n; i++)
        if (is_near(flags->flag[i].name, name, 0, flags->dashes)) {
            found = &flags->flag[i];
            found->read = true;
            if (found->maybe)
                ap_err_set(flags->err, "%s: %s", name, found->maybe);
        }
    return found;
}

/* Whether a word stands for what else is given to the script. */
static bool is_rest(const char *unknown)
{
    return unknown && (strstr(unknown, " $@ ") || strstr(unknown, " $* "));
}

bool trainer_flag_on(struct trainer_flags *flags, const char *name)
{
    const struct trainer_flag *f = trainer_flag_find(flags, name);

    if (f && f->n > 0 && !(is_rest(f->value->unknown) && !*f->value->text))
        ap_err_set(flags->err, "%s: takes no value, and '%.100s' follows", name,
                   f->value->text);
    return f != NULL;
}

const char *trainer_flag_word(struct trainer_flags *flags, const char *name,
                              const char *silent)
{
    const struct trainer_flag *f = trainer_flag_find(flags, name);

    if (!f)
        return silent;
    if (f->n != 1) {
        ap_err_set(flags->err, "%s: expected one value, got %d", name, f->n);
        return silent;
    }
    if (f->value->unknown) {
        ap_err_set(flags->err, "%s: %s", name, f->value->unknown);
        return silent;
    }
    return f->value->text;
}

int64_t trainer_flag_number(struct trainer_flags *flags, const char *name, int64_t silent)
{
    const char *text = trainer_flag_word(flags, name, NULL);
    char *end;

    if (!text)
        return silent;
    const long long n = strtoll(text, &end, 10);
    if (end == text || *end || n < -1 || n > INT32_MAX) {
        ap_err_set(flags->err, "%s: expected a number, got '%.100s'", name, text);
        return silent;
    }
    return n;
}

const struct trainer_unread *trainer_unread_find(const struct trainer_unread *unread,
                                                 const char *name,
                                                 const struct trainer_flag *f)
{
    for (; unread->globs; unread++) {
        char glob[96];
        for (const char *at = unread->globs; *at; at += strspn(at, " ")) {
            const size_t len = strcspn(at, " ");
            snprintf(glob, sizeof glob, "%.*s", (int)len, at);
            char *value = strchr(glob, '=');
            if (value)
                *value++ = '\0';
            if (ap_glob(glob, name) && (!value || (f->n == 1 && !f->value->unknown &&
                                                   !strcmp(f->value->text, value))))
                return unread;
            at += len;
        }
    }
    return NULL;
}

/* The name that is nearly that of an unknown flag, NULL: there is none. */
static const char *find_near(const struct trainer_flags *flags,
                             const struct trainer_unread *unread,
                             const struct trainer_flag *f)
{
    char *dashed = ap_arena_strdup(flags->arena, f->name);

    for (int i = 0; i < flags->n_asked; i++)
        if (is_near(f->name, flags->asked[i], 1, true))
            return flags->asked[i];
    for (char *c = dashed; *c; c++)
        *c = *c == '_' ? '-' : *c;
    return trainer_unread_find(unread, dashed, f) ? dashed : NULL;
}

int trainer_flags_end(struct trainer_flags *flags, const struct trainer_unread *unread,
                      struct ap_notes *notes)
{
    for (int i = 0; i < flags->n && !*flags->err->msg; i++) {
        const struct trainer_flag *f = &flags->flag[i];
        if (f->read)
            continue;
        if (is_rest(f->name)) {
            ap_note(notes, "%s", f->name + 1);
            continue;
        }
        if (*f->name == '$')
            return ap_err_set(flags->err, "%s", f->name + 1);
        const struct trainer_unread *u = trainer_unread_find(unread, f->name, f);
        const char *near = u ? NULL : find_near(flags, unread, f);
        if (near)
            return ap_err_set(flags->err, "%.100s: not known; is it %s?", f->name, near);
        const char *why = u ? u->why : "~not known, passed over";
        if (why && *why != '~')
            return ap_err_set(flags->err, "%.100s: %s", f->name, why);
        if (why)
            ap_note(notes, "%.100s: %s", f->name, why + 1);
    }
    return *flags->err->msg ? -1 : 0;
}

int trainer_reading_start(struct trainer_reading *r, const char *text, bool dashes)
{
    struct trainer_words words;
    int64_t world;

    if (trainer_words_read(r->arena, text, &words, &world, r->err))
        return -1;
    trainer_flags_find(&words, dashes, &r->flags, r->err);
    r->said->facts.world = world ? world : r->known->world;
    return 0;
}

int64_t trainer_number(struct trainer_reading *r, const char *name, int64_t silent)
{
    const int64_t n = trainer_flag_number(&r->flags, name, silent);

    if (n >= 1 || n == silent)
        return n;
    ap_err_set(r->err, "%s: expected a number from 1 on, got %lld", name, (long long)n);
    return silent;
}

/* ---- the program's arguments ---- */

static bool ends_with(const char *text, const char *end)
{
    const size_t n = strlen(text), len = strlen(end);

    return n >= len && !strcmp(text + n - len, end);
}

int trainer_program_find(const struct trainer_word *word, int n)
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
