/*
 * Problem: the plan that somebody runs, from what a trainer is given. Idea: the trainer's
 * row reads it as a line (line/trainer.h), which is then one of --grid; the model and the
 * cluster must be those that the text is about. Cost: that of reading it.
 */
#include <string.h>

#include "base/file.h"
#include "grid/grid.h"
#include "line/trainer.h"
#include "tool/tool.h"

/* "NAME:FILE", "NAME:TEXT" */
static const struct ap_trainer *find_trainer(struct ap_arena *arena, const char *from,
                                             const char **file)
{
    const size_t len = strcspn(from, ":");
    const struct ap_trainer *trainer =
        ap_trainer_find(ap_arena_strndup(arena, from, len));

    if (!trainer || !from[len] || !from[len + 1])
        ap_die_usage(
            "--from: expected TRAINER:FILE or TRAINER:TEXT, with one of %s, got '%s'",
            ap_trainers_text(arena), from);
    *file = from + len + 1;
    return trainer;
}

/* Whether a line has "KEY", "KEY=..." or, for "KEY=1", that alone. */
static bool has_item(const char *line, const char *key)
{
    const size_t n = strlen(key);

    for (const char *at = line; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
        if (!strncmp(at, key, n) && strchr(",=", at[n]))
            return true;
    return false;
}

/* Keys that the text leaves to a script, and others in place of the text's: what follows
 * from them is then found anew. */
static void add_keys(struct ap_arena *arena, const char *more, struct ap_line *line)
{
    static const char *const follows[][2] = {
        {"shard", "tp"},     {"shard", "cp"},          {"shard", "pp"},
        {"shard", "dp"},     {"shard", "zero"},        {"vpp", "pp"},
        {"layers", "pp"},    {"layers", "vpp"},        {"schedule", "pp"},
        {"schedule", "vpp"}, {"sp", "tp=1"},           {"ring", "cp=1"},
        {"a2a", "cp"},       {"wgrad-overlap", "tp=1"}};
    struct ap_err err = {0};
    const char *text = more;
    char *rest = NULL;

    for (char *item =
             strtok_r(ap_arena_strdup(arena, ap_line_text(arena, line)), ",", &rest);
         item; item = strtok_r(NULL, ",", &rest)) {
        const char *key = ap_arena_strndup(arena, item, strcspn(item, "="));
        bool again = has_item(more, key) || !strcmp(key, "dp");
        for (size_t i = 0; i < sizeof follows / sizeof *follows; i++)
            again |= !strcmp(key, follows[i][0]) && has_item(more, follows[i][1]);
        if (!again)
            text = ap_arena_printf(arena, "%s,%s", item, text);
    }
    if (ap_line_read(arena, text, line, &err))
        ap_die_usage("--grid %s, beside --from: %s", more, err.msg);
}

void grid_from(struct ap_arena *arena, const struct stage_model *m, const char *from,
               const char *more, struct ap_line *line)
{
    struct ap_notes notes = {.arena = arena};
    struct ap_line_facts facts;
    struct ap_trainer_said said;
    struct ap_err err = {0};
    const char *file;
    char *text;
    size_t len;

    const struct ap_trainer *trainer = find_trainer(arena, from, &file);
    if (*file == '-' || *file == '{' || strstr(file, " --")) { /* not a name */
        text = ap_arena_strdup(arena, file);
        file = "--from";
    } else if (ap_read_file(arena, file, false, &text, &len, &err)) {
        ap_die(AP_BAD_INPUT, "%s", err.msg);
    }
    ap_line_facts_find(arena, &m->graph, &m->nests, &facts);
    facts.world = ap_cluster_devices(&m->cluster);
    if (ap_trainer_parse(trainer, text, &facts, &said, &notes, &err) ||
        ap_line_facts_agree(&said.facts, &facts, &notes, &err))
        ap_die(AP_BAD_INPUT, "%s: %s", file, err.msg);
    *line = said.line;
    if (more)
        add_keys(arena, more, line);
    if (ap_trainer_settle(trainer, &facts, line, &err) ||
        ap_trainer_check(trainer, line, &facts, &err))
        ap_die(AP_NO_SOLUTION, "%s: %s", file, err.msg);
    if (said.facts.compute != facts.compute || said.facts.master != facts.master ||
        said.facts.moments != facts.moments || said.facts.second != facts.second)
        ap_warn(
            "%s: it trains with contractions in %s, weights in %s, moments in %s and %s; "
            "the model with %s, %s, %s and %s (--recipe)",
            file, ap_dtype_name(said.facts.compute), ap_dtype_name(said.facts.master),
            ap_dtype_name(said.facts.moments), ap_dtype_name(said.facts.second),
            ap_dtype_name(facts.compute), ap_dtype_name(facts.master),
            ap_dtype_name(facts.moments), ap_dtype_name(facts.second));
    for (int i = 0; i < notes.n; i++)
        ap_warn("%s: %s", file, notes.note[i]);
}
