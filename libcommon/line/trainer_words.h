/* Private to the table of trainers: flags as people write them, in a shell's words. */
#ifndef AP_LINE_TRAINER_WORDS_H
#define AP_LINE_TRAINER_WORDS_H

#include "line/trainer.h"

/* A word; unknown: a variable of it that nothing in the text gives a value, else NULL. */
struct trainer_word {
    const char *text, *unknown;
};
struct trainer_words {
    struct ap_arena *arena;
    int n, cap;
    struct trainer_word *word;
};

/*
 * The arguments of the program that a text runs: arguments alone ("--a 1 --b"), a command
 * with its launcher, a script with variables, arrays, quotes, comments, line
 * continuations and arithmetic, or arrays alone. Values that the text does not say are
 * marked in their words. world: devices by WORLD_SIZE, NGPU or the launcher's flags, else
 * 0. -1: no arguments, or those of several programs.
 */
int trainer_words_read(struct ap_arena *arena, const char *text,
                       struct trainer_words *out, int64_t *world, struct ap_err *err);

/* ---- flags with their values ---- */

struct trainer_flag {
    const char *name; /* "--tensor-model-parallel-size", or a word without dashes */
    int n;
    const struct trainer_word *value;
    bool read;
};
struct trainer_flags {
    struct ap_arena *arena;
    int n;
    struct trainer_flag *flag; /* of equal names the last one counts */
    struct ap_err *err;        /* the first thing that is wrong */
};
/* dashes: "_" in names is "-". */
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

/* What is not read: globs, and why it is refused; NULL: it has nothing to do with the
 * plan. */
struct trainer_unread {
    const char *globs; /* "--a --b-*" */
    const char *why;
};
/* Refuses, passes over, or notes the flags that were not read. */
int trainer_flags_end(struct trainer_flags *flags, const struct trainer_unread *unread,
                      struct ap_notes *notes);

#endif
