/*
 * The text of --help. A tool's option table says which options most people need: those
 * without a group. --help prints these alone, --help=all adds the others under the
 * headings of their groups, and --help=GROUP prints one group.
 */
#include "tool/tool.h"

#include <string.h>

const char *ap_opt_dashes(const struct ap_opt *opt)
{
    return opt->name[1] ? "--" : "-";
}

/* "--name ARG" or "-x ARG". */
static void put_name(const struct ap_opt *opt, struct ap_buf *out)
{
    ap_buf_printf(out, "%s%s", ap_opt_dashes(opt), opt->name);
    if (opt->arg)
        ap_buf_printf(out, " %s", opt->arg);
}

static void put_line(const char *name, int width, const char *help, struct ap_buf *out)
{
    ap_buf_printf(out, "  %-*s   %s\n", width, name, help);
}

/* Whether --help=wanted shows the option; NULL: --help. */
static bool is_shown(const struct ap_opt *opt, const char *wanted)
{
    if (!wanted || !opt->group)
        return !wanted && !opt->group;
    return !strcmp(wanted, opt->group);
}

/* The options of one group, or those without. */
static void put_options(const struct ap_opt *opts, const char *group, int width,
                        struct ap_buf *out)
{
    for (; opts && opts->name; opts++) {
        struct ap_buf name = {0};
        if (!is_shown(opts, group))
            continue;
        put_name(opts, &name);
        put_line(name.data, width, opts->help, out);
        ap_buf_free(&name);
    }
}

/* The longest name of an option of the group, or of any with group "all". */
static int names_width(const struct ap_opt *opts, const char *group)
{
    size_t width = 0;

    for (; opts && opts->name; opts++) {
        struct ap_buf name = {0};
        if (!is_shown(opts, group) && !(group && !strcmp(group, "all")))
            continue;
        put_name(opts, &name);
        width = name.len > width ? name.len : width;
        ap_buf_free(&name);
    }
    return (int)width;
}

/* Whether no option before this one has its group. */
static bool is_first(const struct ap_opt *opts, const struct ap_opt *opt)
{
    while (opts < opt && (!opts->group || strcmp(opts->group, opt->group) != 0))
        opts++;
    return opts == opt;
}

/* The names of the groups in the order of their first options; returns how many. */
static int put_groups(const struct ap_opt *opts, const char *between, struct ap_buf *out)
{
    int n = 0;

    for (const struct ap_opt *o = opts; o && o->name; o++)
        if (o->group && is_first(opts, o))
            ap_buf_printf(out, "%s%s", n++ ? between : "", o->group);
    return n;
}

/* "more options:", and for other groups what the options are for. */
static void put_heading(const char *group, struct ap_buf *out)
{
    if (!strcmp(group, "more"))
        ap_buf_puts(out, "\nmore options:\n");
    else
        ap_buf_printf(out, "\noptions for %s:\n", group);
}

static int count_options(const struct ap_opt *opts)
{
    int n = 0;
    while (opts && opts[n].name)
        n++;
    return n;
}

/* What most people need, and, where it is not all, how to see the others. */
static void put_short(const struct ap_tool *tool, const struct ap_opt *common,
                      struct ap_buf *out)
{
    enum { LEAST = 10 }; /* "--help=all" */
    struct ap_buf groups = {0};
    int width = names_width(tool->opts, NULL);

    width = width > LEAST ? width : LEAST;
    put_options(tool->opts, NULL, width, out);
    put_line("-o FILE", width, common->help, out);
    ap_buf_printf(out, "  %-*s   print all %d options", width, "--help=all",
                  count_options(tool->opts) + count_options(common));
    if (put_groups(tool->opts, ", ", &groups) > 1)
        ap_buf_printf(out, " (some of them: --help=%s)", groups.data);
    ap_buf_putc(out, '\n');
    ap_buf_free(&groups);
}

bool ap_tool_help(const struct ap_tool *tool, const struct ap_opt *common,
                  const char *group, struct ap_buf *out)
{
    const bool all = group && !strcmp(group, "all");
    const size_t start = out->len;
    const int own = names_width(tool->opts, group), any = names_width(common, NULL);
    const int width = all && own < any ? any : own;

    if (group && !all && !own) {
        put_groups(tool->opts, ", ", out);
        ap_buf_printf(out, "%sall", out->len > start ? ", " : "");
        return false;
    }
    if (group && !all) {
        put_options(tool->opts, group, width, out);
        return true;
    }
    ap_buf_printf(out, "usage: %s [OPTION]...%s%s\n%s\n\noptions:\n", tool->name,
                  tool->operand ? " " : "", tool->operand ? tool->operand : "",
                  tool->summary);
    if (!group) {
        put_short(tool, common, out);
        return true;
    }
    put_options(tool->opts, NULL, width, out);
    put_options(common, NULL, width, out);
    for (const struct ap_opt *o = tool->opts; o && o->name; o++)
        if (o->group && is_first(tool->opts, o)) {
            put_heading(o->group, out);
            put_options(tool->opts, o->group, width, out);
        }
    return true;
}

void ap_tool_choices(const struct ap_opt *opt, struct ap_buf *out)
{
    size_t width = 0;

    for (int i = 0; ap_opt_choice(opt, i)->name; i++) {
        size_t len = strlen(ap_opt_choice(opt, i)->name);
        width = len > width ? len : width;
    }
    for (int i = 0; ap_opt_choice(opt, i)->name; i++)
        ap_buf_printf(out, "%-*s   %s%s\n", (int)width, ap_opt_choice(opt, i)->name,
                      ap_opt_choice(opt, i)->help,
                      i == *(int *)opt->out ? " (default)" : "");
}
