/* The line of --grid: keys with numbers or words, commas between them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "grid/grid.h"

static const char *const recomputes[] = {"none", "selective", "operators", "full"};
static const char *const schedules[] = {"gpipe", "1f1b", "interleaved-1f1b"};
#define KEYS                                                                        \
    "tp, pp, vpp, dp, cp, ep, zero, shard, mbs, sp, overlap, recompute, schedule, " \
    "layers, ring, packs, low-sums, keeps-gathered, keeps-gradients, waits, broadcasts"

static int get_number(const char *key, const char *text, int64_t least, int64_t most,
                      int64_t *out, struct ap_err *err)
{
    char *end;
    long long n = *text >= '0' && *text <= '9' ? strtoll(text, &end, 10) : -1;

    if (n < least || n > most || *end)
        return ap_err_set(err, "%s: expected a number from %lld to %lld, got '%s'", key,
                          (long long)least, (long long)most, text);
    *out = n;
    return 0;
}

static int get_word(const char *key, const char *text, const char *const *words, int n,
                    struct ap_err *err)
{
    struct ap_buf list = {0};

    for (int i = 0; i < n; i++) {
        if (!strcmp(text, words[i])) {
            ap_buf_free(&list);
            return i;
        }
        ap_buf_printf(&list, "%s%s", i ? ", " : "", words[i]);
    }
    ap_err_set(err, "%s: '%s' is not one of %s", key, text, list.data);
    ap_buf_free(&list);
    return -1;
}

/* "14:10" */
static int get_layers(char *text, struct grid_line *line, struct ap_err *err)
{
    char *rest = NULL;

    for (char *w = strtok_r(text, ":", &rest); w; w = strtok_r(NULL, ":", &rest)) {
        int64_t n;
        if (line->n_layers == GRID_MOST_STAGES)
            return ap_err_set(err, "layers: more than %d stages", GRID_MOST_STAGES);
        if (get_number("layers", w, 0, 1 << 20, &n, err))
            return -1;
        line->layers[line->n_layers++] = (int)n;
    }
    return line->n_layers ? 0 : ap_err_set(err, "layers: expected numbers, as in 14:10");
}

static int get_key(const char *key, char *value, struct grid_line *line,
                   struct ap_err *err)
{
    const struct {
        const char *name;
        int64_t *to;
    } numbers[] = {{"tp", &line->tensor},       {"pp", &line->pipeline},
                   {"vpp", &line->chunks},      {"dp", &line->data},
                   {"cp", &line->context},      {"ep", &line->expert},
                   {"mbs", &line->micro_batch}, {"shard", &line->shard}};
    int64_t zero;
    int word;

    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (!strcmp(key, numbers[i].name))
            return get_number(key, value, 1, AP_MAX_DEVICES, numbers[i].to, err);
    if (!strcmp(key, "zero")) {
        if (get_number(key, value, 0, 3, &zero, err))
            return -1;
        line->zero = (int)zero;
        return 0;
    }
    if (!strcmp(key, "recompute")) {
        word = get_word(key, value, recomputes, 4, err);
        line->recompute = (enum grid_recompute)word;
        return word < 0 ? -1 : 0;
    }
    if (!strcmp(key, "schedule")) {
        word = get_word(key, value, schedules, 3, err);
        line->schedule = (enum ap_schedule)word;
        return word < 0 ? -1 : 0;
    }
    if (!strcmp(key, "layers"))
        return get_layers(value, line, err);
    return ap_err_set(err, "'%s' is not one of " KEYS, key);
}

/* Of a word; ZeRO's stage says what is scattered. */
static unsigned trainer_bit(const char *word)
{
    for (int i = 0; i < AP_N_TRAINER; i++)
        if (1u << i != AP_TRAINER_SCATTERS && !strcmp(word, ap_trainer_names[i]))
            return 1u << i;
    return 0;
}

unsigned grid_scatters(int zero)
{
    return zero >= 2 ? AP_TRAINER_SCATTERS : 0;
}

static int check(const struct grid_line *line, bool schedule, struct ap_err *err)
{
    const int64_t stages = ap_mul64(line->pipeline, line->chunks);

    if (stages > GRID_MOST_STAGES)
        return ap_err_set(err, "%lld stages, at most %d", (long long)stages,
                          GRID_MOST_STAGES);
    if (line->chunks > 1 && line->pipeline == 1)
        return ap_err_set(err, "vpp=%lld: there is no pipeline (pp)",
                          (long long)line->chunks);
    if (schedule && (line->schedule == AP_SCHEDULE_INTERLEAVED) != (line->chunks > 1))
        return ap_err_set(err, "schedule: vpp=%lld is %s", (long long)line->chunks,
                          line->chunks > 1 ? "interleaved-1f1b" : "not interleaved");
    if (line->trainer & AP_TRAINER_WAITS && !ap_schedule_may_wait(line->schedule))
        return ap_err_set(err, "waits: not with vpp");
    if (line->sequence && line->tensor == 1)
        return ap_err_set(err, "sp: there is no tensor parallelism (tp)");
    if (line->ring && line->context == 1)
        return ap_err_set(err, "ring: there is no context parallelism (cp)");
    if (line->n_layers > 0 && line->n_layers != stages)
        return ap_err_set(err, "layers: %d numbers for %lld stages", line->n_layers,
                          (long long)stages);
    if (line->shard > 1 && line->zero == 0)
        return ap_err_set(err, "shard=%lld: nothing is sharded (zero)",
                          (long long)line->shard);
    if (line->data > 0 && line->data % line->expert)
        return ap_err_set(err, "ep=%lld does not divide dp=%lld", (long long)line->expert,
                          (long long)line->data);
    return 0;
}

int grid_parse(const char *text, struct grid_line *line, struct ap_err *err)
{
    struct ap_arena scratch = {0};
    char *copy = ap_arena_strdup(&scratch, text), *rest = NULL;
    char given[256] = ",";
    int rc = 0;

    *line = (struct grid_line){.text = text,
                               .tensor = 1,
                               .pipeline = 1,
                               .chunks = 1,
                               .context = 1,
                               .expert = 1,
                               .micro_batch = 1,
                               .schedule = AP_SCHEDULE_1F1B};
    for (char *w = strtok_r(copy, ",", &rest); w && !rc; w = strtok_r(NULL, ",", &rest)) {
        char *value = strchr(w, '='), key[32];
        if (value)
            *value++ = '\0';
        snprintf(key, sizeof key, ",%.24s,", w);
        if (strstr(given, key))
            rc = ap_err_set(err, "%s is given twice", w);
        else if (!strcmp(w, "sp") && !value)
            line->sequence = true;
        else if (!strcmp(w, "ring") && !value)
            line->ring = true;
        else if (!strcmp(w, "overlap") && !value)
            line->overlap = true;
        else if (!value && trainer_bit(w))
            line->trainer |= trainer_bit(w);
        else if (!value || !*value)
            rc = ap_err_set(err,
                            "'%s': expected KEY=VALUE, sp, ring, overlap or a trait of "
                            "trainers (packs, low-sums, ...)",
                            w);
        else
            rc = get_key(w, value, line, err);
        strncat(given, key + 1, sizeof given - strlen(given) - 1);
    }
    const bool schedule = strstr(given, ",schedule,");
    ap_arena_free(&scratch);
    line->trainer |= grid_scatters(line->zero);
    if (!schedule && line->chunks > 1)
        line->schedule = AP_SCHEDULE_INTERLEAVED;
    return rc ? rc : check(line, schedule, err);
}
