/*
 * Completion for bash and zsh, made of the option table: names of options, of choices and
 * of clusters, and files where an option or the operand takes one.
 */
#include "tool/tool.h"

#include <string.h>

#include "cost/cost.h"

const struct ap_choice *ap_opt_choice(const struct ap_opt *opt, int row)
{
    size_t stride = opt->choice_stride ? opt->choice_stride : sizeof(struct ap_choice);
    return (const struct ap_choice *)(const void *)((const char *)opt->choices +
                                                    (size_t)row * stride);
}

/* What an option may be followed by: words, files or neither. */
static bool takes_words(const struct ap_opt *o)
{
    return o->kind == AP_OPT_CHOICE || o->kind == AP_OPT_CLUSTER;
}

static bool takes_files(const struct ap_opt *o)
{
    return o->kind == AP_OPT_CLUSTER ||
           ((o->kind == AP_OPT_STR || o->kind == AP_OPT_LIST) && o->arg &&
            (strstr(o->arg, "FILE") || strstr(o->arg, "DIR") || strstr(o->arg, "OTHER")));
}

static void put_words(const struct ap_opt *o, struct ap_buf *out)
{
    const char *space = "";
    for (int i = 0; o->kind == AP_OPT_CHOICE && ap_opt_choice(o, i)->name; i++) {
        ap_buf_printf(out, "%s%s", space, ap_opt_choice(o, i)->name);
        space = " ";
    }
    for (const struct ap_preset *p = ap_presets; o->kind == AP_OPT_CLUSTER && p->name;
         p++) {
        ap_buf_printf(out, "%s%s", space, p->name);
        space = " ";
    }
    ap_buf_printf(out, "%shelp", space);
}

static void put_option(const struct ap_opt *o, struct ap_buf *out)
{
    ap_buf_printf(out, "%s%s", o->name[1] ? "--" : "-", o->name);
}

/* ---- bash ---- */

static void put_bash_case(const struct ap_opt *o, struct ap_buf *out)
{
    if (o->kind == AP_OPT_FLAG)
        return;
    ap_buf_puts(out, "    ");
    put_option(o, out);
    ap_buf_puts(out, ") ");
    if (takes_words(o)) {
        ap_buf_puts(out, "words='");
        put_words(o, out);
        ap_buf_puts(out, "' ");
    }
    ap_buf_puts(out, takes_files(o)   ? "files=1 ;;\n"
                     : takes_words(o) ? "files='' ;;\n"
                                      : "return ;;\n");
}

static void put_bash(const struct ap_tool *tool, const struct ap_opt *common,
                     const char *id, struct ap_buf *out)
{
    const struct ap_opt *const tables[] = {tool->opts, common};
    struct ap_buf names = {0};

    if (tool->operand_names)
        tool->operand_names(&names);
    ap_buf_printf(
        out,
        "# bash completion for %s\n"
        "%s() {\n"
        "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}"
        " words='%s' files=%s\n"
        "    if [ \"$cur\" = = ]; then cur='' # bash splits --name=value\n"
        "    elif [ \"$prev\" = = ]; then prev=${COMP_WORDS[COMP_CWORD-2]}; fi\n"
        "    case $prev in\n",
        tool->name, id, names.len ? names.data : "",
        tool->operand && !names.len ? "1" : "");
    for (int t = 0; t < 2; t++)
        for (const struct ap_opt *o = tables[t]; o && o->name; o++)
            put_bash_case(o, out);
    ap_buf_puts(out, "    *) case $cur in -*) files='' words='");
    const char *space = "";
    for (int t = 0; t < 2; t++)
        for (const struct ap_opt *o = tables[t]; o && o->name; o++) {
            ap_buf_puts(out, space);
            put_option(o, out);
            space = " ";
        }
    ap_buf_printf(out,
                  "' ;; esac ;;\n"
                  "    esac\n"
                  "    mapfile -t COMPREPLY < <(\n"
                  "        compgen -W \"$words\" -- \"$cur\"\n"
                  "        [ -z \"$files\" ] || compgen -f -- \"$cur\")\n"
                  "}\n"
                  "complete -o filenames -F %s %s\n",
                  id, tool->name);
    ap_buf_free(&names);
}

/* ---- zsh ---- */

/* A description within [] and single quotes. */
static void put_zsh_text(const char *s, struct ap_buf *out)
{
    for (; *s; s++) {
        if (*s == '\'')
            ap_buf_puts(out, "'\\''");
        else if (strchr("[]:\\", *s))
            ap_buf_printf(out, "\\%c", *s);
        else
            ap_buf_putc(out, *s);
    }
}

static void put_zsh_option(const struct ap_opt *o, struct ap_buf *out)
{
    const char *eq = o->kind == AP_OPT_FLAG || !o->name[1] ? "" : "=";

    ap_buf_printf(out, "    '%s", o->kind == AP_OPT_LIST ? "*" : "");
    put_option(o, out);
    ap_buf_printf(out, "%s[", eq);
    put_zsh_text(o->help, out);
    ap_buf_putc(out, ']');
    if (o->kind != AP_OPT_FLAG) {
        ap_buf_putc(out, ':');
        put_zsh_text(o->arg, out);
        ap_buf_putc(out, ':');
    }
    if (takes_words(o) && takes_files(o)) {
        ap_buf_puts(out, " _alternative \"names\\:name\\:(");
        put_words(o, out);
        ap_buf_puts(out, ")\" \"files\\:file\\:_files\"");
    } else if (takes_words(o)) {
        ap_buf_putc(out, '(');
        put_words(o, out);
        ap_buf_putc(out, ')');
    } else if (takes_files(o)) {
        ap_buf_puts(out, "_files");
    }
    ap_buf_puts(out, "' \\\n");
}

static void put_zsh(const struct ap_tool *tool, const struct ap_opt *common,
                    struct ap_buf *out)
{
    const struct ap_opt *const tables[] = {tool->opts, common};

    ap_buf_printf(out, "#compdef %s\n_arguments \\\n", tool->name);
    for (int t = 0; t < 2; t++)
        for (const struct ap_opt *o = tables[t]; o && o->name; o++)
            put_zsh_option(o, out);
    struct ap_buf names = {0};
    if (tool->operand_names)
        tool->operand_names(&names);
    if (names.len)
        ap_buf_printf(out, "    ':name:(%s)'\n", names.data);
    else
        ap_buf_puts(out, tool->operand ? "    '*:file:_files'\n" : "    --\n");
    ap_buf_free(&names);
}

bool ap_tool_completion(const struct ap_tool *tool, const struct ap_opt *common,
                        const char *shell, struct ap_buf *out)
{
    struct ap_buf id = {0};

    ap_buf_printf(&id, "_%s", tool->name);
    for (size_t i = 0; i < id.len; i++)
        id.data[i] = id.data[i] == '-' ? '_' : id.data[i];
    if (!strcmp(shell, "bash"))
        put_bash(tool, common, id.data, out);
    else if (!strcmp(shell, "zsh"))
        put_zsh(tool, common, out);
    ap_buf_free(&id);
    return out->len > 0;
}
