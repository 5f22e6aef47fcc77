/* Private to the table of trainers: flags as people write them, in a shell's words. */
#ifndef AP_LINE_TRAINER_WORDS_H
#define AP_LINE_TRAINER_WORDS_H

#include "line/trainer.h"

/* A word; unknown: a sentence that says which part of it has no value, else NULL. maybe:
 * its text is whole, but it is there under a condition, which unknown says. */
struct trainer_word {
    const char *text, *unknown;
    bool maybe;
};
struct trainer_words {
    struct ap_arena *arena;
    const char *json; /* the first here-document that is an object, null for what has no
                         value in it; NULL: there is none */
    bool either;      /* a condition that is not known says which of several it is */
    int n, cap;
    struct trainer_word *word;
};

/*
 * The arguments of the program that a text runs: arguments alone ("--a 1 --b"), a command
 * with its launcher, a script with variables, arrays, quotes, comments, line
 * continuations, conditions on what is known and arithmetic, or arrays alone. Values that
 * the text does not say are marked in their words. world: devices by WORLD_SIZE, NGPU or
 * the launcher's flags, else 0. -1: no arguments, or those of several programs (json is
 * there even so).
 */
int trainer_words_read(struct ap_arena *arena, const char *text,
                       struct trainer_words *out, int64_t *world, struct ap_err *err);

/* The word behind which a command's arguments are those of a trainer; -1: all are
 * arguments (lines that nothing continues, too), -2: it runs none. */
int trainer_program_find(const struct trainer_word *word, int n);

/* Whether a name has a number; it is not ended. */
typedef bool trainer_number_named(void *ctx, const char *name, size_t len, int64_t *out);
/* A sum of numbers and names from *at on, which moves behind it; false: something has no
 * value, or is no number. */
bool trainer_sum(const char **at, trainer_number_named *named, void *ctx, int64_t *value);

/* Whether the list, with blanks between, has the word. */
bool trainer_is_one_of(const char *word, const char *list);
/* A command of known words as a condition, "[ A = B ]", "[[ A != B ]]", "[ -n A ]": 1, 0,
 * or -1: it is another, or not known. */
int trainer_test(const struct trainer_word *word, int n);

/* ---- flags with their values ---- */

struct trainer_flag {
    const char *name; /* "--tensor-model-parallel-size", or a word without dashes */
    int n;
    const struct trainer_word *value;
    const char *maybe; /* the condition that it depends on, NULL: none */
    bool read;
};
struct trainer_flags {
    struct ap_arena *arena;
    bool dashes; /* "_" in names is "-" */
    int n;
    struct trainer_flag *flag; /* of equal names the last one counts */
    int n_asked, cap_asked;
    const char **asked; /* names that were looked up */
    struct ap_err *err; /* the first thing that is wrong */
};
void trainer_flags_find(const struct trainer_words *words, bool dashes,
                        struct trainer_flags *out, struct ap_err *err);
/* Whether the flag is there; its only value; a number. What is wrong is in flags->err. */
bool trainer_flag_on(struct trainer_flags *flags, const char *name);
const char *trainer_flag_word(struct trainer_flags *flags, const char *name,
                              const char *silent);
int64_t trainer_flag_number(struct trainer_flags *flags, const char *name,
                            int64_t silent);
/* The last flag of that name, NULL: there is none. */
struct trainer_flag *trainer_flag_find(struct trainer_flags *flags, const char *name);

/* What is not read: globs, of which the first that matches counts, and why it is refused
 * ("~" before it: passed over with these words); NULL: it has nothing to do with the
 * plan. */
struct trainer_unread {
    const char *globs; /* "--a --b-* --c=VALUE" */
    const char *why;
};
/* The row of a name, and f's value where a glob has one; NULL: there is none. */
const struct trainer_unread *trainer_unread_find(const struct trainer_unread *unread,
                                                 const char *name,
                                                 const struct trainer_flag *f);
/* Refuses, passes over, or notes the flags that were not read; one that is nearly the
 * name of another is refused. */
int trainer_flags_end(struct trainer_flags *flags, const struct trainer_unread *unread,
                      struct ap_notes *notes);

/* A text of flags while it is read (ap_trainer.read). */
struct trainer_reading {
    struct ap_arena *arena;
    struct trainer_flags flags;
    const struct ap_line_facts *known;
    struct ap_trainer_said *said; /* its world is there */
    struct ap_notes *notes;
    struct ap_err *err;
};
/* Finds the flags; -1: there are none. */
int trainer_reading_start(struct trainer_reading *r, const char *text, bool dashes);
/* A number from 1 on; what else it is, is in err. */
int64_t trainer_number(struct trainer_reading *r, const char *name, int64_t silent);

#endif
