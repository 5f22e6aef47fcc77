/*
 * Problem: the value of a shell's arithmetic, "$((NODES * 8))", and of a condition, "[ A
 * = B ]". Idea: recursive descent over sums, products and brackets of numbers and names;
 * conditions are of three words, or two. Cost: linear. Source: POSIX.1-2017, XCU 2.6.4.
 */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "line/trainer_words.h"

#define MOST_DEEP 64 /* brackets */

struct sum {
    const char *at;
    bool known;
    int depth;
    trainer_number_named *named;
    void *ctx;
};
static int64_t read_sum(struct sum *s);

static int64_t read_factor(struct sum *s)
{
    int64_t v = 0;
    size_t len = 0;

    s->at += strspn(s->at, " \t\n${}"); /* "$N" and "${N}" are N */
    while (isalnum((unsigned char)s->at[len]) || s->at[len] == '_')
        len++;
    if (*s->at == '(') {
        s->at++;
        s->known &= ++s->depth < MOST_DEEP;
        v = s->known ? read_sum(s) : 0;
        s->depth--;
        s->known &= *s->at == ')';
        s->at += *s->at == ')';
    } else if (len && !isdigit((unsigned char)*s->at)) {
        s->known &= s->named(s->ctx, s->at, len, &v);
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

bool trainer_sum(const char **at, trainer_number_named *named, void *ctx, int64_t *value)
{
    struct sum s = {.at = *at, .known = true, .named = named, .ctx = ctx};

    *value = read_sum(&s);
    *at = s.at;
    return s.known;
}

/* ---- conditions ---- */

bool trainer_is_one_of(const char *word, const char *list)
{
    const size_t len = strlen(word);
    const char *at = strstr(list, word);

    return len && at && (at == list || at[-1] == ' ') &&
           (at[len] == ' ' || at[len] == '\0');
}

int trainer_test(const struct trainer_word *word, int n)
{
    bool negated = n > 0 && !strcmp(word[0].text, "!");
    word += negated;
    n -= negated;
    if (n < 2 || !trainer_is_one_of(word[0].text, "[ [[ test"))
        return -1;
    n -= word[0].text[0] == '[' ? 2 : 1;
    word++;
    if (n > 1 && !strcmp(word[0].text, "!")) {
        negated = !negated;
        word++;
        n--;
    }
    for (int i = 0; i < n; i++)
        if (word[i].unknown || strpbrk(word[i].text, "*?"))
            return -1;
    bool is;
    if (n == 1) {
        is = *word[0].text;
    } else if (n == 2 && trainer_is_one_of(word[0].text, "-n -z")) {
        is = !*word[1].text == (word[0].text[1] == 'z');
    } else if (n == 3 && trainer_is_one_of(word[1].text, "= == != -eq -ne")) {
        const bool same = !strcmp(word[0].text, word[2].text);
        is = same != trainer_is_one_of(word[1].text, "!= -ne");
    } else if (n == 3 && trainer_is_one_of(word[1].text, "-gt -lt -ge -le")) {
        const long long a = atoll(word[0].text), b = atoll(word[2].text);
        is = word[1].text[2] == 'e' ? a == b : false;
        is |= word[1].text[1] == 'g' ? a > b : a < b;
    } else {
        return -1;
    }
    return is != negated;
}
